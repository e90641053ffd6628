import matplotlib.pyplot as plt

from audit import lower_bounds

trials = [100, 300, 1000, 3000, 10_000, 30_000]
largest = [lower_bounds.max_detectable_epsilon(n // 2, n // 2, delta=1e-5) for n in trials]
plt.semilogx(trials, largest, "o-")
plt.xlabel("trials of an attack")
plt.ylabel("largest ε that they can prove")
print(f"{largest[2]:.2f} with 1,000, {largest[4]:.2f} with 10,000")
