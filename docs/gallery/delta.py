import matplotlib.pyplot as plt

import audit
from audit import upper_bounds
from audit.numerics import format_places

run = audit.DpSgd(noise_multiplier=1.1, steps=2000, sampling_rate=0.01)
deltas = [1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8]
tuning = [upper_bounds.region(run, "tnb:1,0.05", delta).epsilon for delta in deltas]
plt.semilogx(deltas, tuning, "o-", label="best of about twenty runs")
plt.semilogx(deltas, [run.epsilon(delta) for delta in deltas], "o-", label="one run")
plt.xlabel("δ")
plt.ylabel("ε")
plt.ylim(bottom=0)
plt.legend(loc="lower left")
first, last = (format_places(tuning[i], up=True, places=2) for i in (0, -1))
print(f"{first} at 1e-3, {last} at 1e-8")
