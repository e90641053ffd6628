"""The threat models of the paper's table 2, scores, and user-defined parts."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import threat_models
from audit.numerics import FloatArray, IntArray
from canaries import DiracCanary, InputCanary
from threat_models import Observation, Records, WorstOrder


@pytest.mark.parametrize(
    ("threat", "canary", "score", "sign", "trains"),
    [
        ("NTNV", "input", "validation-loss", -1, True),
        ("NTNV", "dirac", "validation-loss", -1, True),
        ("NTCV", "input", "canary-loss", 1, True),
        ("NTCV", "dirac", "first-coordinate", 1, True),
        ("ETCV", "input", "canary-loss", 1, False),
        ("ETCV", "dirac", "first-coordinate", 1, False),
    ],
)
def test_the_rows_of_table_2(threat: str, canary: str, score: str, sign: int, trains: bool) -> None:
    model = threat_models.build(threat, canary, dataset="DIGITS", train_size=100)
    assert model.name == threat
    assert model.score.name == score
    assert model.proxy_sign == sign
    assert isinstance(model.canary, InputCanary if canary == "input" else DiracCanary)
    assert (model.training_set is not None) == trains
    assert model.record_shape == (1, 8, 8)
    if model.training_set is not None:
        train, validation = (threat_models.datasets.load("DIGITS", part) for part in (True, False))
        np.testing.assert_array_equal(model.training_set.features, train.features[:100])
        np.testing.assert_array_equal(model.validation_set.labels, validation.labels)
    lambda_a, g = np.array([0.5, 1.0]), np.array([3.0, -2.0])
    np.testing.assert_array_equal(model.lambda_b(lambda_a, g), lambda_a + sign * g)


def test_etcv_takes_its_canary_from_the_data_set() -> None:
    first = threat_models.build("ETCV", "input").canary
    third = threat_models.build("ETCV", "input", canary_index=2).canary
    digits = threat_models.datasets.load("DIGITS", train=True)
    np.testing.assert_array_equal(first.features, digits.features[0])
    np.testing.assert_array_equal(third.features, digits.features[2])
    assert first.label == digits.labels[0] == 0
    assert first.name == "DIGITS[0]"


def test_etcv_with_dirac_canary_reads_no_files() -> None:
    model = threat_models.build("ETCV", "dirac", dataset="CIFAR10", data_root="/nowhere")
    assert model.record_shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ETVC", "dirac"), "threat must be one of NTNV, NTCV, ETCV, got 'ETVC'.* 'ETCV'"),
        (
            ("ETCV", "dirc"),
            "canary must be one of dirac, input or .*, got 'dirc'; did you mean 'dirac'",
        ),
        (("ETCV", "dirac", "worst-ordr"), "did you mean 'worst-order'"),
        (("ETCV", "dirac", "canary-loss"), "score for ETCV with canary dirac must be one of"),
        (("NTNV", "dirac", "first-coordinate"), "must be one of validation-loss"),
        (("ETCV", "dirac", None, "DIGIT"), "dataset must be one of .* did you mean 'DIGITS'"),
        (("ETCV", "dirac", "worst-order"), "worst_order is required with"),
        (("ETCV", "input", None, None, None, 5000), r"canary_index must be in \[0, 1436\]"),
        (
            ("NTNV", "dirac", None, None, None, 0, 0),
            "must be a whole number >= 1, got 0",
        ),
    ],
)
def test_invalid_arguments_are_rejected(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        threat_models.build(*arguments)


def test_a_canary_must_fit_the_data_set() -> None:
    digits = threat_models.datasets.load("DIGITS", train=True)
    wide = InputCanary(np.zeros((1, 28, 28), np.float32), 0, "WIDE")
    with pytest.raises(ValueError, match=r"WIDE must have shape \(1, 8, 8\).* got \(1, 28, 28\)"):
        threat_models.ntnv(digits, digits, wide)
    unknown = InputCanary(np.zeros((1, 8, 8), np.float32), 10)
    with pytest.raises(ValueError, match=r"canary label must be in \[0, 9\], got 10"):
        threat_models.ntnv(digits, digits, unknown)
    other = Records(np.zeros((1, 3), np.float32), np.zeros(1, np.int64), 10, "OTHER")
    with pytest.raises(ValueError, match="records of OTHER must have shape"):
        threat_models.ntnv(digits, other, DiracCanary())


def observation(x: list[float]) -> Observation:
    class LossIsDisplacement(Observation):
        def loss(self, features: NDArray[Any], labels: IntArray) -> FloatArray:
            return len(labels) * self.first_displacement

    x = np.asarray(x, float)
    return LossIsDisplacement(x, 2 * x)


def test_scores_use_the_documented_values() -> None:
    seen = observation([1.0, -3.0])
    digits = threat_models.datasets.load("DIGITS", train=False)
    np.testing.assert_array_equal(threat_models.FirstCoordinate()(seen), [1, -3])
    np.testing.assert_array_equal(threat_models.CanaryLoss(digits.canary(0))(seen), [-1, 3])
    np.testing.assert_array_equal(threat_models.ValidationLoss(digits)(seen), [-360, 1080])
    user = threat_models.UserScore(lambda seen: -seen.standardised_sum, "mine")
    np.testing.assert_array_equal(user(seen), [-2, 6])
    with pytest.raises(ValueError, match="score mine must return numbers: TypeError: complex"):
        threat_models.UserScore(lambda seen: 1j * seen.standardised_sum, "mine")(seen)  # type: ignore[return-value]
    with pytest.raises(ValueError, match="which this engine does not train"):
        Observation(np.ones(1), np.ones(1)).loss(digits.features, digits.labels)


def test_worst_order_ranks_large_values_first_then_small_ones() -> None:
    x = np.array([-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0])

    def best_to_worst(top: float) -> list[float]:
        scores = WorstOrder(top)(Observation(x, x))
        return x[np.argsort(-scores)].tolist()

    assert best_to_worst(1.5) == [3, 2, -3, -2, -1, 0, 1]
    assert best_to_worst(-np.inf) == x[::-1].tolist()
    assert best_to_worst(np.inf) == x.tolist()
    near = WorstOrder(1.0)(Observation(x[:2], np.array([2.0, 2.0 + 1e-9])))
    assert near[1] > near[0]


def test_worst_order_as_a_score() -> None:
    score = WorstOrder(1.0)
    with pytest.raises(ValueError, match="worst_order must be a number, got nan"):
        WorstOrder(float("nan"))
    built = threat_models.build("ETCV", "dirac", "worst-order", worst_order=1.0)
    assert built.score == score


OWN = """
import numpy as np
from canaries import InputCanary
def score(seen):
    return -np.abs(seen.first_displacement)
