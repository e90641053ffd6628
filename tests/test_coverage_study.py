"""A small coverage study with fixed seeds: whatever claims to hold, holds.

Each cell has 60 trials a side and 10 games. A row fails if its number of violations is beyond what
a 5 % error gives with probability 1e-2 over all rows together (Bonferroni), and so does an
estimator in all its rows; a study of correct estimators fails two times in a hundred at most; seeds
are fixed, so always or never.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import special

from audit import coverage_study, protocols
from audit.attacks import AdaptiveAttack
from audit.lower_bounds import AcceptedTailsCurve, FixedThreshold, WorstOrderCurve
from audit.protocols import Adaptive

SIZES = {60: 10}
pytestmark = pytest.mark.usefixtures("quick_reports")


def test_no_estimator_that_claims_to_hold_is_above_five_percent() -> None:
    names = [game.name for game in coverage_study.games(60) if game.protocol is None]
    study = pd.concat(coverage_study.run(SIZES, seed=5, only=names), ignore_index=True)
    assert len(study["mechanism"].unique()) == 11
    assert study["claimed"].sum() > 80
    assert len(coverage_study.failures(study)) == 0
    assert len(coverage_study.failures(coverage_study.together(study))) == 0
    # The check would see an estimator that does not hold: on randomised response and Laplace.
    pretended = study.assign(claimed=study["rule"] == "max-grid")
    assert "gaussian-curve" in set(coverage_study.failures(pretended)["estimator"])
    truth = study.groupby("mechanism")["truth"].first()
    assert truth["pure noise"] == 0.0
    assert truth["leaky response"] == 1.0
    assert truth["randomised response"] == pytest.approx(1.0, abs=1e-4)
    assert truth["Gaussian mu=1.5"] == pytest.approx(7.0514, abs=1e-3)
    assert truth["tuned tnb:0,0.01 base 1"] == pytest.approx(1.089, rel=3e-3)


def test_every_protocol_is_played_and_no_claim_fails() -> None:
    # 10 games each: enough to see a claim that fails in a third of them, by all its mechanisms
    # together, and that what cannot hold claims not.
    names = [game.name for game in coverage_study.games(60) if game.protocol is not None]
    assert {name.split(":")[0] for name in names} == {
        "grid", "adaptive", "subset", "until", "stopping"
    }  # fmt: skip
    study = pd.concat(coverage_study.run({60: 10}, seed=5, only=names), ignore_index=True)
    assert len(coverage_study.failures(study)) == 0
    assert len(coverage_study.failures(coverage_study.together(study))) == 0
    claimed = study[study["claimed"]]
    assert set(claimed["mechanism"]) == set(names)
    assert not study[study["estimator"] == "gaussian-curve"]["claimed"].any()
    curves = claimed[claimed["estimator"] == "accepted-tails-curve"]
    assert set(curves["mechanism"]) == {"until:0.1", "stopping:0.1"}


def test_samplers_have_the_law_they_claim() -> None:
    """P[output <= threshold] by play and by formula: 4 standard deviations, one in 16,000 each."""
    trials = 40_000
    rng = np.random.default_rng(6)
    for game in coverage_study.games(1_000):
        low, high = game.sample(rng, trials)
        if game.name.startswith("worst order"):
            assert game.repetitions is not None
            assert game.threshold is not None
            assert game.split_top is not None
            rule = FixedThreshold(game.threshold)
            curve = WorstOrderCurve(game.repetitions, game.split_top, rule=rule)
            rates = [curve.rate_below(0.0), curve.rate_below(0.8638796)]
        elif game.repetitions is not None:
            assert game.mu is not None
            points = special.ndtr(2.0 - np.array([0.0, game.mu]))
            rates = game.repetitions.phi(points).tolist()
        elif game.own:
            (own,) = game.own
            assert isinstance(own, AcceptedTailsCurve)
            rates = [own.rate_below(0.0), own.rate_below(0.7)]
        elif game.name == "grid:10":
            rates = special.ndtr(2.0 - np.array([0.0, 1.0])) ** 10
        elif game.name.startswith("adaptive"):
            protocol = protocols.parse_protocol(game.name)
            assert isinstance(protocol, Adaptive)
            attack = AdaptiveAttack(0.7, protocol, (3.0, 1.0), (-2.0, -3.0), (-0.5, 1.0), 0.5)
            rates = attack.chances()
        else:
            continue
        at = game.threshold if game.threshold is not None else 2.0
        for scores, rate in [(low, rates[0]), (high, rates[1])]:
            error = 4.0 * np.sqrt(rate * (1.0 - rate) / trials)
            assert abs(np.mean(scores <= at) - rate) < error


def test_the_command_writes_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--trials", "50", "--games", "2", "--mechanisms", "pure noise", "Laplace"]
    assert coverage_study.main([*arguments, "--out", str(tmp_path)]) == 0
    written = pd.read_csv(tmp_path / "coverage.csv")
    assert set(written["mechanism"]) == {"pure noise", "Laplace"}
    page = (tmp_path / "coverage.md").read_text()
    assert "50 + 50 trials, 2 games" in page
    assert "| scan |" in page
    assert coverage_study.main(["--mechanisms", "Laplacian", "--out", str(tmp_path)]) == 2
    assert "did you mean 'Laplace'?" in capsys.readouterr().err
    for wrong in (["--trials", "0"], ["--trials", "1"], ["--seed", "-1"], ["--games", "0"]):
        assert coverage_study.main([*wrong, "--out", str(tmp_path)]) == 2


def test_the_committed_study_is_complete_and_clean() -> None:
    path = Path(__file__).parent.parent / "docs" / "coverage.csv"
    committed = pd.read_csv(path)
    assert len(coverage_study.failures(committed)) == 0
    assert len(coverage_study.failures(coverage_study.together(committed))) == 0
    assert set(committed["trials"]) == set(coverage_study.STUDY)
    expected = committed.groupby("trials")["games"].first().to_dict()
    assert expected == coverage_study.STUDY
