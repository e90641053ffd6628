"""Trees of arrays: dictionaries, lists and tuples of numpy, JAX, TensorFlow or torch arrays.

A tree is taken apart into leaves with numpy values and put together again with other values. Each
leaf keeps its library and its type: a bfloat16 array of JAX comes back as one.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit import checks
from audit.errors import InvalidInput

Values = np.ndarray[Any, np.dtype[Any]]
_MAX_DEPTH = 32


@dataclass(frozen=True)
class Leaf:
    """One array of a tree.

    Attributes:
        name: the path that leads to it, such as "layers[0].w".
        values: its numbers, in its own type.
        restore: makes an array of the same library and type from other values.
    """

    name: str
    values: Values
    restore: Callable[[Values], Any]


@dataclass(frozen=True)
class Tree:
    """A tree of arrays.

    Attributes:
        leaves: its arrays, without empty ones.
        rebuild: makes the same tree from other leaves.

    Example:
        >>> tree = Tree.of({"w": np.ones(2, np.float32), "b": [0.5]})
        >>> [leaf.name for leaf in tree.leaves]
        ['w', 'b[0]']
        >>> tree.with_values([leaf.values * 2 for leaf in tree.leaves])
        {'w': array([2., 2.], dtype=float32), 'b': [1.0]}
    """

    leaves: tuple[Leaf, ...]
    rebuild: Callable[[Sequence[Any]], Any]

    @classmethod
    def of(cls, value: Any, parameter: str = "noisy") -> "Tree":
        """Takes a tree apart.

        Args:
            value: an array, a number, or dictionaries, lists and tuples of them. None is no leaf.
            parameter: name of the value in error messages.

        Raises:
            InvalidInput: a leaf is no array of real numbers, or there is no leaf.
        """
        leaves: list[Leaf] = []
        rebuild = _take_apart(value, "", parameter, leaves, 0)
        if not leaves:
            raise InvalidInput(
                f"{parameter} must hold at least one array of numbers, got "
                f"{checks.kind_of(value)} without any"
            )
        return cls(tuple(leaves), lambda values: rebuild(iter(values)))

    @property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """Name, shape and type of every leaf."""
        return tuple((e.name, e.values.shape, str(e.values.dtype)) for e in self.leaves)

    def with_values(self, values: Sequence[Values]) -> Any:
        """The tree with other values, each in the library and the type of its leaf."""
        pairs = zip(self.leaves, values, strict=True)
        return self.rebuild([leaf.restore(value) for leaf, value in pairs])


def as_numbers(value: Any) -> Values | None:
    """An array of numpy, JAX, TensorFlow or torch as numpy's, in its own type; None for others.

    Keys of JAX's generators become the numbers that they hold.

    Example:
        >>> as_numbers(np.float32(0.5)), as_numbers("text")
        (array(0.5, dtype=float32), None)
    """
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        return _of_torch(value)
    if not (hasattr(value, "dtype") and hasattr(value, "shape")):
        return None
    if is_random_key(value):
        return np.asarray(sys.modules["jax"].random.key_data(value))
    if hasattr(value, "numpy"):  # TensorFlow's tensors and variables
        return np.asarray(value.numpy())
    return np.asarray(value) if hasattr(value, "__array__") else None


def in_plain_type(values: Values) -> Values:
    """Numbers in a type of numpy's own, without rounding: bfloat16 becomes float64.

    Example:
        >>> in_plain_type(np.ones(1, np.float32)).dtype.name
        'float32'
    """
    small = values.dtype.kind == "V" and values.dtype.name.startswith(("bfloat", "float"))
    return values.astype(np.float64) if small else values


def is_random_key(value: Any) -> bool:
    """Whether a value is a typed key of JAX's generators."""
    return type(value).__module__.startswith("jax") and str(getattr(value, "dtype", "")).startswith(
        "key<"
    )


def is_traced(value: Any) -> bool:
    """Whether JAX is tracing a function, so that a value in the tree has no numbers yet."""
    jax = sys.modules.get("jax")
    if jax is None:
        return False
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(value))


