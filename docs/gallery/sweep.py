import matplotlib.pyplot as plt

import audit
from audit.numerics import format_places

accuracy = [0.71, 0.78, 0.83, 0.80, 0.85, 0.84]  # of a finished sweep
noise = [2.0, 1.6, 1.3, 1.1, 0.9, 0.8]
runs = [audit.DpSgd(noise_multiplier=sigma, steps=2000, sampling_rate=0.01) for sigma in noise]
cost = audit.cost_of_trials(runs, "grid", delta=1e-5).epsilon
plt.plot([run.epsilon(1e-5) for run in runs], accuracy, "o", label="single runs")
plt.plot(cost, max(accuracy), "*", markersize=16, label="the released best run")
plt.xlabel("ε")
plt.ylabel("accuracy")
plt.legend()
alone, best = (format_places(e, up=True, places=2) for e in (runs[4].epsilon(1e-5), cost))
print(f"{alone} alone, {best} as the best of six")
