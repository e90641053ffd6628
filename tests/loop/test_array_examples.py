"""The examples of arrays and mechanisms: the broken copy is found, and the correct one passes."""

import importlib
import runpy
from pathlib import Path

import numpy as np
import pytest

import audit

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(module: str) -> None:
    """Imports a package that an example needs, or skips the test."""
    if module == "diffprivlib":
        from sklearn.tree import _tree

        # diffprivlib 0.6.6 imports these names, which scikit-learn 1.9 no longer has.
        vars(_tree).setdefault("DOUBLE", np.float64)
        vars(_tree).setdefault("DTYPE", np.float32)
    pytest.importorskip(module, reason=f"{module} is not installed")
    importlib.import_module(module)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "correct", "module"),
    [
        ("noisy_histogram", "histogram", "numpy"),
        pytest.param("arrays_numpy", "train", "numpy", marks=pytest.mark.slow),
        pytest.param("arrays_jax", "train", "jax", marks=pytest.mark.slow),
        pytest.param("arrays_jax_privacy", "train", "jax_privacy", marks=pytest.mark.slow),
        pytest.param("noisy_sums_diffprivlib", "squares", "diffprivlib", marks=pytest.mark.slow),
    ],
)
def test_only_the_broken_copy_is_accused(name: str, correct: str, module: str) -> None:
    load(module)
    example = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    right = audit.check(example[correct], example["DATA"], attack=False)
    assert right.exit_code == 0, str(right)
    assert audit.check(example["broken"], example["DATA"], attack=False).exit_code == 1
