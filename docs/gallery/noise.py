import matplotlib.pyplot as plt

from audit import upper_bounds
from audit.numerics import format_places

protocols = {"one run": "fixed:1", "geometric, 20": "tnb:1,0.05", "fixed, 10": "fixed:10"}
noise = [
    upper_bounds.calibrate_noise(
        spec, target_epsilon=3, target_delta=1e-5, steps=2000, sampling_rate=0.01
    )
    for spec in protocols.values()
]
labels = [format_places(sigma, up=True, places=2) for sigma in noise]
plt.bar_label(plt.barh(list(protocols), noise), labels, padding=3)
plt.xlabel("noise multiplier for ε = 3 in total")
print(", ".join(labels))
