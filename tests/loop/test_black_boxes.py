"""Functions that are not watched: leaks that need no statistics, and functions without one."""

from typing import Any

import numpy as np
import pytest

import audit
from audit import loop
from benchmarks.dp_recorder import VIOLATIONS
from benchmarks.training_loops import loops
from benchmarks.training_loops.loops import Loop

FEATURES = np.linspace(-1.0, 1.0, 20)[:, None]
LABELS = np.arange(20) % 3


# NaN passes most clipping, that of Opacus too: records must be finite, and the test assumes it.
NEED_AN_ATTACK = ("budget spent twice", "sum of values that are not clipped")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in NEED_AN_ATTACK else ())
        for name in VIOLATIONS
        if "NaN" not in name
    ],
)
def test_violations_that_dp_recorder_lists_are_found(name: str) -> None:
    result = audit.check(VIOLATIONS[name], (FEATURES, LABELS), jobs=1)
    assert result.exit_code == 1


def noisy_log_of_the_count(records: Any, candidate: Any, seed: int, watch: Any) -> float:
    """The exponential of a noisy count: on neighbours its ratio is e for every seed."""
    watch.claim(1.0)
    return float(np.exp(len(records.labels) + np.random.default_rng(seed).laplace()))


def noisy_mean(records: Any, candidate: Any, seed: int, watch: Any) -> float:
    """A noisy sum divided by a noisy count."""
    watch.claim(2.0)
    random = np.random.default_rng(seed)
    total = np.clip(np.asarray(records.features, float), -1, 1).sum() + random.laplace()
    return float(total / max(len(records.labels) + random.laplace(), 1.0))


