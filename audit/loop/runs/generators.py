"""Random generators of a training function: digests of their states, and random keys of JAX.

Two coupled runs draw the same noise if all of their generators have the same states in each step.
The global generators are known. Others are found among the local variables of the functions that
are running, such as a numpy Generator for batches and noise.

A key of JAX is no state that moves: anyone who knows it can draw the same numbers again, and derive
the same further keys. So a returned key reveals the noise if the key of each draw was derived from
it. A key that is still unused reveals nothing. The calls of `jax.random` during a run show which
keys were used; calls within compiled functions are not seen.
"""

import contextlib
import functools
import hashlib
import random
import sys
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from audit.loop.sources.trees import as_numbers, is_random_key, is_traced
from audit.opacus_objects import (
    batch_sampler_of,
    global_generators,
    is_of_opacus,
    own_generator_of,
)

# Forms of the states of numpy, of torch's CPU generator, and of Python's Mersenne Twister.
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_SHAPE_OF_TORCH, _SHAPE_OF_PYTHON = (5056,), (625,)
_CLASSES = np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random
_MAX_DEPTH, _MAX_ITEMS, _MAX_VISITED = 3, 64, 1000
_Read = Callable[[Any], bytes | None]
_Split = Callable[[Any], Iterable[Any]]
_WITHOUT_GENERATORS: set[type] = set()
"""Types whose values were seen to hold no generator."""

NOISE, BATCHES = "noise", "batches"
_PURPOSES = {
    NOISE: ("normal", "multivariate_normal", "laplace"),
    BATCHES: ("bernoulli", "uniform", "choice", "permutation", "binomial", "randint"),
}
_OF_INDICES = ("choice", "permutation", "randint")
_DERIVATIONS = ("split", "fold_in", "clone")


def digest_of_generators(optimizer: Any, last: types.CodeType | None) -> bytes:
    """A digest of the states of all generators in use.

    Args:
        optimizer: the watched optimizer, whose own generator is one of them.
        last: code of the function whose callees are searched for further generators; None searches
            nothing.
    """
    state = hashlib.blake2b(digest_size=16)
    state.update(repr(hash(random.getstate())).encode())
    _, keys, place, *normal_cache = np.random.get_state()  # noqa: NPY002
    state.update(np.asarray(keys).tobytes() + repr((place, normal_cache)).encode())
    torch = sys.modules["torch"]
    state.update(torch.get_rng_state().numpy().tobytes())
    if torch.cuda.is_initialized():
        for device_state in torch.cuda.get_rng_state_all():
            state.update(device_state.numpy().tobytes())
    generator = getattr(optimizer, "generator", None)
    if generator is not None:
        state.update(generator.get_state().cpu().numpy().tobytes())
    if last is not None:
        for _, local_state in _local_generators(last):
            state.update(local_state)
    return state.digest()


class PostProcessingStream:
    """Lets the random numbers of a part of a step be the same in all runs, whatever their seeds.

    Args:
        seed: the seed of this part, which depends on the number of the step alone.
        optimizer: the watched optimizer, whose own generator is one of the generators.
        last: code of the function whose callees are searched for further generators, or None.

    Attributes:
        has_drawn: whether numbers were drawn from it, or a generator was made, before its end.
    """

    def __init__(self, seed: int, optimizer: Any, last: types.CodeType | None) -> None:
        self._seed, self._optimizer, self._last = seed, optimizer, last
        self._restore: list[Callable[[], Any]] = []
        self._digest_at_start = b""
        self.has_drawn = False

    def start(self) -> None:
        """Seeds all known generators, once."""
        if self._restore:
            return
        torch = sys.modules["torch"]
        state = torch.get_rng_state()
        self._restore.append(functools.partial(torch.set_rng_state, state))
        if torch.cuda.is_initialized():
            states = torch.cuda.get_rng_state_all()
            self._restore.append(functools.partial(torch.cuda.set_rng_state_all, states))
            torch.cuda.manual_seed_all(self._seed)
        torch.default_generator.manual_seed(self._seed)
        numpy_state = np.random.get_state()  # noqa: NPY002
        self._restore.append(functools.partial(np.random.set_state, numpy_state))
        np.random.seed(self._seed)  # noqa: NPY002
        self._restore.append(functools.partial(random.setstate, random.getstate()))
        random.seed(self._seed)
        local_generators = [] if self._last is None else _local_generators(self._last)
        generators = [self._optimizer.__dict__.get("generator"), *(g for g, _ in local_generators)]
        for generator in {id(g): g for g in generators if g is not None}.values():
            self._seed_one(generator)
        self._digest_at_start = digest_of_generators(self._optimizer, self._last)

    def _seed_one(self, generator: Any) -> None:
        if isinstance(generator, np.random.Generator):
            generator = generator.bit_generator
        if isinstance(generator, np.random.BitGenerator):
            state = generator.state
            self._restore.append(functools.partial(setattr, generator, "state", state))
            generator.state = type(generator)(self._seed).state
        elif isinstance(generator, np.random.RandomState):
            self._restore.append(functools.partial(generator.set_state, generator.get_state()))
            generator.seed(self._seed)
        elif isinstance(generator, random.Random):
            self._restore.append(functools.partial(generator.setstate, generator.getstate()))
            generator.seed(self._seed)
        elif isinstance(generator, sys.modules["torch"].Generator):
            self._restore.append(functools.partial(generator.set_state, generator.get_state()))
            generator.manual_seed(self._seed)

    def end(self) -> None:
        """Restores the states from before."""
        if self._digest_at_start:
            digest = digest_of_generators(self._optimizer, self._last)
            self.has_drawn |= digest != self._digest_at_start
            self._digest_at_start = b""
        while self._restore:
            self._restore.pop()()