def _take_apart(
    value: Any, path: str, parameter: str, leaves: list[Leaf], depth: int
) -> Callable[[Any], Any]:
    """Appends the leaves of a value, and returns a function that takes new ones from an iterator.

    The function visits the leaves in the same order, so that each gets its own value back.
    """
    if depth > _MAX_DEPTH:
        raise InvalidInput(f"{parameter} must not be nested more than {_MAX_DEPTH} levels deep")

    def children(pairs: Sequence[tuple[str, Any]]) -> list[Callable[[Any], Any]]:
        return [_take_apart(child, name, parameter, leaves, depth + 1) for name, child in pairs]

    if value is None:
        return lambda values: None
    leaf = _leaf(value, path or parameter, parameter)
    if leaf is not None:
        if leaf.values.size == 0:
            return lambda values: value
        leaves.append(leaf)
        return next
    if isinstance(value, Mapping):
        keys = list(value)
        rebuilders = children([(_joined(path, str(key)), value[key]) for key in keys])
        kind = type(value) if type(value) is not dict else dict

        def mapping(values: Any) -> Any:
            new = {key: rebuild(values) for key, rebuild in zip(keys, rebuilders, strict=True)}
            return new if kind is dict else kind(new)  # type: ignore[call-arg]

        return mapping
    if isinstance(value, list | tuple):
        rebuilders = children([(f"{path}[{i}]", child) for i, child in enumerate(value)])
        if hasattr(value, "_fields"):
            return lambda values: type(value)(*[rebuild(values) for rebuild in rebuilders])
        return lambda values: type(value)([rebuild(values) for rebuild in rebuilders])
    jax = sys.modules.get("jax")
    if jax is not None and not jax.tree_util.all_leaves([value]):
        inner, structure = jax.tree_util.tree_flatten(value)
        rebuilders = children([(f"{path}[{i}]", child) for i, child in enumerate(inner)])
        return lambda values: jax.tree_util.tree_unflatten(
            structure, [rebuild(values) for rebuild in rebuilders]
        )
    raise InvalidInput(
        f"{parameter} must be an array or dictionaries, lists and tuples of arrays, got "
        f"{checks.kind_of(value)}" + (f" at {path}" if path else "")
    )


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _leaf(value: Any, name: str, parameter: str) -> Leaf | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        kind = type(value)
        return Leaf(name, np.asarray(float(value)), lambda values: kind(values.item()))
    if is_random_key(value):
        raise InvalidInput(f"{parameter} must hold numbers, got a random key at {name}")
    values = as_numbers(value)
    if values is None:
        return None
    if values.dtype.kind not in "fiu" and values.dtype.name not in ("bfloat16",):
        raise InvalidInput(
            f"{parameter} must hold real numbers, got {values.dtype} at {name}"
            + (": pass real and imaginary parts" if values.dtype.kind == "c" else "")
        )
    return Leaf(name, values, _restorer(value, values))


def _restorer(value: Any, values: Values) -> Callable[[Values], Any]:
    """A function that makes an array like `value` from other numbers."""
    dtype, shape = values.dtype, values.shape

    def typed(new: Values) -> Values:
        if dtype.kind in "iu":
            new = np.rint(new)
        return np.asarray(new).astype(dtype).reshape(shape)

    if isinstance(value, np.generic):
        return lambda new: typed(new)[()]
    if isinstance(value, np.ndarray):
        return typed
    module = type(value).__module__.split(".")[0]
    if module == "torch":
        torch = sys.modules["torch"]
        return lambda new: torch.as_tensor(
            np.asarray(new, np.float64), dtype=value.dtype, device=value.device
        ).reshape(value.shape)
    if module == "tensorflow":
        tensorflow = sys.modules["tensorflow"]
        return lambda new: tensorflow.convert_to_tensor(typed(new), dtype=value.dtype)
    if module in ("jax", "jaxlib"):
        jax = sys.modules["jax"]
        return lambda new: jax.device_put(typed(new), value.sharding)
    return typed


def _of_torch(value: Any) -> Values:
    tensor = value.detach().cpu()
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()  # numpy has no bfloat16
    return np.asarray(tensor.numpy())
