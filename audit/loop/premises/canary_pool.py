"""The pool of canaries of the differential test: records that may change a step the most.

The pool holds records of sizes 1 to 1,000 in several directions, with both signs and up to ten
labels, records of zeros, and records of the data. If the features are whole numbers (tokens,
categories), it holds constant and random sequences of values between the smallest and the largest;
a value that only fills up short sequences stays at their end, or at their beginning.

Further canaries are searched: gradients that are long, of many norms, and opposite. Gradients of
arrays may come from any library, so that they have no second derivative that the test could use.
Random search takes its place: a change of the record is kept if it improves the goal.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.loop.runs.records import TrainingSet
from audit.numerics import FloatArray

BY_LENGTH = "length"
"""First word of the families of records of many gradient norms."""
_MAX_LABELS = 10
_SIZES = (1000.0, 30.0, 1.0)
_ASCENT_STEPS = 30
_SEARCH_STEPS = 40
# Points on each way between two records, the number of gradient norms that are wanted, and the
# largest factor between one of them and that of the usual record.
_POINTS_BETWEEN, _LENGTHS, _LARGEST_FACTOR = 32, 11, 50.0
# A step of the ascent is this fraction of the record's own norm.
_ASCENT_RATE = 0.2
_WEIGHT_OF_LENGTH = 0.1
_DESCENT_STEPS = 60
_MAX_PAIRED_LABELS = 3
RecordGradient = Callable[[Any, Any], Sequence[Any]]
"""The gradient of a record by its features and label, one array per tensor."""
_TRIES, _FIRST_SIZE = 120, 0.5
# After a success, changes grow by the first factor, else they shrink by the second one.
_GROW, _SHRINK = 1.5, 0.93
_MAX_SEARCHED_LABELS, _LARGEST = 3, 1000.0
_SCALES = (1.0, 0.5, 0.25, 0.1)


@dataclass(frozen=True)
class PoolRecord:
    """One canary of the pool.

    Attributes:
        features: features of the record, without an axis of records.
        label: its label.
        size: norm of the features in units of the typical record's norm; NaN for tokens.
        family: records of one family differ in size alone.
        position: place among records of many gradient norms, see `records_of_many_lengths`.
    """

    features: NDArray[Any]
    label: Any
    size: float
    family: str
    position: float = float("nan")


def canary_pool(records: TrainingSet, chosen: TrainingSet | None) -> list[PoolRecord]:
    """The canaries, the most promising first.

    Args:
        records: the data; at least one record.
        chosen: a canary that the caller chose, which is tried first.

    Example:
        >>> data = TrainingSet(np.eye(3), np.array([0, 1, 1]))
        >>> pool = canary_pool(data, None)
        >>> sorted({record.label.item() for record in pool}), max(r.size for r in pool) > 999
        ([0, 1], True)
    """
    pool: list[PoolRecord] = []
    if chosen is not None:
        for x, y in zip(chosen.features, chosen.labels, strict=True):
            pool.append(PoolRecord(x.astype(records.features.dtype), y, 1.0, "given"))
    kind = records.features.dtype.kind
    made = _dense(records) if kind == "f" else _tokens(records)
    seen: set[bytes] = set()
    for record in [*pool, *made]:
        key = np.asarray(record.features).tobytes() + repr(record.label).encode()
        if key not in seen:
            seen.add(key)
            if record.family != "given":
                pool.append(record)
    return pool


def records_that_are_not_finite(records: TrainingSet, label: Any) -> list[PoolRecord]:
    """Records with NaN or infinity in one feature, where features can hold them.

    Example:
        >>> data = TrainingSet(np.ones((3, 2)), np.array([0, 1, 1]))
        >>> [record.features.tolist() for record in records_that_are_not_finite(data, 1)]
        [[nan, 1.0], [inf, 1.0]]
        >>> tokens = TrainingSet(np.ones((3, 2), int), np.array([0, 1, 1]))
        >>> records_that_are_not_finite(tokens, 1)
        []
    """
    if records.features.dtype.kind != "f":
        return []
    made = []
    for value in (np.nan, np.inf):
        features = records.features[0].copy()
        features.reshape(-1)[0] = value
        made.append(PoolRecord(features, label, float("nan"), "not finite"))
    return made


def labels_to_try(records: TrainingSet) -> list[Any]:
    """Up to ten classes, the rarest first; of real targets, values outside of the data's range."""
    labels = records.labels
    if labels.dtype.kind == "f" and not _are_classes(labels):
        reach = max(float(np.abs(labels).max()), 1.0)
        return [labels.dtype.type(v) for v in (1000 * reach, -1000 * reach, labels[0], 0.0)]
    values, counts = np.unique(labels, return_counts=True)
    rarest_first = values[np.argsort(counts, kind="stable")]
    return list(rarest_first[:_MAX_LABELS])


