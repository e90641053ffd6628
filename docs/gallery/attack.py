import matplotlib.pyplot as plt
import numpy as np

from audit import lower_bounds
from audit.numerics import format_places

rng = np.random.default_rng(0)
without, with_record = rng.normal(0, 1, 2000), rng.normal(2, 1, 2000)
bound = lower_bounds.lower_bound(out_scores=without, in_scores=with_record, delta=1e-5)
plt.hist(without, bins=40, alpha=0.6, label="without the record")
plt.hist(with_record, bins=40, alpha=0.6, label="with the record")
plt.xlabel("score of the attack")
plt.yticks([])
plt.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
print(f"epsilon is at least {format_places(bound.epsilon, up=False, places=2)}")
