"""Models by name."""

import inspect
from typing import Any

import torch
from torch import nn

from audit import checks
from audit.dpsgd.settings import MODELS
from audit.errors import InvalidInput
from audit.user_code import errors_in_one_line, import_by_name, seeded_generators

# Larger than the rounding of user models, whose kernels may depend on the batch size.
_LOGITS_RTOL, _LOGITS_ATOL = 1e-3, 1e-4


def logistic(record_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(_size(record_shape), classes))


def mlp(record_shape: tuple[int, ...], classes: int) -> nn.Module:
    """One hidden layer of 32 ReLU units."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(_size(record_shape), 32), nn.ReLU(), nn.Linear(32, classes)
    )


def convnet(record_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The small ConvNet of Tensorflow Privacy and Opacus (Wang et al. 2023, appendix E.1)."""
    if len(record_shape) != 3 or min(record_shape[1:]) < 8:
        raise InvalidInput(
            "model convnet must have records of [channels, height >= 8, width >= 8], "
            f"got {record_shape}"
        )
    channels, *sides = record_shape
    after_pooling = [(side + 6 - 8) // 2 + 1 - 1 for side in sides]
    # On 8x8 pixels a 4x4 kernel does not fit the output of the first pooling, so small images get a
    # 2x2 kernel and no second pooling.
    if min(after_pooling) >= 6:
        after_second = [(side - 4) // 2 + 1 - 1 for side in after_pooling]
        middle: list[nn.Module] = [nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1)]
    else:
        after_second = [(side - 2) // 2 + 1 for side in after_pooling]
        middle = [nn.Conv2d(16, 32, 2, 2), nn.ReLU()]
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        *middle,
        nn.Flatten(),
        nn.Linear(32 * after_second[0] * after_second[1], 32),
        nn.ReLU(),
        nn.Linear(32, classes),
    )


_FACTORIES = dict(zip(MODELS, (logistic, mlp, convnet), strict=True))


def make_model(
    name: str, seed: int, record_shape: tuple[int, ...], classes: int, dtype: torch.dtype
) -> nn.Module:
    """A model with its initial weights w_0, in training mode.

    The name is one of MODELS, or the dotted name "package.module.callable" of a callable that
    returns a `torch.nn.Module`. It receives record_shape and classes if it has parameters of these
    names. The seed determines the initial weights; the global generators do not change.
    InvalidInput states why a model does not fit, or why its gradients cannot be clipped per record.
    """
    name = checks.one_of("model", name, MODELS, dotted=True)
    factory: Any = _FACTORIES.get(name) or _user_factory(name)
    with seeded_generators(seed), errors_in_one_line(f"model {name} cannot be created"):
        takes = set(inspect.signature(factory).parameters)
        fits = takes >= {"record_shape", "classes"}
        model = factory(record_shape=record_shape, classes=classes) if fits else factory()
    if not isinstance(model, nn.Module):
        raise InvalidInput(
            f"model {name} must return a torch.nn.Module, got {type(model).__name__}"
        )
    _check_per_record_gradients(name, model)
    model = model.to(dtype).train()
    misfit = f"model {name} does not fit records of shape {record_shape}"
    with errors_in_one_line(misfit), torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        records = torch.rand(2, *record_shape, dtype=dtype, generator=generator)
        logits = model(records)
        alone = [model(record[None]) for record in records]
    returned = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if returned != [2, classes]:
        raise InvalidInput(
            f"model {name} must return [records, {classes}] logits, got {returned} for 2 records"
        )
    apart = torch.cat(alone)
    agree = apart.shape == logits.shape and torch.allclose(
        apart, logits, rtol=_LOGITS_RTOL, atol=_LOGITS_ATOL, equal_nan=True
    )
    if not agree:
        raise InvalidInput(
            f"model {name} must compute each record's logits independently and deterministically, "
            "got different logits for 2 records together and for each alone"
        )
    return model


def _size(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _user_factory(name: str) -> Any:
    factory = import_by_name("model", name)
    if not callable(factory):
        raise InvalidInput(f"model must be a function or class, got {factory!r} from {name}")
    return factory


def _check_per_record_gradients(name: str, model: nn.Module) -> None:
    for module in model.modules():
        of_tensors = any(tensor._backward_hooks for tensor in module.parameters(recurse=False))
        if of_tensors or module._backward_hooks or module._backward_pre_hooks:
            raise InvalidInput(
                f"model {name} must not change its gradients, got a backward hook on "
                f"{type(module).__name__}"
            )
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise InvalidInput(
                f"model {name} must have a gradient per record, got {type(module).__name__}, which "
                "mixes the records of a batch; use GroupNorm instead"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise InvalidInput(
                f"model {name} must be deterministic, got {type(module).__name__}, "
                "which does not use the runs' random streams"
            )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InvalidInput(f"model {name} must have parameters to train, got none")
