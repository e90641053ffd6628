"""Lower bounds on epsilon from the scores of a finished audit.

Use `lower_bound`; `all_lower_bounds` compares it with the other estimators and their assumptions.
`pooled_bounds` uses every run of a tuning instead of the winners, `one_run_bounds` many canaries in
a single run, and `family_bound` a family of mechanisms given by privacy profiles. An estimator is a
statistic with a rule for its threshold, such as `ClopperPearson(rule=Split())`, and is called with
the scores. Before an audit, `max_detectable_epsilon` and `trials_needed` return the largest epsilon
that it can show, and the number of trials that an epsilon needs. With `plan`, an audit can stop
early.
"""

from audit.lower_bounds.estimator import ClopperPearson, Estimator, LowerBound
from audit.lower_bounds.estimators import (
    all_estimators,
    all_lower_bounds,
    lower_bound,
    max_detectable_epsilon,
    pooled_bounds,
    trials_needed,
)
from audit.lower_bounds.families import (
    GaussianCurve,
    LiftedCurve,
    PooledGaussianCurve,
    WorstOrderCurve,
    family_bound,
    gaussian_canaries_bound,
)
from audit.lower_bounds.monte_carlo import PooledScan, RankSum
from audit.lower_bounds.one_run import independent_canaries_bound, one_run_bounds
from audit.lower_bounds.scan import Scan
from audit.lower_bounds.scores import (
    FixedThreshold,
    MaximumOverGrid,
    SequentialPlan,
    Split,
    ThresholdFromTheory,
    ThresholdRule,
    doubling_sizes,
)

__all__ = [
    "ClopperPearson",
    "Estimator",
    "FixedThreshold",
    "GaussianCurve",
    "LiftedCurve",
    "LowerBound",
    "MaximumOverGrid",
    "PooledGaussianCurve",
    "PooledScan",
    "RankSum",
    "Scan",
    "SequentialPlan",
    "Split",
    "ThresholdFromTheory",
    "ThresholdRule",
    "WorstOrderCurve",
    "all_estimators",
    "all_lower_bounds",
    "doubling_sizes",
    "family_bound",
    "gaussian_canaries_bound",
    "independent_canaries_bound",
    "lower_bound",
    "max_detectable_epsilon",
    "one_run_bounds",
    "pooled_bounds",
    "trials_needed",
]