def canary():
    return InputCanary(np.full((1, 8, 8), 0.5, np.float32), 3, "grey")
def nothing():
    return None
def raises(*seen):
    raise RuntimeError("first line\\nsecond line")
def leaves(*seen):
    raise SystemExit(3)
class Bare(BaseException):
    def __str__(self):
        return str(self.args[0])
def bare(*seen):
    raise Bare("no Exception")
def mute(*seen):
    raise Bare
def interrupts(*seen):
    raise KeyboardInterrupt
def one_number(seen):
    return 1.0
number = 5
"""


def test_user_defined_score_and_canary_by_dotted_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_audit_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    built = threat_models.build("ETCV", "own_audit_parts.canary", "own_audit_parts.score")
    assert built.canary.name == "grey"
    np.testing.assert_array_equal(built.score(observation([1.0, -3.0])), [-1, -3])
    assert threat_models.build("ETCV", "own_audit_parts.canary").score.name == "canary-loss"
    with pytest.raises(ValueError, match="must return an InputCanary, got None"):
        threat_models.build("ETCV", "own_audit_parts.nothing")
    with pytest.raises(ValueError, match="must return an InputCanary, got 5"):
        threat_models.build("ETCV", "own_audit_parts.number")
    with pytest.raises(ValueError, match="score must be a function, got 5"):
        threat_models.build("ETCV", "dirac", "own_audit_parts.number")
    with pytest.raises(ValueError, match="score must be a name that can be imported"):
        threat_models.build("ETCV", "dirac", "own_audit_parts.missing")
    with pytest.raises(ValueError, match="score for NTNV"):
        threat_models.build("NTNV", "dirac", "own_audit_parts.score")


def test_errors_of_user_code_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_audit_parts.py").write_text(OWN)
    (tmp_path / "own_audit_leaves.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_audit_parts", raising=False)
    raised = (
        ("raises", "RuntimeError: first line$"),
        ("leaves", "SystemExit: 3"),
        ("bare", "Bare: no Exception$"),
        ("mute", "Bare$"),
    )
    for canary, said in raised:
        with pytest.raises(ValueError, match=f"canary own_audit_parts.{canary} .*{said}"):
            threat_models.build("ETCV", f"own_audit_parts.{canary}")
    for score, said in (
        *raised,
        ("one_number", r"one number per run, got shape \(\) for 2 runs"),
        ("nothing", "TypeError: "),
    ):
        built = threat_models.build("ETCV", "dirac", f"own_audit_parts.{score}")
        with pytest.raises(ValueError, match=f"score own_audit_parts.{score} .*{said}"):
            built.score(observation([1.0, -3.0]))
    with pytest.raises(KeyboardInterrupt):  # an interrupt is not an error of the canary
        threat_models.build("ETCV", "own_audit_parts.interrupts")
    for name in ("...", "os.", ".path", "own_audit_leaves.x", "a b.c"):
        with pytest.raises(ValueError, match="score must be a name that can be imported"):
            threat_models.build("ETCV", "dirac", name)


def test_names_ignore_case() -> None:
    built = threat_models.build("etcv", "Input", "CANARY-Loss", "digits")
    assert (built.name, built.score.name) == ("ETCV", "canary-loss")
    assert built.canary.name == "DIGITS[0]"
    assert threat_models.datasets.load("Digits", train=True, size=5).name == "DIGITS"
