"""The rows of the paper's table 2 at reduced size: eps_L below eps_U, and the paper's ordering."""

from typing import Any

import numpy as np
import pytest
from real_data import DATA_ROOT
from small_audits import play_trials

from audit.accounting import calibrate_mu
from audit.report.assemble import assemble
from audit.report.results import PROXIES
from threat_models import datasets

SMALL = {
    "epsilon": (8.0,),
    "repeats": 1,
    "repetitions": "tnb:0,0.2",
    "train_size": 300,
    "validation_size": 100,
    # Every lower bound errs once in a thousand: of some dozens here none by chance.
    "confidence": 0.999,
}
pytestmark = pytest.mark.usefixtures("quick_reports")

REAL = {  # data set of X and of the input canary, table 2
    "NTNV": {"FASHION": "MNIST", "CIFAR10": "SVHN", "SVHN": "CIFAR10"},
    "NTCV": {"FASHION": "MNIST", "CIFAR10": "SVHN", "SVHN": "CIFAR10"},
    "ETCV": {"MNIST": "MNIST", "SVHN": "SVHN", "CIFAR10": "CIFAR10"},
}


def check(**settings: Any) -> Any:
    config, stages, games = play_trials(**SMALL | settings)
    (result,) = assemble(config, stages, games).results
    upper = {name: bound.epsilon for name, bound in result.upper_bounds.items() if bound.valid}
    best = 0.0
    for proxy in PROXIES:
        for key, bound in result.lower_bounds[proxy].items():
            if bound.valid:
                best = max(best, bound.max)
                for name, epsilon in upper.items():
                    assert bound.max <= epsilon, (proxy, key, name)
    trials = games[0, 0]
    assert trials.diverged.sum() == 0
    sides = trials.lambda_a[~trials.bit], trials.lambda_a[trials.bit]
    shift = sides[1].mean() - sides[0].mean()
    # Few trials prove little, but detect noise that is too small: one run's lambda_a moves by at
    # most mu standard deviations, the best of 2.5 varies less by a fifth; 4 standard errors.
    spread = np.sqrt(np.mean([side.var(ddof=1) for side in sides]))
    most = 1.3 * calibrate_mu(SMALL["epsilon"][0], config.delta)  # type: ignore[index]
    assert shift / spread <= most + 4.0 * np.sqrt((4.0 + most**2 / 2.0) / len(trials.bit))
    return best, shift / trials.lambda_a.std()


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize("threat", list(REAL))
@pytest.mark.parametrize("canary", ["input", "dirac"])
def test_rows_on_digits(threat: str, canary: str) -> None:
    check(threat=threat, canary=canary, trials=200, steps=10, learning_rates=(0.01, 0.03))


@pytest.mark.slow
@pytest.mark.thin(5)
@pytest.mark.parametrize("threat", list(REAL))
@pytest.mark.parametrize("dataset", ["FASHION", "MNIST", "CIFAR10", "SVHN"])
@pytest.mark.parametrize("canary", ["input", "dirac"])
def test_rows_on_real_data(threat: str, canary: str, dataset: str) -> None:
    if dataset not in REAL[threat] or (threat == "ETCV" and canary == "dirac"):
        pytest.skip("not a row of table 2")
    root = str(DATA_ROOT) if DATA_ROOT.is_dir() else ""
    needed = {dataset} | ({REAL[threat][dataset]} if canary == "input" else set())
    try:
        for name in needed if root else ():
            datasets.load(name, True, root, 1)
    except (OSError, ValueError):
        root = ""
    if not root:
        pytest.skip(f"no files of {', '.join(sorted(needed))}: set AUDIT_DATA_ROOT to their folder")
    options = {"data_root": root, "trials": 60, "steps": 5, "train_size": 60, "model": "mlp"}
    check(threat=threat, canary=canary, dataset=dataset, learning_rates=(0.002,), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trials", "weak_trials"), [(200, 200), pytest.param(1500, 500, marks=pytest.mark.slow)]
)
def test_ordering_that_the_paper_reports(trials: int, weak_trials: int) -> None:
    # NTNV input < NTNV Dirac < ETCV Dirac. Measured shifts of lambda_a between the two data sets,
    # in standard deviations: 0.15, 1.24, 1.30, each within 0.1 (two standard errors at 1,500, and
    # 0.28 at 200; so the last two, which are near to each other, are distinguished only there).
    settings = {"steps": 20, "learning_rates": (0.03,), "model": "mlp"}
    _, weak = check(threat="NTNV", canary="input", trials=weak_trials, **settings)
    normal, strong = check(threat="NTNV", canary="dirac", trials=trials, **settings)
    assert weak < strong - 0.5
    assert np.isfinite([weak, strong, normal]).all()
    if trials > 1000:
        empty, _ = check(threat="ETCV", canary="dirac", trials=trials, **settings)
        assert normal < empty