def counts_of_public_classes(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A histogram over classes that are known beforehand."""
    watch.claim(1.0)
    counts = np.bincount(np.asarray(records.labels), minlength=3)
    return counts + np.random.default_rng(seed).laplace(size=3)


class Model:
    """Predicts a constant, and numbers its own calls in the name of an attribute."""

    calls = 0

    def __init__(self, constant: float) -> None:
        Model.calls += 1
        self.constant_ = constant
        setattr(self, f"call_{Model.calls}_", 1.5)

    def predict(self, features: Any) -> Any:
        """The constant, [n]."""
        return np.full(len(features), self.constant_)


def with_a_counter_of_calls(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """A noisy mean, and a state of the process that has nothing to do with the records."""
    return Model(noisy_mean(records, candidate, seed, watch))


@pytest.mark.slow
@pytest.mark.parametrize(
    "train",
    [noisy_log_of_the_count, noisy_mean, counts_of_public_classes, with_a_counter_of_calls],
)
def test_private_functions_are_not_accused(train: Any) -> None:
    result = audit.check(train, (FEATURES, LABELS), jobs=1, trials=200)
    assert result.exit_code == 0, str(result)


def randomised_response(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """One answer for each record, so that the number of answers is the number of records."""
    watch.claim(float(np.log(3)))
    random = np.random.default_rng(seed)
    own = random.random(len(records)) < 0.5
    return np.where(own, records.labels % 2, random.integers(2, size=len(records)))


@pytest.mark.parametrize(
    "train", [VIOLATIONS["the number of records taken as public"], randomised_response]
)
def test_a_public_number_of_records_is_no_leak_and_not_attacked(train: Any) -> None:
    """The attack would compare n records with n - 1: a bound of 4.2 against a claim of log 3."""
    canary = FEATURES[0], 1
    result = audit.check(train, (FEATURES, LABELS), canary, jobs=1, relation="zero-out")
    assert result.exit_code == 2, str(result)
    assert "it would only detect the number of records" in str(result)


@pytest.mark.slow
def test_replace_one_exchanges_a_record_and_keeps_their_number() -> None:
    sizes, lasts = set(), set()

    def seen(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        sizes.add(len(records))
        lasts.add(float(records.features[-1, 0]))
        return randomised_response(records, candidate, seed, watch)

    data, relation = (FEATURES, LABELS), "replace-one"
    audit.check(seen, data, ([7.0], 1), premises=False, trials=80, jobs=1, relation=relation)
    assert sizes == {20}
    assert lasts == {7.0, float(FEATURES[-1, 0])}
    # The exact epsilon is log 3 = 1.099.
    result = audit.check(randomised_response, data, jobs=1, relation=relation)
    assert result.exit_code == 0, str(result)
    assert 0.5 < result.epsilon < np.log(3)
    assert audit.check(randomised_response, data, claim=0.5, jobs=1, relation=relation).leaks
    with pytest.raises(audit.AuditError, match="premises must be True where train calls watch"):
        audit.check(Loop(), loops.dense(), premises=False, trials=2, jobs=1, relation=relation)
    with pytest.raises(audit.AuditError, match="the record that is replaced, got none"):
        audit.check(noisy_mean, (FEATURES[:0], LABELS[:0]), ([7.0], 1), relation=relation, jobs=1)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "leaks"), [(2.0, False), (1.0, True)])
def test_under_replace_one_both_records_count(width: float, leaks: bool) -> None:
    """The mean of values in [-1, 1] changes by up to 2 / n, and not by 1 / n."""

    def mean(records: Any, candidate: Any, seed: int, watch: Any) -> float:
        watch.claim(1.0)
        noise = np.random.default_rng(seed).laplace(scale=width / len(records))
        return float(np.clip(records.features, -1, 1).mean() + noise)

    result = audit.check(mean, (FEATURES, LABELS), jobs=1, relation="replace-one")
    assert result.leaks == leaks, str(result)


def test_a_record_that_lowers_a_number_is_detected() -> None:
    def minus_the_sum(records: Any, candidate: Any, seed: int, watch: Any) -> float:
        watch.claim(1.0)
        return float(-records.features.sum() + np.random.default_rng(seed).normal())

    result = audit.check(minus_the_sum, (FEATURES, LABELS), (np.array([30.0]), 0), trials=400)
    assert result.exit_code == 1
    assert result.shown_by == "learned"


def two_values(epsilon: float, first: float, second: float) -> Any:
    """Randomised response about the sign of the last record, by one of two public values."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> float:
        watch.claim(epsilon)
        kept = np.random.default_rng(seed).random() < 1 / (1 + np.exp(-epsilon))
        return first if kept == (records.features[-1, 0] > 0) else second

    return train


def geometric_counts(epsilon: float) -> Any:
    """Counts with noise on whole numbers, most of which is 0 for a large epsilon."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        watch.claim(epsilon)
        random, p = np.random.default_rng(seed), 1 - np.exp(-epsilon)
        counts = np.bincount(np.asarray(records.labels), minlength=3)
        return counts + random.geometric(p, size=3) - random.geometric(p, size=3)

    return train


def classes_with_many_records(epsilon: float) -> Any:
    """The noisy counts above a limit; each record adds to one count."""

    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        watch.claim(epsilon)
        noise = np.random.default_rng(seed).laplace(scale=1 / epsilon, size=3)
        counts = np.bincount(np.asarray(records.labels), minlength=3) + noise
        return {f"class {i}": float(count) for i, count in enumerate(counts) if count > 6.5}

    return train


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("train", "relation"),
    [
        (two_values(8.0, 0, 1), "replace-one"),
        (two_values(3.0, -1.105, 1.105), "replace-one"),
        (geometric_counts(8.0), "add-remove"),
        (classes_with_many_records(8.0), "add-remove"),
    ],
    ids=["whole values", "fractions", "counts", "classes"],
)
def test_noise_that_few_seeds_do_not_show_is_not_taken_for_none(train: Any, relation: str) -> None:
    # Four seeds agree with probability 0.68 or more, and differ for a neighbour.
    result = audit.check(train, (FEATURES, LABELS), jobs=1, relation=relation)
    assert result.exit_code == 0, str(result)


@pytest.mark.parametrize("value", [lambda count: count, lambda count: f"{count} records"])
def test_an_exact_count_is_found_among_noisy_numbers(value: Any) -> None:
    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        watch.claim(2.0)
        count = int((np.asarray(records.labels) == 1).sum())
        return [np.random.default_rng(seed).normal(), value(count)]

    result = audit.check(train, (FEATURES, LABELS), jobs=1)
    assert result.exit_code == 1
    assert result.premises is not None
    assert "no noise protects the record" in result.premises.findings[0].message


@pytest.mark.filterwarnings("error")
def test_features_at_the_end_of_their_range_are_answered_or_refused() -> None:
    def noisy_sum(records: Any, candidate: Any, seed: int, watch: Any) -> float:
        return float(
            np.clip(records.features, -1, 1).sum() + np.random.default_rng(seed).normal(scale=9.0)
        )

    for kind, size in ((np.float16, 6e4), (np.float32, 3e38), (np.float64, 1e99)):
        features = np.full((20, 2), size, kind)
        assert audit.check(noisy_sum, (features, LABELS), claim=5.0, trials=20, jobs=1)
    with pytest.raises(audit.AuditError, match=r"at most 1e\+100 .* features of size 1.7e\+308"):
        audit.check(noisy_sum, (np.full((20, 2), -1.7e308), LABELS), claim=5.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("score", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_one_line(score: float) -> None:
    with pytest.raises(
        audit.AuditError, match="must release finite numbers, got none in 20 trials"
    ):
        audit.check(lambda *_: score, (FEATURES, LABELS), trials=20, jobs=1)


def test_a_leak_is_stated_with_digits_that_show_it() -> None:
    shown = {"epsilon": 1.2, "shown_by": "score"}
    found = loop.CheckResult(1.0, 1e-5, 0.95, proven=1.00081, **shown)
    assert found.exit_code == 1
    assert found.words.endswith("(by score), and 1.0008 with 99.99 % confidence (0 trials)")
    by_chance = loop.CheckResult(1.0, 1e-5, 0.95, proven=0.9, trials=1000, **shown)
    assert by_chance.exit_code == 0
    assert by_chance.words.startswith("claims (1, 1e-05); no leak proven; an attack shows at least")
    assert "which exceeds the claim, as in up to 5 % of the checks of correct" in by_chance.words
    assert by_chance.words.endswith("1000 trials show 0.9: play more trials (e.g. 4000)")
