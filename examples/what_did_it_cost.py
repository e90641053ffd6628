"""The cost of a finished tuning, for several ways of choosing its candidates."""

import audit
from audit.accounting import DpSgd

# Thirty training runs, each with the same noise.
trials = [DpSgd(noise_multiplier=4.0, steps=300, sampling_rate=0.02)] * 30

for chosen in ("random", "grid", "sequential"):
    print("\n".join(audit.cost_of_trials(trials, chosen, delta=1e-5).lines), end="\n\n")

# The cost if the number of runs had been drawn from this distribution and kept secret:
print("\n".join(audit.cost_of_trials(trials, "random", delta=1e-5, protocol="tnb:0,0.01").lines))
