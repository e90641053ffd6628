"""Tests of the violation rates of a study."""

import pandas as pd
from scipy import stats

FALSE_ALARM = 0.01
"""Probability that a study flags any row although every bound has exactly its nominal coverage."""


def failures(study: pd.DataFrame, alpha: float = 0.05) -> pd.DataFrame:
    """The rows of valid estimators whose violation rate is significantly above alpha.

    Each row is tested by a one-sided binomial test, with Bonferroni's correction for all rows.
    """
    claimed = study.loc[study["claimed"]]
    p_value = stats.binom.sf(claimed["violations"] - 1, claimed["audits"], alpha)
    return pd.DataFrame(claimed[p_value < FALSE_ALARM / max(len(claimed), 1)])


def merge_mechanisms(study: pd.DataFrame) -> pd.DataFrame:
    """The counts of each valid estimator over all mechanisms, one row per number of trials.

    A test of these rows detects an estimator whose error is slightly too large everywhere, which a
    test of single mechanisms misses. The audits of different mechanisms are independent.
    """
    claimed = study.loc[study["claimed"]]
    by = ["trials", "estimator", "rule", "claimed"]
    return claimed.groupby(by, as_index=False, sort=False)[["audits", "violations"]].sum()
