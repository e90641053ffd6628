"""Protocols: parsing, texts, expected numbers of runs and invalid parameters."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit import protocols, repetitions
from audit.protocols import (
    Adaptive,
    BestRuns,
    BudgetSchedule,
    Grid,
    NoisyMax,
    ProposeTestRelease,
    RandomSearch,
    RandomStopping,
    Subset,
    UntilAccepted,
)

chance = st.floats(1e-300, 1.0)
law = st.sampled_from(["tnb:0,0.01", "poisson:10", "two-point:0.01,100@50", "fixed:3"]).map(
    repetitions.parse_repetitions
)
any_protocol = st.one_of(
    st.builds(RandomSearch, law),
    st.builds(Grid, st.integers(1, 10**9), chance),
    st.builds(Adaptive, law, chance, st.floats(1.0, 1e6)),
    st.builds(Subset, law, st.floats(0.0, 1.0), st.sampled_from(["rest", "all"])),
    st.builds(UntilAccepted, chance),
    st.builds(RandomStopping, chance),
    st.builds(BudgetSchedule, st.lists(chance, min_size=1, max_size=5)),
    st.builds(NoisyMax, st.integers(1, 10**9), st.booleans(), st.integers(1, 50)),
    st.builds(BestRuns, law, st.integers(1, 100)),
    st.builds(ProposeTestRelease, law, st.floats(0, 9), st.floats(0, 0.5), st.floats(0, 0.5)),
)


@given(any_protocol)
def test_protocols_round_trip_through_their_text(protocol: Any) -> None:
    assert protocols.parse_protocol(protocol.spec) == protocol
    assert protocols.parse_protocol(protocol) is protocol


def test_a_distribution_of_k_is_random_search() -> None:
    law = repetitions.parse_repetitions("geometric:0.1")
    assert (
        protocols.parse_protocol(law)
        == protocols.parse_protocol("geometric:0.1")
        == RandomSearch(law)
    )
    assert protocols.parse_protocol("search", "geometric:0.1") == RandomSearch("geometric:0.1")


def test_expected_runs() -> None:
    assert protocols.parse_protocol("grid:100,0.25").mean_runs == 25.0
    assert protocols.parse_protocol("adaptive:0.5,2", "fixed:7").mean_runs == 7.0
    assert protocols.parse_protocol("until:0.1").mean_runs is None


@pytest.mark.parametrize(
    ("spec", "law", "message"),
    [
        ("gird:10", None, "did you mean 'grid'"),
        ("fixd:10", None, "two-point, fixed, got 'fixd'; did you mean 'fixed'"),
        ("grid", None, "CANDIDATES"),
        ("grid:2.5", None, "candidates must be a whole number"),
        ("grid:10,0", None, r"inclusion must be in \(0, 1\]"),
        ("grid:10", "tnb:0,0.1", "repetitions must not be given with protocol grid"),
        ("grid:10/tnb:0,0.1", None, "repetitions must not be given with protocol grid"),
        ("adaptive:0.5", None, "LOW,HIGH"),
        ("adaptive:1.5,2", None, r"low must be in \(0, 1\]"),
        ("adaptive:0.5,0.9", None, "high must be in"),
        ("subset:1.5", None, "sampling_rate must be in"),
        ("subset:0.5,some", None, "final must be one of rest, all"),
        ("until:0", None, r"acceptance must be in \(0, 1\]"),
        ("stopping:nan", None, r"stop must be in \(0, 1\]"),
        ("subset:0.1/tnb:0,0.1", "poisson:3", "repetitions must be given once"),
        ("schedule:", None, "FACTOR,FACTOR"),
        ("schedule:2,0", None, "noise must be in"),
        ("noisy-max:10,0", None, "rounds must be a whole number"),
        ("ptr:1,0.1", None, "EPSILON,DELTA,FAILURE"),
        (protocols.Grid, None, r"protocol must be a protocol, or one as text, got <class"),
    ],
)
def test_bad_protocols_are_one_line(spec: Any, law: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        protocols.parse_protocol(spec, law)
    assert "\n" not in str(caught.value)
