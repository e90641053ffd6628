"""The interface of a layer, and the conversion of a module to a list of layers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

from audit.dpsgd.parameters import Parameters, RecordGradients
from audit.dpsgd.program import Program

Description = Callable[[Any], "list[Layer]"]
_Describe = TypeVar("_Describe", bound=Description)
_DESCRIPTIONS: dict[type[nn.Module], Description] = {}


class Layer(ABC):
    """One layer of R stacked models."""

    @property
    def parameters(self) -> int:
        """The number of parameter tensors."""
        return 0

    @abstractmethod
    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        """The output, [R, m, ...], and the values that `backward` needs."""

    @abstractmethod
    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        """The gradient of the input and the per-record gradients, given that of the output."""

    def compile(self, program: Program) -> None:
        """Adds the layer to a compiled program; NotImplementedError if it has no such layer."""
        raise NotImplementedError(f"{type(self).__name__} in a compiled network")


class FirstLayer(Layer):
    """A layer whose input may be the records, which are the same in every run and step."""

    def prepare(self, features: Tensor) -> Tensor:
        """Records [m, ...] after the computations that all runs and steps share."""
        return features

    def forward_prepared(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        """`forward` for prepared records: shared, [m, ...], or per run, [R, m, ...]."""
        return self.forward(theta, x)


def describes(*kinds: type[nn.Module]) -> Callable[[_Describe], _Describe]:
    """Decorator that registers a function from a module to its layers.

    The function raises NotImplementedError for options that the layers do not support.
    """

    def register(describe: _Describe) -> _Describe:
        _DESCRIPTIONS.update(dict.fromkeys(kinds, describe))
        return describe

    return register


@dataclass(frozen=True)
class Network:
    """The layers before the first one with parameters (one module each), that one, and the rest."""

    before: tuple[Layer, ...]
    first_layer: FirstLayer
    after: tuple[Layer, ...]


def parse_network(model: nn.Module) -> Network:
    """The layers of a sequential model; NotImplementedError if unknown or if they share weights."""
    layers = [layer for module in sequence(model) for layer in _layers_of(module)]
    if sum(layer.parameters for layer in layers) != len(list(model.parameters())):
        raise NotImplementedError("parameters that several layers share")
    at = next((i for i, layer in enumerate(layers) if layer.parameters), 0)
    first_layer = layers[at] if layers else None
    if not isinstance(first_layer, FirstLayer):
        raise NotImplementedError(
            f"{type(first_layer).__name__} as the first layer with parameters"
        )
    return Network(tuple(layers[:at]), first_layer, tuple(layers[at + 1 :]))


def sequence(model: nn.Module) -> list[nn.Module]:
    """The modules of a nested `nn.Sequential`, in order; any other model as a single module."""
    if type(model) is nn.Sequential:
        return [part for child in model for part in sequence(child)]
    return [model]


def _layers_of(module: nn.Module) -> list[Layer]:
    """The layers of a module from torch.nn; subclasses defined elsewhere may compute anything."""
    name = type(module).__name__
    if not type(module).__module__.startswith("torch.nn.modules."):
        raise NotImplementedError(f"{name}, which is not from torch.nn")
    if any(not p.requires_grad for p in module.parameters()):
        raise NotImplementedError(f"{name} with parameters that are not trained")
    for kind in type(module).__mro__:
        if kind in _DESCRIPTIONS:
            return _DESCRIPTIONS[kind](module)
    raise NotImplementedError(name)