def _are_classes(labels: NDArray[Any]) -> bool:
    return bool(np.all(labels == np.round(labels)) and len(np.unique(labels)) <= _MAX_LABELS)


def typical_norm(records: TrainingSet) -> float:
    """Median norm of the records' features; 1 where all are zero."""
    flat = records.features.reshape(len(records), -1).astype(np.float64)
    return float(np.median(np.linalg.norm(flat, axis=1))) or 1.0


def _dense(records: TrainingSet) -> list[PoolRecord]:
    shape, kind = records.features.shape[1:], records.features.dtype
    norm = typical_norm(records)
    largest = float(np.finfo(kind).max) if kind.kind == "f" else np.inf
    labels = labels_to_try(records)
    random = np.random.default_rng(0)
    directions = list(_directions(records, random))
    dense: list[PoolRecord] = []

    def add(name: str, direction: NDArray[Any], size: float, label: Any) -> None:
        values = np.clip(direction * (size * norm), -largest, largest).reshape(shape).astype(kind)
        dense.append(PoolRecord(values, label, abs(size), f"{name} {np.sign(size):+.0f} {label}"))

    # Every label with both signs of the first direction, then fewer labels of the others.
    for rank, (name, direction) in enumerate(directions):
        of = labels if rank == 0 else [labels[rank % len(labels)], labels[(rank + 1) % len(labels)]]
        for label in of:
            for sign in (1.0, -1.0):
                add(name, direction, sign * _SIZES[0], label)
    for rank, (name, direction) in enumerate(directions[:3]):
        for size in _SIZES[1:]:
            for sign in (1.0, -1.0):
                add(name, direction, sign * size, labels[rank % len(labels)])
    zeros = np.zeros(shape, kind)
    dense += [PoolRecord(zeros, label, 0.0, "zeros") for label in labels[:3]]
    dense += _own(records, labels)
    return dense