def global_states() -> dict[str, bytes]:
    """The states of the global generators of Python, numpy and torch on the CPU, by library."""
    states = {
        "Python": _of_bits(random.getstate()),
        "numpy": _of_bits(np.random.get_state(legacy=False)),  # noqa: NPY002
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def repeated_numbers(optimizer: Any, last: types.CodeType | None) -> str:
    """What is drawn from a generator whose seed another one has, "noise" or "batches", or "".

    The noise of an optimizer of Opacus comes from its generator, the batches from that of a loader
    among the local variables, and both from torch's global generator where these have none. If
    two of the three were drawn from and have the same seed, they are functions of the same numbers.

    Args:
        optimizer: the watched optimizer, before its first step.
        last: code of the function whose callees are searched for loaders.
    """
    if not is_of_opacus(optimizer):
        return ""
    noise = own_generator_of(optimizer)
    batches = [] if last is None else list(_generators_of_loaders(last))
    device = "cpu" if noise is None else noise.device.type
    generators = [*batches, *global_generators(device)]
    if noise is not None and any(_alike(noise, generator) for generator in generators):
        return "noise"
    # The noise comes from the global generator, and the batches from one with the same numbers.
    used = [generator for generator in batches if generator is not noise]
    if any(
        _alike(used_generator, generator)
        for used_generator in used
        for generator in global_generators("cpu")
    ):
        return "batches"
    return ""


def _alike(generator: Any, other: Any) -> bool:
    """Whether two generators have one seed, and both were drawn from."""
    torch = sys.modules["torch"]
    if generator is other or generator.device.type != other.device.type:
        return False
    if generator.initial_seed() != other.initial_seed():
        return False
    fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed()).get_state()
    return not any(torch.equal(g.get_state(), fresh) for g in (generator, other))


def _generators_of_loaders(last: types.CodeType) -> Iterator[Any]:
    """Generators of the batches of data loaders among the variables of all callees of `last`."""
    for value in _variables(last):
        try:
            generator = own_generator_of(batch_sampler_of(value))
        except Exception:  # attributes of a user's object may raise anything
            continue
        if generator is not None:
            yield generator


def returned_states(numbers: Mapping[str, Any]) -> dict[str, str]:
    """Names of returned values that are the state of a generator, and the library of each.

    Args:
        numbers: returned numbers and texts by name, see `released_numbers.numbers_of`.

    Example:
        >>> returned_states({"loss": np.array(0.1), "name": np.array("PCG64")})
        {'name': 'numpy'}
    """
    libraries: dict[str, str] = {}
    for name, value in numbers.items():
        values = np.asarray(value)
        if values.dtype.kind == "U" and values.ndim == 0 and str(values) in _BIT_GENERATORS:
            libraries[name] = "numpy"
        elif values.dtype == np.uint8 and values.shape == _SHAPE_OF_TORCH:
            libraries[name] = "torch"
        elif values.dtype.kind == "i" and values.shape == _SHAPE_OF_PYTHON:
            libraries[name] = "Python"
    return libraries


