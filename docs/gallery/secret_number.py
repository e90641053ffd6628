import matplotlib.pyplot as plt
import numpy as np

from audit import repetitions

rng = np.random.default_rng(0)
for name, spec in {"geometric": "tnb:1,0.05", "Poisson": "poisson:20"}.items():
    runs = repetitions.parse_repetitions(spec).sample(rng, 100_000)
    plt.hist(np.minimum(runs, 100), bins=50, alpha=0.6, label=name, density=True)
    print(f"{name}: more than 60 runs in {np.mean(runs > 60):.1%} of studies")
plt.xlabel("number of runs (100: at least 100)")
plt.yticks([])
plt.legend()
