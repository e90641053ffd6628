import matplotlib.pyplot as plt

import audit
from audit import repetitions, upper_bounds
from audit.numerics import format_places

run = audit.DpSgd(noise_multiplier=1.1, steps=2000, sampling_rate=0.01)
for name, family in {"geometric": "tnb:1,0.5", "fixed": "fixed:2"}.items():
    laws = [repetitions.parse_repetitions(family).with_mean(n) for n in (2, 5, 10, 20, 50)]
    costs = [upper_bounds.region(run, law, 1e-5).epsilon for law in laws]
    quantiles = [law.expected_quantile() for law in laws]
    plt.plot(costs, quantiles, "o-", label=f"{name} number of runs")
    cost = format_places(costs[3], up=True, places=2)
    print(f"{name}: quantile {format_places(quantiles[3], up=False)} for ε = {cost}")
plt.xlabel("ε of the tuning")
plt.ylabel("expected quantile of the best")
plt.legend()
