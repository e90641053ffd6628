import matplotlib.pyplot as plt

import audit
from audit import upper_bounds
from audit.numerics import format_places

run = audit.DpSgd(noise_multiplier=1.1, steps=2000, sampling_rate=0.01)
means = [2, 5, 10, 20, 50, 100]
geometric = [upper_bounds.region(run, f"tnb:1,{1 / mean}", 1e-5).epsilon for mean in means]
fixed = [upper_bounds.region(run, f"fixed:{mean}", 1e-5).epsilon for mean in means]
plt.semilogx(means, fixed, label="fixed number")
plt.semilogx(means, geometric, label="secret, geometric number")
plt.xlabel("expected number of runs")
plt.ylabel("ε of the tuning")
plt.legend()
print(*(format_places(costs[-1], up=True, places=2) for costs in (fixed, geometric)))