def _local_generators(last: types.CodeType) -> Iterator[tuple[Any, bytes]]:
    """The generators among the variables of all functions that `last` called, and their states.

    This happens in each step of each run, and most values hold no generator. So values of such
    types are left out before they are visited.
    """
    seen: set[int] = set()
    pending = [(value, 0) for value in _variables(last) if type(value) not in _WITHOUT_GENERATORS]
    pending.reverse()  # the last one is visited first
    while pending:
        value, depth = pending.pop()
        if id(value) in seen or len(seen) > _MAX_VISITED:
            continue
        kind: Any = type(value)
        read, split = _readers(kind)
        if kind in _WITHOUT_GENERATORS:
            continue  # seen for the first time, and not counted, as later
        seen.add(id(value))
        state = None if read is None else read(value)
        if state is not None:
            yield value, state
        elif split is not None and depth < _MAX_DEPTH:
            members = [v for v in split(value) if type(v) not in _WITHOUT_GENERATORS]
            pending.extend((member, depth + 1) for member in reversed(members))


def _variables(last: types.CodeType) -> Iterator[Any]:
    """Local variables of all functions that `last` called, but for those of libraries."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not last:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(("audit.loop.", "torch.", "opacus.", "jax.")):
            yield from frame.f_locals.values()
        frame = frame.f_back  # type: ignore[assignment]


@functools.cache
def _readers(kind: Any) -> tuple[_Read | None, _Split | None]:
    """How values of a type are read as a generator, and how they are split; None if they hold none.

    Numbers, texts, arrays, tensors and modules hold no generator. What a watch holds is its record
    of the run, and the optimizer, which is read itself.
    """
    if issubclass(kind, str | bytes | int | float | np.ndarray | type | None):
        _WITHOUT_GENERATORS.add(kind)
        return None, None
    names = {f"{base.__module__.split('.')[0]}.{base.__name__}" for base in kind.__mro__}
    if names & {"torch.Tensor", "torch.Module", "torch._TensorBase", "audit.Watch"}:
        _WITHOUT_GENERATORS.add(kind)
        return None, None
    return _reader(kind), _splitter(kind)


def _reader(kind: Any) -> _Read | None:
    """Reads the state of a generator of this type; None for types that are no generators."""
    if issubclass(kind, _CLASSES):
        return lambda value: _of_bits(state_of_generator(value))
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(kind, torch.Generator):
        return lambda value: bytes(value.get_state().cpu().numpy().tobytes())
    if kind.__module__.startswith("jax"):
        return _state_of_key
    return None


def _state_of_key(value: Any) -> bytes | None:
    """The data of a random key of JAX; None for any other array."""
    if is_random_key(value) or _is_raw_key(value):
        numbers = as_numbers(value)
        return None if numbers is None else numbers.tobytes()
    return None


def _is_raw_key(value: Any) -> bool:
    """Whether a value has the type and shape of JAX's keys without a type of their own."""
    if not type(value).__module__.startswith("jax"):
        return False
    return getattr(value, "shape", None) == (2,) and str(getattr(value, "dtype", "")) == "uint32"


def state_of_generator(value: Any) -> Any:
    """The state of a numpy or Python generator; any other value itself."""
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.BitGenerator):
        return value.state
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    return value.getstate() if isinstance(value, random.Random) else value


def _of_bits(state: Any) -> bytes:
    if isinstance(state, Mapping):
        return b"".join(_of_bits(entry) for entry in state.values())
    if isinstance(state, np.ndarray):
        return state.tobytes()
    # The state of a Python generator is a tuple of 625 numbers.
    return repr(hash(state) if isinstance(state, tuple) else state).encode()


def _splitter(kind: Any) -> _Split | None:
    """Returns the values that an object of this type holds and that may be generators."""
    if issubclass(kind, Mapping):
        return lambda value: list(value.values())[:_MAX_ITEMS]
    if issubclass(kind, list | tuple):
        return lambda value: value[:_MAX_ITEMS]
    if issubclass(kind, types.GeneratorType):
        return lambda value: () if value.gi_frame is None else value.gi_frame.f_locals.values()
    if issubclass(kind, types.FunctionType):
        return _values_of_closure
    if issubclass(kind, types.MethodType):
        return lambda value: (value.__self__,)
    if issubclass(kind, types.ModuleType) or hasattr(kind, "named_parameters"):
        return None
    return lambda value: list(getattr(value, "__dict__", {}).values())[:_MAX_ITEMS]


