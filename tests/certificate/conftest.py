"""Fixtures of the tests of certificates."""

import shutil
import subprocess
from dataclasses import replace

import pytest

from audit import accounting, tuning
from audit.certificate import (
    compute,
)


@pytest.fixture
def region_alone(monkeypatch):
    """Certificates are issued with one bound, which is fast."""
    monkeypatch.setattr(
        "audit.certificate.certificate.compute", lambda *given: compute(*given, ["region"])
    )


@pytest.fixture(scope="session")
def certificate():
    study = tuning.Study(
        {"lr": tuning.LogUniform(0.01, 1.0), "hidden": [16, "<b>"]},
        "tnb:1,0.5",
        base=accounting.DpSgd(20.0, 100),
        folder=None,
    )
    study.run(lambda trial: tuning.Outcome(trial.candidate["lr"], "model"))
    found = study.certificate
    # One bound alone, which is fast: tests compute it anew many times.
    numbers = compute(found.base, found.protocol, found.delta, ["region"])
    assert numbers.epsilon <= 1.01 * found.numbers.epsilon
    return replace(found, numbers=numbers)


@pytest.fixture(scope="module")
def plain(certificate):
    return certificate.with_evidence(0.1, 0.95, 100, 200).as_dict()


@pytest.fixture(scope="session")
def key(tmp_path_factory):
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    path = tmp_path_factory.mktemp("keys") / "key"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(command, check=True)
    return path
