"""Lower bounds on epsilon from a finished game.

`lower_bound` is the one to use; `all_bounds` shows it beside the others, each with what it assumes.
`pooled_bounds` takes every run of a tuning instead of the winners (`selected_bound` by any score),
`one_run_bounds` many canaries in one run, `family_bound` a family of mechanisms given by privacy
profiles. An estimator is a statistic with a rule for its threshold, `ClopperPearson(rule=Split())`,
and is called with scores. Before a game, `ceiling` and `trials_needed` say what it can show, and
`provable` what one of known law can; `looks=` lets it stop early.
"""

from audit import _deprecated
from audit.lower_bounds.counting import (
    Bayesian,
    ClopperPearson,
    Conditional,
    GaussianCurve,
    LiftedCurve,
)
from audit.lower_bounds.estimator import Estimator
from audit.lower_bounds.estimators import (
    all_estimators,
    all_lower_bounds,
    lower_bound,
    pooled_bounds,
)
from audit.lower_bounds.families import AcceptedTailsCurve, WorstOrderCurve, family_bound
from audit.lower_bounds.independent_canaries import (
    independent_canaries_bound,
    order_statistics_bound,
)
from audit.lower_bounds.max_provable_epsilon import max_provable_epsilon
from audit.lower_bounds.one_run import one_run_bounds
from audit.lower_bounds.planning import max_detectable_epsilon, trials_needed
from audit.lower_bounds.pooled import (
    PooledClopperPearson,
    PooledGaussianCurve,
    selected_bound,
)
from audit.lower_bounds.pooled_scan import PooledScan
from audit.lower_bounds.rank_sum import RankSum
from audit.lower_bounds.result import LowerBound
from audit.lower_bounds.rules import (
    Band,
    Bonferroni,
    FixedThreshold,
    MaximumOverGrid,
    MultiSplit,
    Split,
    ThresholdFromTheory,
    ThresholdRule,
)
from audit.lower_bounds.scan import Scan
from audit.lower_bounds.sequential_plan import SequentialPlan, doubling

__all__ = [
    "AcceptedTailsCurve",
    "Band",
    "Bayesian",
    "Bonferroni",
    "ClopperPearson",
    "Conditional",
    "Estimator",
    "FixedThreshold",
    "GaussianCurve",
    "LiftedCurve",
    "LowerBound",
    "MaximumOverGrid",
    "MultiSplit",
    "PooledClopperPearson",
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
    "doubling",
    "family_bound",
    "independent_canaries_bound",
    "lower_bound",
    "max_detectable_epsilon",
    "max_provable_epsilon",
    "one_run_bounds",
    "order_statistics_bound",
    "pooled_bounds",
    "selected_bound",
    "trials_needed",
]

__getattr__ = _deprecated.renamed(__name__)
