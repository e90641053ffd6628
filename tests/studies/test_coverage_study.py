"""A small coverage study with fixed seeds: every valid estimator passes its tests.

Each row has 60 trials per side and 10 audits. The single rows, and the rows merged by estimator,
are tested with a false alarm of 1 % each, so a study of correct estimators fails with probability
at most 2 %. Seeds are fixed, so the tests always pass or always fail.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import special

from audit import console, coverage_study, protocols
from audit.attacks import AdaptiveAttack
from audit.lower_bounds import FixedThreshold, WorstOrderCurve
from audit.protocols import Adaptive
from studies.accepted_tails import AcceptedTailsCurve
from studies.coverage.analysis import failures, merge_mechanisms
from studies.coverage.mechanisms import mechanisms
from studies.coverage.page import coverage_page, more_audits_page
from studies.coverage.simulation import AUDITS, simulate_study

SMALL = {60: 10}
pytestmark = pytest.mark.usefixtures("quick_reports")


def test_no_valid_estimator_errs_in_more_than_five_percent() -> None:
    names = [m.name for m in mechanisms(60) if m.protocol is None]
    study = pd.concat(simulate_study(SMALL, seed=5, only=names), ignore_index=True)
    assert len(study["mechanism"].unique()) == 11
    assert study["claimed"].sum() > 60
    assert len(failures(study)) == 0
    assert len(failures(merge_mechanisms(study))) == 0
    # The test detects estimators that are not valid, here on randomised response and Laplace.
    mislabelled = study.assign(claimed=study["rule"] == "max-grid")
    assert "gaussian-curve" in set(failures(mislabelled)["estimator"])
    epsilons = study.groupby("mechanism")["truth"].first()
    assert epsilons["pure noise"] == 0.0
    assert epsilons["leaky response"] == 1.0
    assert epsilons["randomised response"] == pytest.approx(1.0, abs=1e-4)
    assert epsilons["Gaussian mu=1.5"] == pytest.approx(7.0514, abs=1e-3)
    assert epsilons["tuned tnb:0,0.01 base 1"] == pytest.approx(1.089, rel=3e-3)


def test_every_protocol_is_simulated_and_no_valid_estimator_fails() -> None:
    # 10 audits per mechanism detect an estimator that errs in a third of them.
    names = [m.name for m in mechanisms(60) if m.protocol is not None]
    assert {name.split(":")[0] for name in names} == {
        "grid", "adaptive", "subset", "until", "stopping"
    }  # fmt: skip
    study = pd.concat(simulate_study(SMALL, seed=5, only=names), ignore_index=True)
    assert len(failures(study)) == 0
    assert len(failures(merge_mechanisms(study))) == 0
    claimed = study[study["claimed"]]
    assert set(claimed["mechanism"]) == set(names)
    assert not study[study["estimator"] == "gaussian-curve"]["claimed"].any()
    curves = claimed[claimed["estimator"] == "accepted-tails-curve"]
    assert set(curves["mechanism"]) == {"until:0.1", "stopping:0.1"}


def test_samplers_have_the_stated_distribution() -> None:
    """P[output <= threshold] by simulation and by formula: 4 standard deviations, 6e-5 each."""
    trials = 40_000
    rng = np.random.default_rng(6)
    for mechanism in mechanisms(1_000):
        low, high = mechanism.sample(rng, trials)
        if mechanism.name.startswith("worst order"):
            assert mechanism.repetitions is not None
            assert mechanism.threshold is not None
            assert mechanism.split_top is not None
            rule = FixedThreshold(mechanism.threshold)
            curve = WorstOrderCurve(mechanism.repetitions, mechanism.split_top, rule=rule)
            rates = [curve.rate_below(0.0), curve.rate_below(0.8638796)]
        elif mechanism.repetitions is not None:
            assert mechanism.mu is not None
            points = special.ndtr(2.0 - np.array([0.0, mechanism.mu]))
            rates = mechanism.repetitions.phi(points).tolist()
        elif mechanism.own_estimators:
            (own,) = mechanism.own_estimators
            assert isinstance(own, AcceptedTailsCurve)
            rates = [own.rate_below(0.0), own.rate_below(0.7)]
        elif mechanism.name == "grid:10":
            rates = special.ndtr(2.0 - np.array([0.0, 1.0])) ** 10
        elif mechanism.name.startswith("adaptive"):
            protocol = protocols.parse_protocol(mechanism.name)
            assert isinstance(protocol, Adaptive)
            attack = AdaptiveAttack(0.7, protocol, (3.0, 1.0), (-2.0, -3.0), (-0.5, 1.0), 0.5)
            rates = attack.chances()
        else:
            continue
        at = mechanism.threshold if mechanism.threshold is not None else 2.0
        for scores, rate in [(low, rates[0]), (high, rates[1])]:
            error = 4.0 * np.sqrt(rate * (1.0 - rate) / trials)
            assert abs(np.mean(scores <= at) - rate) < error


def test_command_writes_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--trials", "50", "--audits", "2", "--mechanisms", "pure noise", "Laplace"]
    assert coverage_study.main([*arguments, "--out", str(tmp_path)]) == 0
    written = pd.read_csv(tmp_path / "coverage.csv")
    assert set(written["mechanism"]) == {"pure noise", "Laplace"}
    assert coverage_study.main([*arguments, "--jobs", "2", "--out", str(tmp_path / "2")]) == 0
    again = pd.read_csv(tmp_path / "2" / "coverage.csv")
    # Tests simulate fewer audits of the rank sum, but not in other processes.
    same = written.drop(columns="milliseconds").query("rule != 'rank-sum'")
    pd.testing.assert_frame_equal(again[same.columns].query("rule != 'rank-sum'"), same)
    page = (tmp_path / "coverage.md").read_text()
    assert "2 audits with 50 + 50 trials." in page
    assert "| scan |" in page
    assert coverage_study.main(["--mechanisms", "Laplacian", "--out", str(tmp_path)]) == 2
    assert "did you mean 'Laplace'?" in capsys.readouterr().err
    for wrong in (
        ["--trials", "0"],
        ["--trials", "1"],
        ["--seed", "-1"],
        ["--audits", "0"],
        ["--jobs", "0"],
        ["--games", "0"],
    ):
        assert coverage_study.main([*wrong, "--out", str(tmp_path)]) == 2
    capsys.readouterr()
    assert coverage_study.main(["--out", "/dev/null"]) == 2
    assert "error: out must be a writable folder, got '/dev/null'" in capsys.readouterr().err


def test_committed_study_is_complete_and_no_valid_estimator_fails() -> None:
    path = Path(__file__).parents[2] / "docs" / "coverage.csv"
    committed = pd.read_csv(path)
    assert len(failures(committed)) == 0
    assert len(failures(merge_mechanisms(committed))) == 0
    assert set(committed["trials"]) == set(AUDITS)
    expected = committed.groupby("trials")["audits"].first().to_dict()
    assert expected == AUDITS
    page = coverage_page(committed, "python -m audit.coverage_study --seed 1")
    assert page == path.with_suffix(".md").read_text()


def test_committed_second_study_has_more_audits_and_no_valid_estimator_fails() -> None:
    path = Path(__file__).parents[2] / "docs" / "coverage-more.csv"
    committed = pd.read_csv(path)
    assert len(failures(committed)) == 0
    assert len(failures(merge_mechanisms(committed))) == 0
    assert committed["audits"].min() > max(AUDITS.values())
    assert {"pooled", "one-run", "jax_privacy", "PrivacyGuard"} <= set(committed["estimator"])
    assert more_audits_page(committed) == path.with_suffix(".md").read_text()


def test_a_second_study_replaces_the_rows_of_its_mechanisms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--more", "--trials", "50", "--out", str(tmp_path), "--mechanisms"]
    assert coverage_study.main([*arguments, "Laplace", "pure noise", "--audits", "2"]) == 0
    assert coverage_study.main([*arguments, "Laplace", "--audits", "3"]) == 0
    written = pd.read_csv(tmp_path / "coverage-more.csv")
    audits = written.groupby("mechanism")["audits"].unique().map(list).to_dict()
    assert audits == {"pure noise": [2], "Laplace": [3]}
    assert not (tmp_path / "coverage.csv").exists()
    page = (tmp_path / "coverage-more.md").read_text()
    assert "the numbers of audits are\n2 of `pure noise`, 3 of `Laplace`." in page
    capsys.readouterr()
    assert coverage_study.main(["--more", "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--mechanisms" in line


def test_an_installed_package_without_the_study_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "__file__", str(tmp_path / "audit" / "console.py"))
    assert coverage_study.main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "error: studies/coverage is not part of the installed package: run this command from a "
        "source checkout"
    )


def test_a_full_disk_names_the_parameter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "coverage.csv").symlink_to("/dev/full")
    arguments = ["--trials", "50", "--audits", "2", "--mechanisms", "pure noise"]
    assert coverage_study.main([*arguments, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: out must be a writable folder with free space, got ")
