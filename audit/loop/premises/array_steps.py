"""Whether a loop of arrays uses the values that `watch.step` returns."""

from dataclasses import replace

import numpy as np

from audit.errors import InvalidInput
from audit.loop.premises.experiment import Check
from audit.loop.runs.coupled_runs import Trace
from audit.loop.runs.released_numbers import differences

_SHIFT = 10.0


def refuse_unused_steps(check: Check, first: Trace, again: Trace, seed: int) -> None:
    """Raises an error if other released values change nothing that follows.

    Coupled runs replace the released values of a run. If the loop ignores the returned values, the
    runs are not coupled, and a correct loop would look as if it leaked.

    Args:
        check: the check.
        first: a run of the loop on the records.
        again: the same run, with the values of the first one forced.
        seed: seed of both.

    Raises:
        InvalidInput: the loop ignores the returned values.
    """
    shifted = [replace(step, gradient=_shifted(step.gradient)) for step in first.steps]
    like = replace(first, steps=shifted, rows=[_shifted(row) for row in first.rows])
    trace = check.runs.run(check.records, seed, like=like)
    if trace.error is not None or len(trace.steps) != len(again.steps):
        return
    pairs = zip(again.steps, trace.steps, strict=True)
    if all(np.array_equal(a.gradient, b.gradient, equal_nan=True) for a, b in pairs) and (
        not differences(again.released, trace.released)
    ):
        raise InvalidInput(
            "train must use the value that watch.step returns and return what it releases, but "
            "other values changed nothing: write noisy = watch.step(noisy)"
        )


def _shifted(values: np.ndarray) -> np.ndarray:
    largest = float(np.nan_to_num(np.abs(values)).max(initial=0.0))
    return values + _SHIFT * largest + 1.0
