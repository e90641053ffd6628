"""Power of lower bounds next to those of other projects."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from studies.power import (
    ALPHA,
    DEFAULT,
    GDP,
    MECHANISMS,
    TRIALS,
    Method,
    all_methods,
    methods_of_others,
    power,
    power_page,
)

DOCS = Path(__file__).parents[2] / "docs"


def test_the_stored_study_is_complete_and_its_page_is_generated_from_it() -> None:
    stored = pd.read_csv(DOCS / "power.csv")
    assert power_page(stored) == (DOCS / "power.md").read_text()
    assert set(stored["mechanism"]) == set(MECHANISMS)
    assert set(stored["trials"]) == set(TRIALS)
    assert {"PrivacyGuard, max over thresholds", GDP, DEFAULT} <= set(stored["method"])
    bounds = stored[stored["bound"]]
    p_values = stats.binom.sf(bounds["above_truth"] - 1, bounds["audits"], ALPHA)
    assert p_values.min() > 0.01 / len(bounds)
    # The default is the largest on average, by more than twice the errors of both means together.
    for _, rows in bounds.groupby(["mechanism", "trials"]):
        default = rows[rows["method"] == DEFAULT].iloc[0]
        for _, peer in rows[rows["method"].str.startswith("jax_privacy")].iterrows():
            assert default["mean"] - peer["mean"] > 2 * np.hypot(default["error"], peer["error"])


def test_all_methods_get_the_same_scores_and_their_counts_are_those_of_the_truth() -> None:
    """A method of known values: the difference of two means, and a constant."""
    seen: list[float] = []

    def distance(out_scores: np.ndarray, in_scores: np.ndarray, delta: float) -> float:
        seen.append(float(in_scores.sum() - out_scores.sum()))
        return 100.0

    methods = {
        DEFAULT: all_methods()[DEFAULT],
        "far": Method(distance),
        "again": Method(distance, is_bound=False),
        "gaussian": Method(distance, gaussian=True),
    }
    study = power(methods, 3, [40], ["Laplace"]).set_index("method")
    assert seen[::2] == seen[1::2]
    assert len(set(seen)) == 3
    assert study.loc["far", ["audits", "above_truth", "above_default", "mean"]].tolist() == [
        3,
        3,
        3,
        100,
    ]
    assert study.loc[DEFAULT, "above_default"] == 0
    assert "gaussian" not in study.index  # Laplace scores are not Gaussian


@pytest.mark.filterwarnings("ignore")
def test_the_default_proves_more_than_jax_privacy_on_the_same_scores() -> None:
    pytest.importorskip("jax_privacy", reason="jax_privacy is not installed")
    methods = {DEFAULT: all_methods()[DEFAULT], **methods_of_others()}
    study = power(methods, 20, [200], ["Gaussian mu=0.5", "Gaussian mu=1.5"])
    for _, rows in study.groupby("mechanism"):
        means = rows.set_index("method")["mean"]
        peers = [name for name in means.index if name.startswith("jax_privacy") and name != GDP]
        assert len(peers) == 6
        assert means[DEFAULT] > means[peers].max()
