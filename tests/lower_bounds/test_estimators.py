"""The recommended bound and the tables of all bounds: inputs, directions, assumptions."""

import math

import numpy as np
import pytest
from simulated_scores import TNB, best_of, bound_of, bounds_of

from audit import lower_bounds
from audit.claims import facts_of_game, facts_of_tuning
from audit.protocols import RandomSearch

CASES: dict[str, tuple[list[float], list[float]]] = {
    "one trial": ([0.0], [1.0]),
    "constant": ([1.0] * 40, [1.0] * 40),
    "minus infinity": ([-math.inf] * 30, [-math.inf] * 30),
    "opposite direction": ([1.0] * 40, [0.0] * 40),
    "huge": ([1e308, -1e308] * 20, [1e308, -1e308] * 20),
}


@pytest.mark.filterwarnings("ignore:the bound is 0")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("direction", ["higher", "lower", "both"])
def test_uninformative_scores_give_zero(name: str, direction: str) -> None:
    without, with_record = CASES[name]
    bounds = bounds_of(without, with_record, protocol=TNB, mu=1.0, direction=direction)
    assert all(math.isfinite(b.epsilon) for b in bounds)
    valid = [b for b in bounds if b.valid and not b.name.startswith("lifted")]
    if name == "opposite direction" and direction != "higher":
        # Low scores indicate the record here.
        assert bounds[0].epsilon > 1.0
        assert bounds[0].direction == "lower"
    else:
        assert all(b.epsilon == 0.0 for b in valid)


def test_separated_scores_give_a_bound_near_the_limit_of_their_number() -> None:
    for trials in (20, 200, 2000):
        bound = bound_of([-math.inf] * trials, [math.inf] * trials)
        # The best test for separated scores spends all of alpha on P[all 2 n scores are correct].
        single = math.log(1.0 / (1.0 - 0.05 ** (0.5 / trials)) - 1.0)
        assert 0.75 * single - 0.5 < bound.epsilon < single
        assert (bound.false_positives, bound.false_negatives) == (0, 0)
    far = bound_of([0.0] * 50, [1.0] * 500)
    assert far.trials_without == 50
    assert far.trials_with == 500
    assert far.epsilon > bound_of([0.0] * 50, [1.0] * 50).epsilon


def test_testing_both_directions_costs_little_and_finds_either() -> None:
    rng = np.random.default_rng(3)
    low, high = rng.normal(size=500), rng.normal(2.0, size=500)
    one_way = bound_of(low, high)
    both = bound_of(low, high, direction="both")
    turned = bound_of(high, low, direction="both")
    assert 0.9 * one_way.epsilon < both.epsilon < one_way.epsilon
    assert (both.direction, turned.direction) == ("higher", "lower")
    # Negated scores in the opposite direction give the same bound.
    upside_down = bound_of(-low, -high, direction="lower")
    assert upside_down.epsilon == one_way.epsilon
    assert upside_down.threshold == -one_way.threshold
    with pytest.warns(UserWarning, match="check that out_scores are the trials without"):
        assert bound_of(high, low).epsilon == 0.0


def test_bound_depends_only_on_the_ranks_of_the_scores() -> None:
    rng = np.random.default_rng(4)
    low, high = rng.normal(size=400), rng.normal(1.0, size=300)
    first = bound_of(low, high)
    assert bound_of(rng.permutation(low), rng.permutation(high)) == first
    # A strictly increasing transformation of the scores does not change it either.
    assert bound_of(np.exp(low), np.exp(high)).epsilon == first.epsilon


def test_bound_decreases_with_confidence_delta_and_ties() -> None:
    rng = np.random.default_rng(5)
    low, high = rng.normal(size=400), rng.normal(1.5, size=400)
    values = [bound_of(low, high, confidence=c).epsilon for c in (0.5, 0.9, 0.999)]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[1] > values[2] > 0.0
    deltas = [bound_of(low, high, delta=d).epsilon for d in (0.0, 1e-4, 0.05)]
    assert deltas[0] >= deltas[1] > deltas[2]
    rounded = bound_of(np.round(low), np.round(high)).epsilon
    assert rounded < values[1] * 1.2


