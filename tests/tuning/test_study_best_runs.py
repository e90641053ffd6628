"""Studies that release the best m of K runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from light_runs import noisy
from study_helpers import BASE, interrupted, plan_of, played, study

from audit import protocols, tuning
from audit.certificate import Certificate, model_hash


def released(best: Any) -> Any:
    return [best, *best.runners_up]


@pytest.mark.parametrize("count", [1, 3, 6])
def test_the_best_runs_are_released_in_order(count: int) -> None:
    plan = plan_of(f"best:{count}/fixed:6")
    scores = [noisy(plan.trial(5, i, plan.point(5, i))).score for i in range(6)]
    found = released(played(plan, 5))
    assert [one.score for one in found] == sorted(scores, reverse=True)[:count]
    seeds = [plan.trial(5, i, plan.point(5, i)).seed for i in np.argsort(scores)[::-1][:count]]
    assert [one.model for one in found] == seeds


def test_the_best_of_one_is_random_search() -> None:
    for key in range(20):
        one = played(plan_of("best:1/tnb:1,0.3"), key)
        assert one == played(plan_of("tnb:1,0.3"), key)


def test_fewer_than_m_runs_are_all_released_and_failed_runs_are_not() -> None:
    assert len(released(played(plan_of("best:4/fixed:2"), 3))) == 2

    def train(trial: Any, calls: Any = []) -> Any:  # noqa: B006 (counts the calls)
        calls.append(trial)
        if len(calls) % 2:
            raise RuntimeError("lost")
        return noisy(trial)

    assert len(released(played(plan_of("best:4/fixed:6"), 3, train))) == 3


@pytest.mark.parametrize("saved", [False, True])
def test_interrupted_study_releases_the_same_runs(tmp_path: Path, saved: bool) -> None:
    settings = {"protocol": "best:3/fixed:7", "seed": 4}
    through = study(**settings).run(noisy)
    files = {}
    if saved:
        files = {
            "save": lambda model, path: path.write_text(str(model)),
            "load": lambda path: int(path.read_text()),
        }
        calls: list[Any] = []

        def train(trial: Any) -> Any:
            if len(calls) == 5:
                raise KeyboardInterrupt
            calls.append(trial.seed)
            return noisy(trial)

        with pytest.raises(KeyboardInterrupt):
            study(folder=tmp_path / "s", **settings).run(train, **files)
        assert len(list((tmp_path / "s" / "models").iterdir())) == 3
        again = study(folder=tmp_path / "s", **settings).run(noisy, **files)
        assert not (tmp_path / "s").exists()
    else:
        *_, (again, _) = interrupted(tmp_path, 4, **settings)
    assert released(again) == released(through)


def test_workers_release_the_same_runs() -> None:
    settings = {"protocol": "best:3/fixed:7", "seed": 4}
    assert study(**settings).run(noisy, jobs=2) == study(**settings).run(noisy)


def test_certificate_of_the_best_runs() -> None:
    one = study(protocol="best:2/tnb:1,0.2", seed=3)
    best = one.run(noisy)
    certificate = one.certificate
    # The smaller of the region bound and the composition of all runs.
    bounds = tuning_bounds("best:2/tnb:1,0.2")
    assert certificate.numbers.epsilon == pytest.approx(min(bounds), rel=1e-6)
    assert "the best 2 runs of this tuning" in certificate.statement
    assert certificate.setting.released[0].startswith("the outputs of the best 2 runs")
    assert any("unless fewer than 2 are released" in words for words in certificate.void_if)
    assert certificate.model_hash == model_hash([one.model for one in released(best)])
    assert Certificate.from_dict(certificate.as_dict()).as_dict() == certificate.as_dict()


def tuning_bounds(spec: Any) -> Any:
    from audit.upper_bounds import all_upper_bounds

    rows = all_upper_bounds(BASE, protocols.parse_protocol(spec), 1e-5)
    return [one.epsilon for one in rows if one.claim.any_score]


def test_a_study_of_the_best_runs_costs_more_than_of_the_best_one() -> None:
    costs = [study(protocol=f"best:{m}/tnb:1,0.2").total_epsilon for m in (1, 2, 3)]
    assert costs == sorted(costs)
    assert costs[0] < costs[1] < costs[2]
    assert study(protocol="best:3/fixed:3").total_epsilon == pytest.approx(
        tuning.Study({"a": [1]}, "best:5/fixed:3", base=BASE, folder=None).total_epsilon
    )
