"""What a layer is, and how a module becomes a list of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

from audit.dpsgd.parameters import Parameters
from audit.dpsgd.program import Program
from audit.dpsgd.record_gradients import RecordGradients

Description = Callable[[Any], "list[Layer]"]
_Describe = TypeVar("_Describe", bound=Description)
_DESCRIPTIONS: dict[type[nn.Module], Description] = {}


class Layer(ABC):
    """One layer of R stacked models, described by plain numbers."""

    @property
    def parameters(self) -> int:
        """How many parameter tensors it owns."""
        return 0

    @abstractmethod
    def forward(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        """The output [R, m, ...], and what `backward` needs."""

    @abstractmethod
    def backward(
        self, theta: Parameters, saved: Any, delta: Tensor, need_input: bool
    ) -> tuple[Tensor | None, RecordGradients | None]:
        """From the loss's gradient by the output: that by the input, and those of the records."""

    def compile(self, program: Program) -> None:
        """Adds the layer to a compiled program.

        Raises:
            NotImplementedError: a layer that the compiled extension does not know.
        """
        raise NotImplementedError(f"{type(self).__name__} in a compiled network")


class FirstLayer(Layer):
    """A layer whose input may be the records themselves, the same in every run and step."""

    def prepare(self, features: Tensor) -> Tensor:
        """What can be computed from [m, ...] records once for all runs and steps."""
        return features

    def forward_prepared(self, theta: Parameters, x: Tensor) -> tuple[Tensor, Any]:
        """As `forward`, from prepared records: [m, ...], or run by run [R, m, ...]."""
        return self.forward(theta, x)


def describes(*kinds: type[nn.Module]) -> Callable[[_Describe], _Describe]:
    """Registers a function from a module to its layers.

    It raises NotImplementedError for a module with options that the layers do not have.
    """

    def register(describe: _Describe) -> _Describe:
        _DESCRIPTIONS.update(dict.fromkeys(kinds, describe))
        return describe

    return register


@dataclass(frozen=True)
class Network:
    """A sequence of layers.

    Attributes:
        before: those without parameters that come first; each is one module.
        first: the first with parameters.
        after: all others.
    """

    before: tuple[Layer, ...]
    first: FirstLayer
    after: tuple[Layer, ...]


def parse_network(model: nn.Module) -> Network:
    """The layers of a sequential model.

    Raises:
        NotImplementedError: a model that is no sequence of known layers, each with parameters of
            its own.
    """
    layers = [layer for module in sequence(model) for layer in _layers_of(module)]
    if sum(layer.parameters for layer in layers) != len(list(model.parameters())):
        raise NotImplementedError("parameters that several layers share")
    at = next((i for i, layer in enumerate(layers) if layer.parameters), 0)
    first = layers[at] if layers else None
    if not isinstance(first, FirstLayer):
        raise NotImplementedError(f"{type(first).__name__} as the first layer with parameters")
    return Network(tuple(layers[:at]), first, tuple(layers[at + 1 :]))


def sequence(model: nn.Module) -> list[nn.Module]:
    """The modules of nested `nn.Sequential`, in order; the model itself where it is none."""
    if type(model) is nn.Sequential:
        return [part for child in model for part in sequence(child)]
    return [model]


def _layers_of(module: nn.Module) -> list[Layer]:
    """The layers of a module of torch's own; a subclass from elsewhere may compute anything."""
    name = type(module).__name__
    if not type(module).__module__.startswith("torch.nn.modules."):
        raise NotImplementedError(f"{name}, which is not of torch.nn")
    if any(not p.requires_grad for p in module.parameters()):
        raise NotImplementedError(f"{name} with parameters that are not trained")
    for kind in type(module).__mro__:
        if kind in _DESCRIPTIONS:
            return _DESCRIPTIONS[kind](module)
    raise NotImplementedError(name)
