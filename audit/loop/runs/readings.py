"""Scores of records by the output of a training function, for the black-box attack.

A higher score indicates that a record was trained on. For a classifier, it is the logit of the
probability of the true class (Carlini et al. 2022), which orders models as minus the loss does and
does not saturate. For other models, it is minus the loss.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.errors import InvalidInput
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.released_numbers import held_by_function
from audit.loop.sources.trees import as_numbers
from audit.numerics import FloatArray
from audit.user_code import format_error

# Number of other records that are scored too, because the canary may change their scores.
_OTHERS = 64
_PREDICTS = ("decision_function", "predict_proba", "predict")


def record_scores(result: Any, records: TrainingSet, loss: Callable[..., Any] | None) -> FloatArray:
    """Scores of records by a trained model.

    Args:
        result: a torch module, or an estimator with `decision_function`, `predict_proba` or
            `predict`.
        records: n of them.
        loss: summed loss of a torch module on records given as tensors; None takes the margin.

    Returns:
        [n] scores.
    """
    if _is_module(result):
        return _module_scores(result, records, loss)
    features, labels = records.features, records.labels
    if hasattr(result, "decision_function"):
        return _margins(np.asarray(result.decision_function(features)), _index(result, labels))
    if hasattr(result, "predict_proba"):
        with np.errstate(divide="ignore"):
            logits = np.log(np.asarray(result.predict_proba(features), dtype=np.float64))
        return _margins(logits, _index(result, labels))
    predicted = np.asarray(result.predict(features), dtype=np.float64)
    return -np.square(predicted.reshape(len(labels)) - labels)


def model_and_numbers(result: Any) -> tuple[Any, FloatArray]:
    """The parts of a result that can be attacked: a model that scores records, and numbers.

    Args:
        result: a torch module, an estimator, numbers, a function, None, or containers of these.

    Returns:
        The first module or estimator, or None; and all numbers, [f].

    Raises:
        InvalidInput: a result of another kind, or complex numbers.

    Example:
        >>> model_and_numbers({"loss": [0.5, 0.25], "name": "run"})
        (None, array([0.5 , 0.25]))
    """
    if result is None:
        return None, np.empty(0)
    if _is_module(result) or any(hasattr(result, name) for name in _PREDICTS):
        return result, np.empty(0)
    if hasattr(result, "detach"):
        tensor = result.detach().cpu()
        result = tensor.double() if tensor.is_floating_point() else tensor  # numpy has no bfloat16
    elif not isinstance(result, np.ndarray | np.generic):
        numbers = as_numbers(result)  # of JAX and TensorFlow
        result = result if numbers is None else numbers
    try:
        is_complex = np.iscomplexobj(result)
        if not is_complex:
            return None, np.asarray(result, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        is_complex = False
    if is_complex:
        raise InvalidInput(
            "train must return real numbers, got complex ones: return real and imaginary parts"
        )
    held = held_by_function(result)
    if held is not None:
        readings = []
        for item in held.values():
            with contextlib.suppress(InvalidInput):
                readings.append(model_and_numbers(item))
        return _joined(readings)
    if not isinstance(result, Mapping | list | tuple):
        raise InvalidInput(
            "train must return a torch module, an estimator, a function, numbers, a dictionary of "
            f"these or nothing, got {type(result).__name__}"
        )
    values = result.values() if isinstance(result, Mapping) else result
    return _joined(
        [model_and_numbers(value) for value in values if not isinstance(value, str | bytes)]
    )


def reason_of(error: Exception) -> str:
    """The reason why a model could not be applied to records, and what to do."""
    if isinstance(error, InvalidInput):
        return str(error)
    return (
        "the model does not accept the records as train gets them "
        f"({format_error(error)}): pass loss=, a function that prepares them"
    )


def _joined(pairs: Sequence[tuple[Any, FloatArray]]) -> tuple[Any, FloatArray]:
    """The first model, and all numbers."""
    model = next((model for model, _ in pairs if model is not None), None)
    return model, np.concatenate([np.empty(0), *(numbers for _, numbers in pairs)])


def details(result: Any, records: TrainingSet, loss: Callable[..., Any] | None) -> FloatArray:
    """Mean and standard deviation of a trained model's scores of other records, [2]."""
    few_records = records.first_records(_OTHERS)
    scores = record_scores(result, few_records, loss) if len(few_records) else np.zeros(1)
    return np.array([scores.mean(), scores.std()])


def _is_module(result: Any) -> bool:
    return hasattr(result, "state_dict") and hasattr(result, "parameters")


def _module_scores(model: Any, records: TrainingSet, loss: Callable[..., Any] | None) -> FloatArray:
    import torch

    like = next(model.parameters())
    features = torch.from_numpy(records.features).to(like.device)
    if features.is_floating_point():
        features = features.to(like.dtype)
    labels = torch.from_numpy(records.labels).to(like.device)
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            if loss is not None:
                pairs = zip(features, labels, strict=True)
                return np.array([-float(loss(model, x[None], y[None])) for x, y in pairs])
            output = model(features).double().cpu().numpy().reshape(len(labels), -1)
    finally:
        for module in training:
            module.training = True
    if records.labels.dtype.kind == "f":
        return -np.square(output[:, 0] - records.labels)
    return _margins(output, records.labels)


def _index(estimator: Any, labels: NDArray[Any]) -> NDArray[Any]:
    """Places of the labels among the estimator's classes; -1 for unknown labels."""
    classes = np.asarray(estimator.classes_)
    place = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    return np.where(classes[place] == labels, place, -1)


def _margins(logits: NDArray[Any], labels: NDArray[Any]) -> FloatArray:
    """log p - log(1 - p) of every record's class, [n], from logits [n, classes] or [n]."""
    logits = np.asarray(logits, dtype=np.float64).reshape(len(labels), -1)
    if logits.shape[1] == 1:
        return np.where(labels > 0, logits[:, 0], -logits[:, 0])
    is_labelled = labels >= 0
    rows, place = np.arange(len(labels)), np.where(is_labelled, labels, 0)
    of_label = logits[rows, place]
    other_logits = logits.copy()
    other_logits[rows, place] = -np.inf
    with np.errstate(invalid="ignore"):
        margin = of_label - np.logaddexp.reduce(other_logits, axis=1)
    return np.where(is_labelled, margin, -np.inf)
