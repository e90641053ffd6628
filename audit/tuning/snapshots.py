"""The complete state of a training loop: its objects, and every generator of random numbers.

A run that is resumed from such a state takes the same steps with the same noise as a run that was
not interrupted. If it cannot do so, it draws new noise. A step that is repeated with the same noise
and another rounding reveals more than one step, and so does one that is repeated with new noise and
the same batch. The proof for repeated steps needs new noise and new batches (docs/theory.md,
"Interrupted runs"). So a run that is resumed in such a case draws from new states of all generators
that `load_state` restores.
"""

import hashlib
import os
import platform
import random
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit import checks
from audit.errors import InvalidInput
from audit.opacus_objects import accountant_of
from audit.tuning.isolation import tensors_of

_SEED_BITS = 256
_TORCH_SEED_BITS = 63
_SECURE_MODE = "the generator of Opacus' secure_mode has no state that can be saved"
_NOT_DETERMINISTIC = (
    "steps on a device other than the processor are not reproducible without "
    "torch.use_deterministic_algorithms(True)"
)
_JAX_ON_GPU = (
    "steps of JAX on a GPU are not reproducible without --xla_gpu_deterministic_ops=true in the "
    "variable XLA_FLAGS"
)
# Numbers of Opacus' optimizers that some of its schedulers and subclasses change.
_OPTIMIZER_NUMBERS = ("noise_multiplier", "max_grad_norm")


def renew_global_generators() -> None:
    """Seeds the generators of Python, numpy and torch (on all devices) from secret entropy."""
    random.seed(secrets.randbits(_SEED_BITS))
    seed_numpy_state(np.random)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(secrets.randbits(_TORCH_SEED_BITS))


def seed_torch_generator(generator: Any) -> None:
    """Seeds a torch generator."""
    generator.manual_seed(secrets.randbits(_TORCH_SEED_BITS))


def seed_numpy_generator(generator: np.random.Generator) -> None:
    """Gives a numpy generator a new state of the same kind."""
    bits: Any = generator.bit_generator
    bits.state = type(bits)(np.random.SeedSequence(secrets.randbits(_SEED_BITS))).state


