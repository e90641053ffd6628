import matplotlib.pyplot as plt

import audit
from audit.numerics import format_places

run = audit.DpSgd(noise_multiplier=1.1, steps=2000, sampling_rate=0.01)
protocols = {
    "an optimiser, or by hand": "sequential:20",
    "a fixed list or number": "grid:20",
    "Poisson number": "poisson:20",
    "geometric number": "tnb:1,0.05",
    "until one is good enough": "until:0.05",
}
costs = {name: audit.tuning_cost(run, spec, delta=1e-5).epsilon for name, spec in protocols.items()}
labels = [format_places(cost, up=True, places=2) for cost in costs.values()]
plt.bar_label(plt.barh(list(costs), list(costs.values())), labels, padding=3)
plt.axvline(run.epsilon(1e-5), color="black")
plt.xlabel("ε of twenty runs (line: one run)")
print(", ".join(labels))