@pytest.mark.thorough
def test_mean_bound_exceeds_published_valid_bounds() -> None:
    """N(0,1) against N(1.5,1), 1000+1000 trials; the other packages prove at most 2.33."""
    rng = np.random.default_rng(6)
    bounds = [
        bound_of(rng.normal(size=1000), rng.normal(1.5, size=1000)).epsilon for _ in range(30)
    ]
    mean, error = np.mean(bounds), np.std(bounds) / math.sqrt(len(bounds))
    assert mean - 2.0 * error > 2.33


def test_invalid_input_raises_one_line() -> None:
    good = [0.0, 1.0]
    cases = [
        (
            ([0.0, math.nan, math.nan], good),
            {},
            "out_scores must not be NaN, got 2 NaN among 3",
        ),
        ((good, [[1.0]]), {}, r"in_scores must have one dimension, got shape \(1, 1\)"),
        ((good, ["a"]), {}, "in_scores must be a list of numbers"),
        ((good, np.ma.masked_less(good, 1)), {}, "in_scores must be a list of numbers, got masked"),
        ((good, good), {"delta": 1.0}, r"delta must be in \[0, 1\), got 1.0"),
        ((good, good), {"confidence": 1.0}, r"confidence must be in \(0, 1\), got 1.0"),
        ((good, good), {"direction": "up"}, "direction must be one of higher, lower, both"),
    ]
    for scores, options, message in cases:
        with pytest.raises(ValueError, match=message):
            bound_of(*scores, **options)
    with pytest.raises(ValueError, match=r"mu must be in \(0, 10000\), got -1"):
        bounds_of(good, good, mu=-1)
    with pytest.raises(ValueError, match="guesses must be a whole number in"):
        lower_bounds.one_run_bounds(good, [True, False], guesses=9)
    with pytest.raises(ValueError, match="included must be one true or false per score"):
        lower_bounds.one_run_bounds(good, good)


def test_numbers_beyond_the_arithmetic_raise_one_line() -> None:
    for confidence in (1.0 - 1e-12, 1.0 - 1e-10):
        with pytest.raises(ValueError, match="confidence must be at most 1 - 1e-09, the limit"):
            bound_of([0.0], [1.0], confidence=confidence)
    with pytest.raises(ValueError, match="out_scores must be numbers that a float can hold"):
        bound_of([10**400], [1.0])
    sure = bound_of([0.0] * 500, [1.0] * 500, confidence=1.0 - 1e-8)
    assert 2.0 < sure.epsilon < bound_of([0.0] * 500, [1.0] * 500).epsilon


def test_every_bound_states_its_assumptions() -> None:
    rng = np.random.default_rng(7)
    low, high = best_of(TNB, rng, 200), 1.0 + best_of(TNB, rng, 200)
    bounds = bounds_of(low, high, protocol=TNB, mu=1.0)
    assert len({b.key for b in bounds}) == len(bounds)
    assert bounds[0] == bound_of(low, high)
    assert bounds[0].valid
    labels = {b.key: b.label for b in bounds}
    assert labels["gaussian-curve:fixed"] == "not valid for tuned outputs"
    assert labels["clopper-pearson:max-grid"] == "uncorrected"
    assert labels["lifted-curve:fixed"] == "valid"
    assert all(b.valid == (b.label == "valid") and b.assumes and b.source for b in bounds)
    untuned = {b.key: b for b in bounds_of(low, high, mu=1.0)}
    assert untuned["gaussian-curve:fixed"].label == "valid"
    assert not any(key.startswith("lifted") for key in untuned)


