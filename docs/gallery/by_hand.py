import matplotlib.pyplot as plt

import audit
from audit.numerics import format_places

run = audit.DpSgd(noise_multiplier=1.1, steps=2000, sampling_rate=0.01)
runs = [1, 5, 10, 20, 40]
by_hand = [audit.tuning_cost(run, f"sequential:{n}", delta=1e-5).epsilon for n in runs]
plt.plot(runs, by_hand, "o-", label="every result is looked at")
plt.plot(runs, [n * run.epsilon(1e-5) for n in runs], ":", label="sum of the epsilons")
plt.xlabel("runs of an optimiser, or by hand")
plt.ylabel("ε of the tuning")
plt.legend()
print(format_places(by_hand[-1], up=True, places=2))
