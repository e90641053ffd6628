"""Studies that increase the budget along a schedule until a run is accepted."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from light_runs import noisy
from scipy import stats
from study_helpers import study

from audit import accounting, tuning
from audit.accounting.dpsgd import DpSgd
from audit.accounting.mechanism import GaussianMechanism
from audit.certificate import Certificate
from audit.upper_bounds import schedule_ex_post
from audit.upper_bounds.until_accepted import gaussian_schedule_ex_post

ONE = accounting.GaussianMechanism(1.0)
SAMPLED = accounting.DpSgd(4.0, 100, 0.1)
DELTA = 1e-5


def schedule(spec: Any, base: Any = ONE, **settings: Any) -> Any:
    return study(protocol=f"schedule:{spec}", base=base, **settings)


def accept_step(step: Any) -> Any:
    """An `accept` for the run of one step, which is recognised by its noise."""
    return lambda trial: tuning.Outcome(float(np.isclose(trial.base.mu, step)), trial.seed)


def good(outcome: Any) -> Any:
    return outcome.score > 0.5


@pytest.mark.parametrize("base", [ONE, SAMPLED])
def test_one_step_costs_one_run(base: DpSgd | GaussianMechanism) -> None:
    one = schedule("1", base)
    assert one.total_epsilon == pytest.approx(base.epsilon(DELTA), rel=1e-6)
    assert schedule_ex_post(base, one.protocol, DELTA) == pytest.approx(
        (base.epsilon(DELTA),), rel=1e-6
    )
    half = accounting.GaussianMechanism(0.5)
    assert schedule("2").total_epsilon == pytest.approx(half.epsilon(DELTA), rel=1e-6)


def test_steps_that_reveal_nothing_cost_nothing() -> None:
    # A step with 5,000 times the noise reveals nothing.
    alone = ONE.epsilon(DELTA)
    assert alone <= schedule("5000,5000,1").total_epsilon <= alone + 2e-3
    assert schedule_ex_post(ONE, schedule("5000,1").protocol, DELTA)[1] <= ONE.epsilon(
        DELTA / 2
    ) * (1 + 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("base", [ONE, SAMPLED])
@pytest.mark.parametrize("spec", ["4,2,1", "2,2", "1,3"])
def test_no_schedule_costs_more_than_its_composition_or_less_than_its_largest_step(
    base: DpSgd | GaussianMechanism, spec: str
) -> None:
    one = schedule(spec, base)
    steps = [accounting.scale_noise(base, factor) for factor in one.protocol.noise]
    together = accounting.Composition(tuple(steps)).epsilon(DELTA)
    most = max(step.epsilon(DELTA) for step in steps)
    assert most <= one.total_epsilon * (1 + 1e-9) <= together * (1 + 1e-8)
    found = schedule_ex_post(base, one.protocol, DELTA)
    for last, epsilon in enumerate(found):
        # It is possible that only one given step can be accepted.
        assert steps[last].epsilon(DELTA / len(steps)) <= epsilon * (1 + 1e-6)
    if base is ONE:
        assert found == pytest.approx(
            gaussian_schedule_ex_post([step.mu for step in steps], DELTA), rel=1e-6
        )
        assert one.total_epsilon < together


@pytest.mark.parametrize("step", [0, 1, 2])
def test_the_first_accepted_step_is_released_with_its_ex_post_cost(step: int) -> None:
    mu = (0.25, 0.5, 1.0)[step]
    seen = []
    one = schedule("4,2,1")
    best = one.run(lambda trial: seen.append(trial.base.mu) or accept_step(mu)(trial), accept=good)
    assert seen == [0.25, 0.5, 1.0][: step + 1]  # nothing runs after it
    assert best.step == step
    assert one.ex_post_epsilon == schedule_ex_post(ONE, one.protocol, DELTA)[step]
    assert one.total_epsilon == pytest.approx(4.83823, abs=1e-4)


def test_nothing_is_released_if_no_step_is_accepted() -> None:
    seen = []
    one = schedule("4,2,1")
    with pytest.warns(UserWarning, match="no candidate was chosen"):
        best = one.run(
            lambda trial: seen.append(1) or tuning.Outcome(0.0), accept=good, rehearse=False
        )
    assert best == tuning.Best()
    assert len(seen) == 3
    with pytest.raises(ValueError, match="ex_post_epsilon needs an accepted run"):
        one.ex_post_epsilon  # noqa: B018
    with pytest.raises(ValueError, match="protocol must be a schedule"):
        study().ex_post_epsilon  # noqa: B018


def test_a_private_test_has_the_noise_of_its_step() -> None:
    private = tuning.Private(noise_std=3.0, sensitivity=1.0)
    one = schedule("4,1", scored_on=private)
    plan = one._plan()
    noise = np.array([[plan.noise(key, index) for index in (0, 1)] for key in range(400)])
    # Each of the two tests fails in one of 10^4 correct programs; the seeds are fixed.
    assert stats.kstest(noise[:, 0], "norm", (0.0, 12.0)).pvalue > 1e-4
    assert stats.kstest(noise[:, 1], "norm", (0.0, 3.0)).pvalue > 1e-4
    shared = schedule("4,1", scored_on=tuning.Private(1.0, 1.0, disjoint=False))
    expected = schedule("4,1", accounting.GaussianMechanism(np.sqrt(2.0)))
    assert shared.total_epsilon == pytest.approx(expected.total_epsilon, rel=1e-9)


@pytest.mark.parametrize("until", [1, 2])
def test_an_interrupted_schedule_continues_with_the_same_draws(tmp_path: Path, until: int) -> None:
    settings = {"protocol": "schedule:4,3,2,1", "base": ONE, "seed": 9}
    through = []
    train = accept_step(1.0)
    best = study(**settings).run(
        lambda trial: through.append(trial.seed) or train(trial), accept=good
    )
    done, found = [], None
    while found is None:
        calls: list[Any] = []

        def killed(trial: Any, calls: Any = calls) -> Any:
            if len(calls) == until:
                raise KeyboardInterrupt
            calls.append(trial.seed)
            return train(trial)

        with contextlib.suppress(KeyboardInterrupt):
            found = study(folder=tmp_path / "s", **settings).run(killed, accept=good)
        done += calls
    assert found == best
    assert best.step == 3
    assert done[:4] == through
    assert set(done[4:]) <= {through[-1]}  # the winner may be retrained


def test_the_noise_of_the_schedule_satisfies_the_budget() -> None:
    one = schedule("3,1", None, epsilon=2.0, steps=50)
    assert 1.99 < one.total_epsilon <= 2.0
    assert one.rehearsal().noise_multiplier == pytest.approx(3.0 * one.noise_multiplier)


def test_less_noise_than_the_step_requires_ends_the_study() -> None:
    class Recorded:
        history = ((4.0, 0.1, 100),)

    def train(trial: Any) -> Any:
        trial.check(Recorded())
        return tuning.Outcome(0.0)

    with pytest.raises(tuning.StudyAborted, match=r"noise_multiplier must be at least 8\.0"):
        schedule("2,1", SAMPLED).run(train, accept=good)


@pytest.mark.thorough
def test_certificate_of_a_schedule() -> None:
    one = schedule("4,2,1", scored_on=tuning.Private(1.0, 0.1))
    one.run(accept_step(1.0), accept=lambda outcome: True)
    certificate = one.certificate
    assert certificate.numbers.epsilon == pytest.approx(one.total_epsilon, rel=1e-6)
    words = {condition.name: condition.words for condition in certificate.conditions}
    assert "depends on its output, its score and public records alone" in words["acceptance"]
    assert "one run, with the stated multiple of the noise" in words["number_of_runs"]
    assert "scaled as that of training" in words["score_noise"]
    assert "its step" in certificate.setting.released[0]
    assert Certificate.from_dict(certificate.as_dict()).as_dict() == certificate.as_dict()


def test_a_schedule_needs_accept_and_one_job() -> None:
    with pytest.raises(ValueError, match="accept must be given with protocol schedule"):
        schedule("2,1").run(noisy)
    with pytest.raises(ValueError, match="jobs must be 1"):
        schedule("2,1").run(noisy, accept=good, jobs=2)
    with pytest.raises(ValueError, match="noise must be in"):
        schedule("2,0")