def seed_numpy_state(state: Any) -> None:
    """Seeds numpy's global state, or a `RandomState`."""
    state.seed([secrets.randbits(32) for _ in range(_SEED_BITS // 32)])


def seed_python_generator(generator: random.Random) -> None:
    """Seeds a generator of Python."""
    generator.seed(secrets.randbits(_SEED_BITS))


def with_new_keys(value: Any) -> Any:
    """The value with a new key of JAX in place of each key, at any depth.

    Raises:
        InvalidInput: it may hold a key of the old form, which looks like an array of integers.
    """
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return value
    if isinstance(value, jax.Array):
        return _new_key(jax, value)
    if isinstance(value, Mapping | list | tuple) or not jax.tree_util.all_leaves([value]):
        change: Callable[[Any], Any] = with_new_keys
        return jax.tree_util.tree_map(
            lambda leaf: change(leaf) if isinstance(leaf, jax.Array) else leaf, value
        )
    return value


def _new_key(jax: Any, array: Any) -> Any:
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        data = secrets.randbits(32)
        fold = jax.random.fold_in
        return fold(array, data) if array.ndim == 0 else jax.vmap(fold, (0, None))(array, data)
    if array.dtype == jax.numpy.uint32 and array.ndim and array.shape[-1] in (2, 4):
        raise InvalidInput(
            "keys of JAX must be made by jax.random.key, so that a run that repeats steps can draw "
            "new noise, got an array that may be a key of jax.random.PRNGKey"
        )
    return array


def take(objects: Mapping[str, Any], device: str = "cpu") -> dict[str, Any]:
    """The states of the given objects, by name, and those of the global generators.

    Args:
        objects: the objects of the run, by name.
        device: the device of the run.

    Raises:
        InvalidInput: an object has no state that can be stored.
    """
    return {
        "objects": {name: _state_of(value) for name, value in objects.items()},
        "generators": _global_states(device),
    }


def restore(
    saved: Mapping[str, Any], objects: Mapping[str, Any], device: str = "cpu"
) -> dict[str, Any]:
    """Restores objects and global generators in place; returns the values that have no object.

    Args:
        saved: the result of `take`.
        objects: the objects of the resumed run, by the same names.
        device: the device of the resumed run, for tensors that were not on the processor.

    Raises:
        InvalidInput: the names are not those of the saved objects, or an object has another kind.
    """
    states = saved["objects"]
    if unknown := sorted(objects.keys() - states.keys()):
        raise InvalidInput(f"load_state must name objects that save_state named, got {unknown[0]}")
    values = {}
    for name, (kind, state) in states.items():
        if kind == "value":
            values[name] = _on_device(state, device)
        elif name not in objects:
            raise InvalidInput(
                f"load_state must be given {name}, which save_state was given, so that its state "
                "is restored"
            )
        elif kind == "tree":
            values[name] = _tree_like(name, objects[name], state)
        elif (restored := _kind_of(objects[name])) is None or restored.name != kind:
            raise InvalidInput(
                f"{name} must be of the kind that save_state was given, got "
                f"{checks.kind_of(objects[name])}"
            )
        else:
            restored.restore(objects[name], state)
    _set_global_states(saved["generators"], device)
    return values


def renew(objects: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Gives all generators new states: the global ones, those of the objects, and keys of JAX.

    Args:
        objects: the objects of the run, by name.
        values: the values that `restore` returned.

    Returns:
        The values, with new keys.

    Raises:
        InvalidInput: a value may hold a key of JAX that is not recognised.
    """
    renew_global_generators()
    for value in objects.values():
        kind = _kind_of(value)
        if kind is not None and kind.renew is not None:
            kind.renew(value)
    return {name: with_new_keys(value) for name, value in values.items()}


def reason_to_redraw(objects: Mapping[str, Any]) -> str:
    """Why a run that is resumed with these objects would not take the same steps; "" if it would.

    The noise of Opacus' `secure_mode` cannot be continued, and sums on a GPU depend on the order in
    which its threads end unless torch or XLA fixes it.
    """
    if any(getattr(value, "secure_mode", False) is True for value in objects.values()):
        return _SECURE_MODE
    if _is_on_gpu_of_jax(objects) and not _is_deterministic_xla():
        return _JAX_ON_GPU
    torch = sys.modules.get("torch")
    if torch is None or torch.are_deterministic_algorithms_enabled():
        return ""
    elsewhere = any(
        tensor.device.type != "cpu" for value in objects.values() for tensor in tensors_of(value)
    )
    return _NOT_DETERMINISTIC if elsewhere else ""


def reason_of_process() -> str:
    """Why steps of this process may not be reproducible, whatever its objects are; "" if they are.

    It may name a GPU that a run did not use.
    """
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if (
        torch is not None
        and torch.cuda.is_initialized()
        and not torch.are_deterministic_algorithms_enabled()
    ):
        return _NOT_DETERMINISTIC
    if jax is not None and jax.default_backend() == "gpu" and not _is_deterministic_xla():
        return _JAX_ON_GPU
    return ""


def _is_deterministic_xla() -> bool:
    return "--xla_gpu_deterministic_ops=true" in os.environ.get("XLA_FLAGS", "")


def _is_on_gpu_of_jax(objects: Mapping[str, Any]) -> bool:
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return False
    leaves = jax.tree_util.tree_leaves(dict(objects))
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    return any(device.platform == "gpu" for array in arrays for device in array.devices())


def recorded_steps(objects: Mapping[str, Any]) -> int | None:
    """Number of steps that the Opacus accountants among the objects have recorded; None without."""
    accountants = {
        id(accountant): accountant
        for value in objects.values()
        if hasattr(accountant := accountant_of(value), "history")
        and hasattr(accountant, "get_epsilon")
    }
    if not accountants:
        return None
    histories = [accountant.history for accountant in accountants.values()]
    return sum(int(entry[2]) for history in histories for entry in history)


def machine() -> dict[str, str]:
    """Properties of this machine that change how numbers are rounded."""
    properties = {"numpy": np.__version__, "features": _processor_features()}
    torch = sys.modules.get("torch")
    if torch is not None:
        properties["torch"] = str(torch.__version__)
        properties["processor"] = str(torch.backends.cpu.get_cpu_capability())
        # A sum that several threads share is rounded as their shares are.
        properties["threads"] = str(torch.get_num_threads())
        if torch.cuda.is_initialized():
            properties["device"] = str(torch.cuda.get_device_name())
    jax: Any = sys.modules.get("jax")
    if jax is not None:
        properties["jax"] = str(jax.__version__)
    return properties


def _processor_features() -> str:
    """A digest of the instruction sets that numpy finds; libraries choose their code by them."""
    umath: Any = getattr(getattr(np, "_core", None), "_multiarray_umath", None)
    features = getattr(umath, "__cpu_features__", {})
    names = sorted(name for name, is_present in features.items() if is_present)
    text = repr((platform.machine(), names or platform.processor()))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def watch_steps(objects: Mapping[str, Any], before_step: Callable[[], None]) -> bool:
    """Calls a function before the noise of every step of Opacus' optimizers among the objects.

    Returns:
        Whether every step is seen. An optimizer whose steps do not call `add_noise`, such as those
        that add noise per layer, is not.
    """
    opacus: Any = sys.modules.get("opacus.optimizers")
    if opacus is None:
        return False
    visible = {opacus.DPOptimizer.pre_step, opacus.DPOptimizerFastGradientClipping.pre_step}
    optimizers = [value for value in objects.values() if isinstance(value, opacus.DPOptimizer)]
    if not optimizers or any(type(optimizer).pre_step not in visible for optimizer in optimizers):
        return False
    for optimizer in optimizers:
        # In place of the method, so that no noise of a refused step is drawn.
        add_noise = getattr(optimizer.add_noise, "add_noise", optimizer.add_noise)
        optimizer.add_noise = _WatchedNoise(add_noise, before_step)
    return True


@dataclass(frozen=True)
class _WatchedNoise:
    """The method `add_noise` of an optimizer, after a call of a function."""

    add_noise: Callable[[], None]
    before_step: Callable[[], None]

    def __call__(self) -> None:
        self.before_step()
        self.add_noise()


def _is_torch(*path: str) -> Callable[[Any], bool]:
    """Whether a value is of a class of torch, such as ("utils", "data", "DataLoader")."""

    def is_instance(value: Any) -> bool:
        resolved = sys.modules.get("torch")
        if resolved is None:
            return False
        for name in path:
            resolved = getattr(resolved, name)
        return isinstance(value, resolved)  # type: ignore[arg-type]

    return is_instance


def _has_state(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None))


def _set_loader(loader: Any, states: Sequence[Any]) -> None:
    for generator, state in zip(_generators_of(loader), states, strict=True):
        generator.set_state(state)


def _seed_all(generators: Sequence[Any]) -> None:
    """Seeds torch generators; that of `secure_mode` has no seed, and its noise is always new."""
    for generator in generators:
        if hasattr(generator, "get_state") and hasattr(generator, "manual_seed"):
            seed_torch_generator(generator)


def _set_bit_generator(generator: np.random.Generator, state: Any) -> None:
    generator.bit_generator.state = state


@dataclass(frozen=True)
class _Kind:
    """A kind of objects whose state is restored in place: its name, and how it is recognised.

    `renew` gives its generators new states; it is None for objects that have no generator.
    """

    name: str
    includes: Callable[[Any], bool]
    state: Callable[[Any], Any]
    restore: Callable[[Any, Any], object]
    renew: Callable[[Any], None] | None = None


_KINDS = (
    _Kind(
        "torch generator",
        _is_torch("Generator"),
        lambda generator: generator.get_state(),
        lambda generator, state: generator.set_state(state),
        seed_torch_generator,
    ),
    _Kind(
        "loader",
        _is_torch("utils", "data", "DataLoader"),
        lambda loader: [generator.get_state() for generator in _generators_of(loader)],
        _set_loader,
        lambda loader: _seed_all(_generators_of(loader)),
    ),
    _Kind(
        "numpy generator",
        lambda value: isinstance(value, np.random.Generator),
        lambda generator: generator.bit_generator.state,
        _set_bit_generator,
        seed_numpy_generator,
    ),
    _Kind(
        "numpy state",
        lambda value: isinstance(value, np.random.RandomState),
        lambda generator: generator.get_state(legacy=False),
        lambda generator, state: generator.set_state(state),
        seed_numpy_state,
    ),
    _Kind(
        "python generator",
        lambda value: isinstance(value, random.Random),
        lambda generator: generator.getstate(),
        lambda generator, state: generator.setstate(state),
        seed_python_generator,
    ),
    _Kind(
        "optimizer",  # of Opacus
        lambda value: _has_state(value) and hasattr(value, "original_optimizer"),
        lambda optimizer: _optimizer_state(optimizer),
        lambda optimizer, state: _set_optimizer_state(optimizer, state),
        lambda optimizer: _seed_all([optimizer.generator]),
    ),
    _Kind(
        "stateful",
        _has_state,
        lambda value: value.state_dict(),
        lambda value, state: value.load_state_dict(state),
    ),
    _Kind(
        "engine",
        lambda value: hasattr(getattr(value, "accountant", None), "state_dict"),
        lambda engine: engine.accountant.state_dict(),
        lambda engine, state: engine.accountant.load_state_dict(state),
    ),
)
"""The kinds, of which the first that includes an object is its kind."""


def _kind_of(value: Any) -> _Kind | None:
    return next((kind for kind in _KINDS if kind.includes(value)), None)


def _state_of(value: Any) -> tuple[str, Any]:
    """The name of a kind and a state; the kind `tree` or `value` of what is restored as a copy."""
    kind = _kind_of(value)
    if kind is not None:
        return kind.name, kind.state(value)
    if _is_tree(value):
        leaves, structure = sys.modules["jax"].tree_util.tree_flatten(value)
        return "tree", {"leaves": leaves, "structure": str(structure)}
    return "value", value


def _optimizer_state(optimizer: Any) -> dict[str, Any]:
    """The state of Opacus' optimizer. Its own `state_dict` contains neither of the last two."""
    generator = None if optimizer.secure_mode else optimizer.generator
    return {
        "state": optimizer.state_dict(),
        "generator": None if generator is None else generator.get_state(),
        "numbers": {name: getattr(optimizer, name) for name in _OPTIMIZER_NUMBERS},
    }


def _set_optimizer_state(optimizer: Any, state: Mapping[str, Any]) -> None:
    optimizer.load_state_dict(state["state"])
    if state["generator"] is not None:
        if optimizer.generator is None:
            raise InvalidInput(
                "optimizer must have a noise_generator, as the one that save_state was given"
            )
        optimizer.generator.set_state(state["generator"])
    for name, number in state["numbers"].items():
        setattr(optimizer, name, number)


def _generators_of(loader: Any) -> list[Any]:
    """The generators of a loader and of its samplers, each once."""
    holders = [loader]
    for name in ("batch_sampler", "sampler"):
        sampler = getattr(loader, name, None)
        holders += [sampler, getattr(sampler, "sampler", None)]
    generators = [getattr(holder, "generator", None) for holder in holders]
    with_state = [generator for generator in generators if hasattr(generator, "get_state")]
    return list({id(generator): generator for generator in with_state}.values())


def _is_tree(value: Any) -> bool:
    """Whether a value is a tree of JAX whose nodes are objects, such as the state of optax."""
    jax: Any = sys.modules.get("jax")
    if jax is None or isinstance(value, jax.Array) or jax.tree_util.all_leaves([value]):
        return False
    plain = (dict, list, tuple)
    nodes = [value]
    while nodes:
        node = nodes.pop()
        if type(node) in plain:
            nodes += node.values() if isinstance(node, dict) else node
        elif node is not None and not jax.tree_util.all_leaves([node]):
            return True
    return False


def _tree_like(name: str, template: Any, state: Mapping[str, Any]) -> Any:
    tree_util = sys.modules["jax"].tree_util if "jax" in sys.modules else None
    structure = None if tree_util is None else tree_util.tree_structure(template)
    if tree_util is None or str(structure) != state["structure"]:
        raise InvalidInput(f"{name} must have the structure that save_state was given")
    return tree_util.tree_unflatten(structure, state["leaves"])


def _on_device(value: Any, device: str) -> Any:
    torch: Any = sys.modules.get("torch")
    if device == "cpu" or torch is None or not isinstance(value, torch.Tensor):
        return value
    return value.to(device)


def _global_states(device: str) -> dict[str, Any]:
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state_all()
            # "cuda" alone is the current device.
            index = torch.device(device).index if device.startswith("cuda") else None
            states["current"] = torch.cuda.current_device() if index is None else index
    return states


def _set_global_states(states: Mapping[str, Any], device: str) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    if "torch" not in states:
        return
    import torch

    torch.set_rng_state(states["torch"])
    devices = states.get("cuda", [])
    for index, state in enumerate(devices):
        if index < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, index)
    # The run may have another device of the machine than before.
    if devices and device.startswith("cuda"):
        torch.cuda.set_rng_state(devices[states["current"]], device)
