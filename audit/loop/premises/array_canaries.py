"""Canaries for a loop of arrays: gradients that are long, of many norms, and opposite.

Gradients of arrays may come from any library, so that they have no second derivative that the test
could use. Random search takes its place: a change of the record is kept if it improves the goal.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from audit.arrays import FloatArray
from audit.loop.premises.canary_pool import PoolRecord, records_of_many_lengths

RecordGradient = Callable[[Any, Any], Sequence[Any]]
"""The gradient of a record by its features and label, one array per tensor."""

_TRIES, _FIRST_SIZE = 120, 0.5
# After a success, changes grow by the first factor, else they shrink by the second one.
_GROW, _SHRINK = 1.5, 0.93
_MAX_LABELS, _LARGEST = 3, 1000.0
_SCALES = (1.0, 0.5, 0.25, 0.1)


def search_canaries(
    gradient: RecordGradient, start: PoolRecord, labels: Sequence[Any], seed: int
) -> list[PoolRecord]:
    """A record with a long gradient, and pairs with equal features and opposite gradients.

    Args:
        gradient: the gradient of a record by its features and label.
        start: the record to start from; its features are real numbers.
        labels: candidates for the two labels.
        seed: seed of the search.

    Returns:
        The records, or none where the gradient raises an error.

    Example:
        >>> def slope(x, y):
        ...     return [x * (1.0 if y else -1.0)]
        >>> start = PoolRecord(np.ones(2), 1, 1.0, "own")
        >>> records = search_canaries(slope, start, [0, 1], 0)
        >>> sorted({record.family for record in records})
        ['ascent', 'length 1', 'pair']
    """
    features = np.asarray(start.features)
    random = np.random.default_rng(seed)

    def flat(values: FloatArray, label: Any) -> FloatArray:
        gradients = gradient(values.astype(features.dtype), label)
        return np.concatenate([np.asarray(tensor, np.float64).ravel() for tensor in gradients])

    def length(values: FloatArray) -> float:
        return float(np.linalg.norm(flat(values, start.label)))

    def opposition(values: FloatArray, pair: tuple[Any, Any]) -> float:
        gradient_of_one, gradient_of_other = (flat(values, label) for label in pair)
        norms = np.linalg.norm(gradient_of_one) * np.linalg.norm(gradient_of_other)
        return -float(gradient_of_one @ gradient_of_other / norms) if norms > 0 else -1.0

    try:
        pairs = list(itertools.combinations(labels[:_MAX_LABELS], 2))
        longest, shortest = (
            replace(start, features=_climb(goal, features, random), family="ascent")
            for goal in (length, lambda values: -length(values))
        )
        searched = [longest, *records_of_many_lengths([shortest, start, longest], length)]
        if pairs:
            pair = max(pairs, key=lambda labels: opposition(features.astype(float), labels))
            best = _climb(lambda values: opposition(values, pair), features, random)
            # A short record shows a part of the gradient that the clipping leaves out.
            for scale in _SCALES:
                features = (best * scale).astype(best.dtype)
                searched += [
                    replace(start, features=features, label=y, family="pair") for y in pair
                ]
    except Exception:  # of the user's gradient, which may not accept these records
        return []
    return [replace(record, size=float("nan")) for record in searched]


def _climb(
    goal: Callable[[FloatArray], float], start: Any, random: np.random.Generator
) -> FloatArray:
    """Random search for features with a large value of the goal."""
    best = start.astype(np.float64)
    limit = _LARGEST * max(float(np.linalg.norm(best)), 1.0)
    reached, size = goal(best), _FIRST_SIZE
    for _ in range(_TRIES):
        step = random.normal(size=best.shape)
        scale = (
            size * max(float(np.linalg.norm(best)), 1e-3) / max(float(np.linalg.norm(step)), 1e-30)
        )
        tried = best + scale * step
        # A gradient that grows with the record has no maximum.
        tried *= min(1.0, limit / max(float(np.linalg.norm(tried)), 1e-30))
        value = goal(tried)
        if value > reached:
            best, reached, size = tried, value, size * _GROW
        else:
            size *= _SHRINK
    return best.astype(start.dtype)