def _directions(
    records: TrainingSet, random: np.random.Generator
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Directions of length 1 in the space of features."""
    flat = records.features.reshape(len(records), -1).astype(np.float64)
    width = flat.shape[1]
    for i in range(2):
        direction = random.normal(size=width)
        yield f"random {i}", direction / np.linalg.norm(direction)
    blank = np.flatnonzero(~flat.any(axis=0))
    feature = np.zeros(width)
    feature[blank[0] if len(blank) else int(np.argmin(np.square(flat).sum(0)))] = 1.0
    yield "one feature", feature
    yield "all features", np.full(width, width**-0.5)


def _own(records: TrainingSet, labels: list[Any]) -> list[PoolRecord]:
    """Records of the data with their own label and with another one."""
    of_data = []
    for i in range(min(3, len(records))):
        other_label = labels[0] if records.labels[i] != labels[0] else labels[-1]
        for label in {records.labels[i].item(): None, _item(other_label): None}:
            typed = records.labels.dtype.type(label)
            of_data.append(PoolRecord(records.features[i], typed, 1.0, "own"))
    return of_data


def _item(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _tokens(records: TrainingSet) -> list[PoolRecord]:
    shape, kind = records.features.shape[1:], records.features.dtype
    low, high = int(records.features.min()), int(records.features.max())
    labels = labels_to_try(records)
    random = np.random.default_rng(0)
    filler, is_first = _filler(records.features)
    constants = list(dict.fromkeys([high, low, (low + high) // 2, min(low + 1, high)]))
    words = [value for value in constants if value != filler] or constants
    tokens = []
    for value in constants:
        for label in labels[:4]:
            features = np.full(shape, value, kind)
            tokens.append(PoolRecord(features, label, float("nan"), f"constant {value}"))
    for i in range(6):
        features = random.integers(low, high + 1, size=shape).astype(kind)
        if filler is not None:
            features[features == filler] = words[-1]
            length = shape[0] - i * shape[0] // 6  # of the text, in 1 to L
            features[slice(0, shape[0] - length) if is_first else slice(length, None)] = filler
        for label in (labels[i % len(labels)], labels[(i + 1) % len(labels)]):
            tokens.append(PoolRecord(features, label, float("nan"), "random"))
    if len(shape) == 1 and shape[0] > 1:  # one token among others
        for value in words[:2]:
            features = np.full(shape, words[-1], kind)
            features[0] = value
            tokens.append(PoolRecord(features, labels[0], float("nan"), "mixed"))
    return tokens + _own(records, labels)


def _filler(features: NDArray[Any]) -> tuple[int | None, bool]:
    """The token that fills short sequences up, and whether it comes first; None if there is none.

    A function may cut sequences where it begins, so that a filler between other tokens is no text.
    """
    if features.ndim != 2 or features.shape[1] < 2:
        return None, False
    for value in (int(features.min()), int(features.max())):
        is_value = features == value
        if not is_value.any() or is_value.all():
            continue
        later, earlier = is_value[:, 1:], is_value[:, :-1]
        for is_first, follows in ((False, later >= earlier), (True, earlier >= later)):
            if follows.all() and (later != earlier).any():
                return value, is_first
    return None, False


def _as_tensors(record: PoolRecord, like: Any) -> tuple[Any, Any]:
    """A batch of one record, of the type and on the device of a parameter."""
    import torch

    x = torch.as_tensor(np.asarray(record.features)[None], dtype=like.dtype, device=like.device)
    y = torch.as_tensor(np.asarray(record.label)[None], device=like.device)
    return x, y.to(like.dtype) if y.is_floating_point() else y


def gradient_of(
    model: Any, loss: Callable[..., Any], record: PoolRecord, parameters: list[Any]
) -> Any:
    """A record's gradient by all parameters that have one, [D]."""
    import torch

    x, y = _as_tensors(record, parameters[0])
    trained = [p for p in parameters if p.requires_grad]
    gradients = torch.autograd.grad(loss(model, x, y), trained, allow_unused=True)
    return torch.cat([g.reshape(-1) for g in gradients if g is not None]).detach()


def extreme_gradient(
    model: Any,
    loss: Callable[..., Any],
    start: PoolRecord,
    parameters: list[Any],
    longest: bool = True,
) -> PoolRecord | None:
    """A record with a long or a short gradient, at most 1,000 times as long as the start.

    Large records saturate a tanh or a sigmoid, so that their gradients are short. A long gradient
    then needs a large record in a narrow set, on which a unit is not saturated. The quasi-Newton
    method follows that set, where gradient ascent does not.

    Args:
        model: a torch module without per-sample hooks.
        loss: `loss(model, features, labels)`, summed.
        start: the record to start from; its features are real numbers.
        parameters: tensors by which the gradient is taken.
        longest: whether the gradient is to be long instead of short.

    Returns:
        The record, or None where the model has no second derivative or raises an error.
    """
    import torch

    trained = [p for p in parameters if p.requires_grad]
    x, y = _as_tensors(start, trained[0])
    limit = _SIZES[0] * max(float(x.norm()), 1.0)
    x = x.clone().requires_grad_(True)
    best, best_value = None, float("inf")

    def log_length() -> Any:
        nonlocal best, best_value
        value = _gradient(loss(model, x, y), trained).norm().clamp(min=1e-20).log()
        value = -value if longest else value
        (x.grad,) = torch.autograd.grad(value, x)
        reached = float(value.detach())
        if reached < best_value and float(x.detach().norm()) <= limit:
            best, best_value = x.detach().double().cpu().numpy()[0], reached
        return value

    try:
        search: Any = torch.optim.LBFGS(
            [x], max_iter=_SEARCH_STEPS, line_search_fn="strong_wolfe", history_size=20
        )
        search.step(log_length)
    except Exception:  # of the user's model, which may not accept the records as they are
        return None
    return _as_record(best, start)


def records_of_many_lengths(
    corners: Sequence[PoolRecord], length: Callable[[NDArray[Any]], float]
) -> list[PoolRecord]:
    """Records on the way over some corners whose gradients have norms of many sizes.

    A wrong clipping may be exceeded only by gradients of a certain norm. One that divides by the
    squared norm, for instance, lets a gradient of norm C^(1/2) contribute C^(1/2), and both shorter
    and longer ones less.

    Args:
        corners: a record with a short gradient, a usual one, and further ones of its label, the
            last with a long gradient.
        length: the norm of the gradient of a record with these features.

    Returns:
        Records in the order of the way, of which each is nearest to a wanted norm.

    Example:
        >>> short, usual, long = (PoolRecord(np.array([v]), 0, 1.0, "own") for v in (0.0, 1.0, 9.0))
        >>> way = records_of_many_lengths([short, usual, long], lambda x: float(abs(x[0])))
        >>> [round(float(record.features[0]), 2) for record in way]
        [0.0, 0.03, 0.06, 0.12, 0.22, 0.44, 0.78, 1.5, 2.75, 5.0, 9.0]
    """
    shares = np.linspace(0.0, 1.0, _POINTS_BETWEEN + 1)
    ways = [
        np.asarray(before.features) + np.multiply.outer(shares, after.features - before.features)
        for before, after in itertools.pairwise(corners)
    ]
    points = np.concatenate(ways).astype(np.asarray(corners[0].features).dtype)
    norms = np.array([length(point) for point in points])
    middle = norms[_POINTS_BETWEEN]
    if not np.isfinite(norms).all() or middle <= 0:
        return []
    logs = np.log(np.clip(norms / middle, 1 / _LARGEST_FACTOR, _LARGEST_FACTOR))
    wanted = np.linspace(logs.min(), logs.max(), _LENGTHS)
    nearest = {int(np.argmin(np.abs(logs - log_norm))) for log_norm in wanted}
    usual = replace(corners[1], size=float("nan"), family=f"{BY_LENGTH} {corners[1].label}")
    return [replace(usual, features=points[i], position=float(i)) for i in sorted(nearest)]


def halfway(record: PoolRecord, neighbour: PoolRecord) -> PoolRecord:
    """The record in the middle between two of `records_of_many_lengths`."""
    features = np.asarray(record.features)
    middle = features + 0.5 * (neighbour.features - features)
    position = (record.position + neighbour.position) / 2
    return replace(record, features=middle.astype(features.dtype), position=position)


def ascend_against(
    model: Any,
    loss: Callable[..., Any],
    start: PoolRecord,
    parameters: list[Any],
    opposite: Any,
) -> PoolRecord | None:
    """Gradient ascent on a record, for a gradient that points against another one.

    Args:
        model: a torch module without per-sample hooks.
        loss: `loss(model, features, labels)`, summed.
        start: the record to start from; its features are real numbers.
        parameters: tensors by which the gradient is taken.
        opposite: [D], the gradient that the record's own should point against.

    Returns:
        The record found, or None where the model has no second derivative or raises an error.
    """
    import torch

    parameters = [p for p in parameters if p.requires_grad]
    x, y = _as_tensors(start, parameters[0])
    best, best_value = None, -float("inf")
    try:
        for _ in range(_ASCENT_STEPS):
            x = x.detach().requires_grad_(True)
            of_record = _gradient(loss(model, x, y), parameters)
            length = of_record.norm()
            against = (of_record @ opposite) / (length * opposite.norm()).clamp(min=1e-20)
            goal = _WEIGHT_OF_LENGTH * length.clamp(min=1e-20).log() - against
            reached = float(goal.detach())
            if reached > best_value:
                best, best_value = x.detach().double().cpu().numpy()[0], reached
            (slope,) = torch.autograd.grad(goal, x, allow_unused=True)
            if slope is None or not bool(torch.isfinite(slope).all()) or float(slope.norm()) == 0:
                break
            x = x + slope / slope.norm() * (_ASCENT_RATE * max(float(x.detach().norm()), 1.0))
    except Exception:  # of the user's model, which may not accept the records as they are
        return None
    return _as_record(best, start)


def _gradient(value: Any, parameters: list[Any]) -> Any:
    """The gradient by all parameters that have one, [D], which can be differentiated again."""
    import torch

    gradients = torch.autograd.grad(value, parameters, create_graph=True, allow_unused=True)
    return torch.cat([tensor.reshape(-1) for tensor in gradients if tensor is not None])


def _as_record(features: NDArray[Any] | None, start: PoolRecord) -> PoolRecord | None:
    """A record of the pool with new features; None if there are none."""
    if features is None:
        return None
    typed = features.astype(np.asarray(start.features).dtype)
    return PoolRecord(typed, start.label, float("nan"), "ascent")


def opposite_pair(
    model: Any, loss: Callable[..., Any], start: PoolRecord, parameter: Any, labels: Sequence[Any]
) -> list[PoolRecord]:
    """Equal features with two labels, whose gradients point against each other.

    At the minimum of the sum of both losses, both labels have a probability of nearly 1/2. Then
    their gradients by the outputs, and so by all weights, are nearly opposite, and their clipped
    gradients differ by nearly 2C.

    Args:
        model: a torch module without per-sample hooks.
        loss: `loss(model, features, labels)`, summed.
        start: the record to start from; its features are real numbers.
        parameter: any of the model's.
        labels: candidates for the two labels.

    Returns:
        Two records, or none where the model has no derivative by the features.
    """
    import torch

    typed = type(start.label)
    records = [PoolRecord(start.features, typed(label), float("nan"), "pair") for label in labels]
    reached_pairs: list[tuple[float, Any, tuple[int, int]]] = []
    try:
        batches = [_as_tensors(record, parameter) for record in records]
        losses = [float(loss(model, *batch).detach()) for batch in batches]
        likely = [int(i) for i in np.argsort(losses, kind="stable")[:_MAX_PAIRED_LABELS]]
        for pair in itertools.combinations(likely, 2):
            x = batches[0][0].clone().requires_grad_(True)

            def both(x: Any = x, pair: tuple[int, int] = pair) -> Any:
                value = sum(loss(model, x, batches[i][1]) for i in pair)
                (x.grad,) = torch.autograd.grad(value, x)
                return value

            descent: Any = torch.optim.LBFGS(
                [x], max_iter=_DESCENT_STEPS, line_search_fn="strong_wolfe"
            )
            descent.step(both)
            reached = float(both().detach())
            if np.isfinite(reached) and bool(torch.isfinite(x).all()):
                reached_pairs.append((reached, x, pair))
    except Exception:  # of the user's model
        return []
    if not reached_pairs:
        return []
    _, x, pair = min(reached_pairs, key=lambda entry: entry[0])
    features = x.detach().double().cpu().numpy()[0].astype(np.asarray(start.features).dtype)
    return [replace(records[i], features=features) for i in pair]


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
        pairs = list(itertools.combinations(labels[:_MAX_SEARCHED_LABELS], 2))
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
