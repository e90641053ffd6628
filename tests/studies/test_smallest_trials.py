"""Audits with the smallest number of trials that prove an epsilon."""

import pytest
from scipy import stats

from studies.smallest_trials import smallest_audit


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
def test_one_trial_less_proves_less_and_bounds_are_seldom_too_large(epsilon: float) -> None:
    """An error of 1e-6 for each epsilon."""
    result = smallest_audit(epsilon, audits=200)
    assert result.with_one_less < epsilon <= result.perfect
    assert stats.binom.sf(result.too_large - 1, 200, 0.05) > 1e-6
    assert result.row.startswith(f"| {epsilon:g} | {result.trials} | ")
