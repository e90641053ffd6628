"""Estimator that assumes only the definition of differential privacy at one threshold."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from audit.claims import Assumption, Claim, Kind
from audit.lower_bounds.estimator import ThresholdEstimator
from audit.numerics import QUANTILE_ACCURACY, FloatArray


def epsilon_from_limits(fp_upper: FloatArray, fn_upper: FloatArray, delta: float) -> FloatArray:
    """max(log((1-delta-FP)/FN), log((1-delta-FN)/FP), 0) (Xiang, Wang & Wang 2024, equation 4)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # Privacy bounds the event "score > t" by 1 - FN <= e^eps FP + delta, and its complement by
        # 1 - FP <= e^eps FN + delta.
        by_fn = np.log(np.maximum(1.0 - delta - fp_upper, 0.0)) - np.log(fn_upper)
        by_fp = np.log(np.maximum(1.0 - delta - fn_upper, 0.0)) - np.log(fp_upper)
    return np.maximum(np.nan_to_num(np.maximum(by_fn, by_fp), nan=0.0), 0.0)


@dataclass(frozen=True)
class ClopperPearson(ThresholdEstimator):
    """Lower bound for any mechanism, by exact limits of both error rates.

    Example:
        >>> out_scores, in_scores = range(100), range(90, 190)
        >>> round(ClopperPearson()(out_scores, in_scores).epsilon, 2)
        2.36
    """

    name: ClassVar[str] = "clopper-pearson"

    statistic_claim: ClassVar[Claim] = Claim(
        Kind.BOUND,
        "Clopper & Pearson 1934; Xiang, Wang & Wang 2024, eq. 4",
        assumptions=(Assumption.INDEPENDENT_TRIALS,),
    )

    def from_limits(self, fp_upper: FloatArray, fn_upper: FloatArray, delta: float) -> FloatArray:
        return epsilon_from_limits(fp_upper, fn_upper, delta)

    def epsilon_at(self, limit: float, delta: float) -> float:
        return max(limit * (1.0 - QUANTILE_ACCURACY), 0.0)
