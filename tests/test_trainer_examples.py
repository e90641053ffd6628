"""The examples with trainers: their runs are checked, and resume byte for byte."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit import tuning
from audit.accounting import DpSgd
from audit.tuning.isolation import seeded

EXAMPLES = Path(__file__).parents[1] / "examples"
LINES = 60

_TRAINERS = {
    "lightning": ("lightning", "opacus"),
    "transformers": ("transformers", "accelerate"),
    "jax_privacy": ("jax_privacy", "optax"),
}


def example(name: str) -> Any:
    """The module of an example, without its last part, which runs the study."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"study_with_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def values(model: Any) -> list[bytes]:
    """The bytes of a released model."""
    state = model.state_dict().values() if hasattr(model, "state_dict") else [model]
    return [np.asarray(value).tobytes() for value in state]


class Killed(BaseException):
    """Ends a run as a kill does: no trainer handles it."""


@pytest.mark.parametrize("name", [*_TRAINERS, "diffprivlib"])
def test_an_example_is_short(name: str) -> None:
    text = (EXAMPLES / f"study_with_{name}.py").read_text()
    assert len(text.splitlines()) <= LINES
    assert "epsilon" in text.lower()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the trainers
@pytest.mark.parametrize("name", _TRAINERS)
def test_a_run_of_a_trainer_continues_byte_for_byte(name: str, tmp_path: Path) -> None:
    for package in _TRAINERS[name]:
        pytest.importorskip(package)
    module = example(name)
    base = DpSgd(1.0, 30, 0.1, "zero-out")

    def trial() -> tuning.Trial:
        made = tuning.Trial({"learning_rate": 0.05}, base, seed=2**60 + 5)
        made.checkpoints.folder = tmp_path / "study" / "runs" / "0"
        return made

    def run(made: tuning.Trial) -> tuning.Outcome:
        with seeded(made.seed):
            made.checkpoints.begin()
            outcome: tuning.Outcome = module.train(made, module.PRIVATE)
        return outcome

    alone = tuning.Trial({"learning_rate": 0.05}, base, seed=2**60 + 5)
    expected = run(alone)
    (tmp_path / "study").mkdir()

    def kill(saved: int) -> None:
        if saved == 2:
            raise Killed

    cut = trial()
    cut.checkpoints.before_save = kill
    with pytest.raises(Killed):
        run(cut)
    resumed = trial()
    outcome = run(resumed)
    assert resumed.checkpoints.resumed_at == 20
    assert outcome.score == expected.score
    assert values(outcome.model) == values(expected.model)
    other = run(tuning.Trial({"learning_rate": 0.05}, base, seed=1))
    assert values(other.model) != values(expected.model)


@pytest.mark.slow
def test_the_estimator_of_diffprivlib_is_tuned_with_its_pure_epsilon(tmp_path: Path) -> None:
    try:
        module = example("diffprivlib")
    except ImportError as error:  # diffprivlib 0.6.6 does not fit scikit-learn 1.9
        pytest.skip(str(error))
    study = tuning.Study(
        {"columns": [1, 2]}, "fixed:2", delta=1e-6, folder=None, base=module.PureDp(module.EPSILON)
    )
    best = study.run(module.train, records=module.PRIVATE, rehearse=False)
    assert best.candidate is not None
    assert best.model["coefficients"].shape == (best.candidate["columns"],)
    # Two runs of a (2, 0)-DP mechanism are (4, 0)-DP together; the bound rounds up.
    assert 2.0 < study.total_epsilon < 4.01