def test_estimators_are_statistics_with_rules() -> None:
    rng = np.random.default_rng(70)
    low, high = best_of(TNB, rng, 200), 1.0 + best_of(TNB, rng, 200)
    by_key = {b.key: b for b in bounds_of(low, high, protocol="tnb:0,0.01")}
    one = lower_bounds.ClopperPearson(rule=lower_bounds.MaximumOverGrid())
    assert one == lower_bounds.ClopperPearson(rule=lower_bounds.MaximumOverGrid())
    assert one(low, high) == by_key["clopper-pearson:max-grid"]
    lifted = lower_bounds.LiftedCurve("tnb:0,0.01", rule=lower_bounds.RankSum())
    assert lifted(low, high) == by_key["lifted-curve:rank-sum"]
    turned = lower_bounds.ClopperPearson(rule=lower_bounds.FixedThreshold(3.0))
    upside_down = turned.mirrored(-low, -high, direction="lower")
    assert upside_down.epsilon == turned(low, high).epsilon
    # The counts of a user-defined bound default to 0.
    own = lower_bounds.LowerBound("own", "rule", 1.0, 0.95, lifted.claim, upside_down.verdict)
    assert (own.trials_without, own.trials_with) == (0, 0)


def test_labels_follow_from_the_known_facts() -> None:
    rng = np.random.default_rng(71)
    low, high = best_of(TNB, rng, 50), 1.0 + best_of(TNB, rng, 50)
    settings = {"empty_training_set": True, "full_batch": True, "one_plain_candidate": True}

    def labels(score: str, **different: bool) -> dict[str, str]:
        facts = facts_of_game(RandomSearch(TNB), score, "dirac", **(settings | different))
        bounds = bounds_of(low, high, protocol=TNB, mu=1.0, known=facts)
        return {bound.key: bound.label for bound in bounds}

    assert labels("first-coordinate")["lifted-curve:fixed"] == "valid"
    # With a training set the statistic is not N(b mu, 1) in a single run.
    trained = labels("first-coordinate", empty_training_set=False)
    assert trained["lifted-curve:fixed"] == "not valid for this statistic"
    assert trained["scan:scan"] == trained["clopper-pearson:split"] == "valid"
    assert labels("val-loss")["lifted-curve:split"] == "not valid for this score"
    assert labels("val-loss")["lifted-curve:max-grid"] == "uncorrected"
    assert labels("val-loss")["gaussian-curve:fixed"] == "not valid for tuned outputs"
    unknown = facts_of_tuning(RandomSearch(TNB))
    dependent = lower_bounds.ClopperPearson()(low, high, known=unknown)
    assert dependent.verdict.missing == ("independent trials",)


def test_swapped_scores_are_reported() -> None:
    rng = np.random.default_rng(72)
    low, high = rng.normal(size=300), rng.normal(2.0, size=300)
    for function in (bound_of, bounds_of):
        with pytest.warns(UserWarning, match="epsilon >=") as caught:
            function(high, low)
        (warning,) = caught
        message = str(warning.message)
        assert "\n" not in message
        assert "out_scores are the trials without the record and in_scores those with it" in message
        assert warning.filename == __file__.replace("test_estimators", "simulated_scores")
    with pytest.warns(UserWarning, match="direction='lower' is right"):
        bound_of(low, high, direction="lower")
    # No report (here an error) for correct scores, and for uninformative scores with these seeds:
    # a false report has a probability of at most 1e-3 for each.
    assert bound_of(low, high).epsilon > 1.0
    for _ in range(20):
        bound_of(rng.normal(size=300), rng.normal(size=300))


@pytest.mark.parametrize("name", ["lower_bound", "all_lower_bounds"])
def test_positional_scores_raise_one_line(name: str) -> None:
    expected = (
        rf"{name} takes keyword arguments only, got 2 positional ones: pass out_scores=\.\.\."
    )
    with pytest.raises(TypeError, match=expected) as caught:
        getattr(lower_bounds, name)([0.0], [1.0])
    assert "\n" not in str(caught.value)


def test_other_protocols_than_random_search_have_no_lifted_curve() -> None:
    rng = np.random.default_rng(73)
    bounds = bounds_of(rng.normal(size=50), rng.normal(1.0, size=50), protocol="grid:3")
    labels = {bound.key: bound.label for bound in bounds}
    assert not any(key.startswith("lifted") for key in labels)
    assert labels["scan:scan"] == "valid"
    assert labels["gaussian-curve:split"] == "not valid for tuned outputs"
    with pytest.raises(ValueError, match="split_top requires a random search, threshold"):
        bounds_of([0.0], [1.0], protocol="grid:3", split_top=1.0, threshold=0.0)
