import matplotlib.pyplot as plt

from audit import lower_bounds
from audit.numerics import format_places

trials = [100, 300, 1000, 3000, 10_000, 30_000]
largest = [lower_bounds.max_detectable_epsilon(n // 2, n // 2, delta=1e-5) for n in trials]
plt.semilogx(trials, largest, "o-")
plt.xlabel("trials of an attack")
plt.ylabel("largest ε that they can prove")
few, many = (format_places(largest[i], up=True, places=2) for i in (2, 4))
print(f"{few} with 1,000, {many} with 10,000")
