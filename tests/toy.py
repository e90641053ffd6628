"""Data and helpers for the tests of the engines."""

import numpy as np
from scipy import stats

from audit.dpsgd import RunBatch
from threat_models import Records

ALARM = 1e-4
"""False-alarm rate of every statistical test of the engines."""
SILENT = 1e-30
"""A noise multiplier so small that rounding removes the noise."""


def assert_uncorrelated(sample: np.ndarray) -> None:
    """Asserts that no two rows or columns of standard normal numbers correlate (Bonferroni)."""
    for rows in (sample, sample.T):
        pairs = len(rows) * (len(rows) - 1) / 2
        correlations = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
        limit = stats.norm.isf(ALARM / 2 / pairs) / np.sqrt(rows.shape[1])
        assert np.abs(correlations).max() < 1.05 * limit


def run_batch(count: int, included: bool, seed: int = 0, candidates: int = 1) -> RunBatch:
    random = np.random.default_rng(seed)
    return RunBatch(
        np.full(count, included),
        random.integers(candidates, size=count),
        random.integers(2**63, size=count, dtype=np.uint64),
    )


def records(count: int, seed: int = 0, name: str = "TOY") -> Records:
    random = np.random.default_rng(seed)
    x = random.random((count, 1, 8, 8)).astype(np.float32)
    return Records(x, random.integers(10, size=count), 10, name)