def _values_of_closure(function: Any) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a variable that has no value yet
            continue


@dataclass(frozen=True)
class Draw:
    """One call of a function that draws numbers.

    Attributes:
        function: its name in `jax.random`.
        key: the key that it was given.
        size: how many numbers it returned.
    """

    function: str
    key: bytes
    size: int


@dataclass
class KeyUses:
    """The calls of `jax.random` in a run.

    Attributes:
        parents: the key from which each further key was derived.
        draws: the draws, in their order.

    Example:
        >>> draws = [Draw("normal", b"child", 3), Draw("uniform", b"other", 3)]
        >>> uses = KeyUses({b"child": b"key"}, draws)
        >>> uses.revealed_by(b"key", 1), uses.revealed_by(b"child", 2)
        ({'noise'}, set())
    """

    parents: dict[bytes, bytes] = field(default_factory=dict)
    draws: list[Draw] = field(default_factory=list)

    def revealed_by(self, key: bytes, min_uses: int) -> set[str]:
        """Purposes whose draws, at least this number, all follow from a key."""
        revealed = set()
        for purpose in _PURPOSES:
            draws = self.draws_for(purpose)
            if len(draws) >= min_uses and all(self._follows(draw.key, key) for draw in draws):
                revealed.add(purpose)
        return revealed

    def draws_for(self, purpose: str) -> list[Draw]:
        """The draws by functions that are used for noise, or for batches."""
        return [draw for draw in self.draws if draw.function in _PURPOSES[purpose]]

    def choices_of_records(self, n: int) -> "KeyUses":
        """The draws that may choose a batch of n records: n numbers, or indices.

        Other uniform numbers are initial weights, or of an augmentation.
        """
        draws = self.draws_for(BATCHES)
        return KeyUses(
            self.parents, [draw for draw in draws if draw.size == n or draw.function in _OF_INDICES]
        )

    def _follows(self, key: bytes, ancestor: bytes) -> bool:
        seen: set[bytes] = set()
        while key != ancestor:
            if key in seen or key not in self.parents:
                return False
            seen.add(key)
            key = self.parents[key]
        return True


def keys_in(value: Any) -> list[bytes]:
    """The keys in an array of keys, or of the numbers that they hold.

    Example:
        >>> len(keys_in(np.zeros((3, 2), np.uint32))), keys_in(np.zeros(2))
        (3, [])
    """
    numbers = as_numbers(value)
    if numbers is None or numbers.dtype != np.uint32 or numbers.ndim == 0:
        return []
    return [row.tobytes() for row in numbers.reshape(-1, numbers.shape[-1])]


@contextlib.contextmanager
def recorded_keys(silent: Container[int] = ()) -> Iterator[KeyUses]:
    """Records the calls of `jax.random` whose key is known, if JAX is loaded.

    Args:
        silent: of the draws by functions that are used for noise, numbered from 0, those that
            return zeros.
    """
    uses = KeyUses()
    jax = sys.modules.get("jax")
    if jax is None:
        yield uses
        return
    drawing = [name for functions in _PURPOSES.values() for name in functions]
    before = {
        name: getattr(jax.random, name)
        for name in (*_DERIVATIONS, *drawing)
        if hasattr(jax.random, name)
    }
    for name, function in before.items():
        of_noise: Container[int] = silent if name in _PURPOSES[NOISE] else ()
        setattr(jax.random, name, _recorded(uses, name, function, of_noise))
    try:
        yield uses
    finally:
        for name, function in before.items():
            setattr(jax.random, name, function)


def _recorded(
    uses: KeyUses, name: str, function: Callable[..., Any], silent: Container[int]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        key = args[0] if args else kwargs.get("key")
        if is_traced((key, result)):
            return result
        number = len(uses.draws_for(NOISE))
        for used in keys_in(key):
            if name in _DERIVATIONS:
                uses.parents |= dict.fromkeys((k for k in keys_in(result) if k != used), used)
            else:
                uses.draws.append(Draw(name, used, int(np.size(result))))
        return 0 * result if number in silent else result

    return recorded
