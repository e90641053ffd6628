"""The objects that a run writes to files, by torch, safetensors, pickle and numpy.

A file of a script that holds the weights is what the owner releases. Everything else in it is
released with them: a mean of the features, the last loss, weights of an epoch that was chosen by
private records.
"""

import contextlib
import importlib.util
import os
import pickle
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.loop.runs.released_numbers import numbers_of
from audit.user_code import format_error

_OTHERS = (
    *("audit", "torch", "opacus", "contextlib", "functools", "lightning", "pytorch_lightning"),
    *("transformers", "accelerate", "safetensors", "fsspec"),
)
_Patch = tuple[Any, str, Any]
_MODULES_BELOW = 4


def line_of_user() -> str:
    """File and line of the innermost caller that belongs to the user; empty if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if package not in _OTHERS:
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


@dataclass(frozen=True)
class SavedFile:
    """An object that was written to a file.

    Attributes:
        name: name of the file, and how it was written.
        numbers: all numbers and texts of the object, by name.
        holds_weights: whether it holds tensors of the shapes of all trained parameters, or of all
            frozen ones.
        error: why the object could not be read; empty if it was.
        is_model: whether a script saves a module, its state, or matrices that are named weights.

    Example:
        >>> SavedFile("model.pt (torch.save)", {"bias": np.zeros(3)}, True).numbers["bias"].shape
        (3,)
    """

    name: str
    numbers: Mapping[str, Any]
    holds_weights: bool
    error: str = ""
    is_model: bool = False


class SavedFiles:
    """Records what a run saves.

    Args:
        keep: gets each saved object.
        shapes: returns the shapes of the parameters of each released module, by which a file with
            the weights is recognised; None where nothing is kept.
        created: notes new files, which compiled code opens.
    """

    def __init__(
        self,
        keep: Callable[[SavedFile], None],
        shapes: Callable[[], "Sequence[Shapes] | None"],
        created: "CreatedFiles",
    ) -> None:
        self._keep, self._shapes, self._created = keep, shapes, created
        self._is_saving = False

    def patches(self) -> list[_Patch]:
        """Replacements of the functions that save objects, as (module, name, function)."""
        torch: Any = sys.modules.get("torch")
        patches = [
            self._patch(pickle, "dump", "pickle.dump", _object_first),
            self._patch(np, "save", "numpy.save", _file_first),
            self._patch(np, "savez", "numpy.savez", _of_archive),
            self._patch(np, "savez_compressed", "numpy.savez_compressed", _of_archive),
        ]
        if torch is None:
            return patches
        patches.append(self._patch(torch, "save", "torch.save", _object_first))
        if importlib.util.find_spec("safetensors") is not None:
            tensors = importlib.import_module("safetensors.torch")

            # All functions of this module write by these two, which get addresses of numbers.
            def read_file(_: Any, __: Any, filename: Any, *___: Any, **____: Any) -> Any:
                return tensors.load_file(filename), filename

            def read_bytes(saved: Any, *_: Any, **__: Any) -> Any:
                return tensors.load(bytes(saved)), None

            patches += [
                self._patch(tensors, "serialize_file", "safetensors", read_file),
                self._patch(tensors, "serialize", "safetensors", read_bytes),
            ]
        return patches

    def _patch(
        self, module: Any, name: str, call: str, read: Callable[..., tuple[Any, Any]]
    ) -> _Patch:
        """The replacement of one function.

        Args:
            module: where the function is.
            name: its name there.
            call: its name in messages.
            read: returns the object and the file from the function's result and its arguments.
        """
        original = getattr(module, name)

        def recording(*args: Any, **kwargs: Any) -> Any:
            if self._is_saving:  # a function that another one calls
                return original(*args, **kwargs)
            self._is_saving = True
            self._created.note_paths([*args, *kwargs.values()])
            try:
                result = original(*args, **kwargs)
                shapes = self._shapes()
                if shapes is not None:
                    self._keep(_read(lambda: read(result, *args, **kwargs), call, shapes))
            finally:
                self._is_saving = False
            return result

        return module, name, recording


class Shapes(NamedTuple):
    """Shapes of the parameters of a module. Those of one number, such as a bias, show nothing.

    Attributes:
        trained: of parameters that require a gradient.
        frozen: of all others.
    """

    trained: Counter[tuple[int, ...]]
    frozen: Counter[tuple[int, ...]]

    @classmethod
    def of(cls, module: Any) -> "Shapes":
        """The shapes of a module."""
        parameters = [p for p in module.parameters() if p.numel() > 1]
        trained = Counter(tuple(p.shape) for p in parameters if p.requires_grad)
        return cls(trained, Counter(tuple(p.shape) for p in parameters if not p.requires_grad))

    def are_in(self, numbers: Mapping[str, Any]) -> bool:
        """Whether numbers hold the weights: all trained ones, or frozen ones with adapters merged.

        Of the frozen ones, at least one must be a matrix.
        """
        shapes = Counter(a.shape for a in numbers.values() if a.dtype.kind == "f")
        if self.trained and self.trained <= shapes:
            return True
        return any(len(shape) > 1 for shape in self.frozen) and self.frozen <= shapes


@contextlib.contextmanager
def replaced(patches: Sequence[_Patch]) -> Iterator[None]:
    """Replaces functions of modules or classes, and puts the old ones back.

    Args:
        patches: (module or class, name, new function) each.
    """
    old = [(place, name, getattr(place, name)) for place, name, _ in patches]
    for place, name, new in patches:
        setattr(place, name, new)
    try:
        yield
    finally:
        for place, name, function in old:
            setattr(place, name, function)


@contextlib.contextmanager
def recorded_files(keep: Callable[[SavedFile], None]) -> Iterator[None]:
    """Records what is saved within, by modules that are loaded; no file counts as released."""
    with replaced(SavedFiles(keep, lambda: (), CreatedFiles()).patches()):
        yield


def _read(saved: Callable[[], tuple[Any, Any]], call: str, shapes: Sequence[Shapes]) -> SavedFile:
    """The saved object; without numbers if it cannot be read, such as a quantized tensor."""
    try:
        return _saved(*saved(), call, shapes)
    except Exception as error:  # of any object; saving it went well
        return SavedFile(f"an object ({_with_place(call)})", {}, False, format_error(error))


def _saved(value: Any, file: Any, call: str, shapes: Sequence[Shapes]) -> SavedFile:
    numbers = dict(numbers_of(value))
    for parameter, attributes in _held_by_parameters(value):
        numbers |= {f"{parameter}.{key}": v for key, v in numbers_of(attributes).items()}
    # The arrays may change later.
    numbers = {
        "value" if name == "returned" else name: np.array(number)
        for name, number in numbers.items()
    }
    if isinstance(file, str | os.PathLike):
        shown = Path(file).name
    else:
        shown = Path(str(getattr(file, "name", ""))).name or "an object"
    is_model = bool(shapes) and _is_model(value, numbers)
    name = f"{shown} ({_with_place(call)})"
    holds_weights = any(of_module.are_in(numbers) for of_module in shapes)
    return SavedFile(name, numbers, holds_weights, is_model=is_model)


def _with_place(call: str) -> str:
    place = line_of_user()
    return f"{call}, {place}" if place else call


def _object_first(_: Any, obj: Any, f: Any = None, *__: Any, file: Any = None, **___: Any) -> Any:
    return obj, file if f is None else f


def _file_first(_: Any, file: Any, arr: Any, *__: Any, **___: Any) -> Any:
    return arr, file


def _of_archive(_: Any, file: Any, *args: Any, **arrays: Any) -> Any:
    return {f"arr_{i}": array for i, array in enumerate(args)} | arrays, file


def _held_by_parameters(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a pickled module keeps in attributes of its parameters, such as `grad_sample`.

    `state_dict()` leaves these attributes out, and pickling the module does not.
    """
    for path, module in _modules_in(value, "", 0):
        for name, parameter in module.named_parameters():
            held = {key: item for key, item in vars(parameter).items() if item is not None}
            if held:
                name = name.removeprefix("_module.")
                yield (f"{path}.{name}" if path else name), held


def _is_model(value: Any, numbers: Mapping[str, Any]) -> bool:
    """Whether an object is a module, its state, or holds matrices that are named weights."""
    if any(True for _ in _modules_in(value, "", 0)) or _holds_state_of_module(value, 0):
        return True
    return any(
        name.rpartition(".")[2] == "weight" and array.ndim > 1 and array.dtype.kind == "f"
        for name, array in numbers.items()
    )


def _holds_state_of_module(value: Any, depth: int) -> bool:
    if not isinstance(value, Mapping) or depth >= _MODULES_BELOW:
        return False
    is_state = hasattr(value, "_metadata") and len(value) > 0  # as `state_dict()` returns it
    return is_state or any(_holds_state_of_module(item, depth + 1) for item in value.values())


def _modules_in(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if hasattr(value, "named_parameters"):
        yield path, value
    elif depth < _MODULES_BELOW and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _modules_in(item, f"{path}.{key}" if path else str(key), depth + 1)
    elif depth < _MODULES_BELOW and isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _modules_in(item, f"{path}[{i}]", depth + 1)


class CreatedFiles:
    """Removes the files and folders that a run created, so that no later run continues from them.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> files = CreatedFiles()
        >>> files.observe()
        >>> _ = Path(folder, "checkpoint.txt").write_text("3")
        >>> files.remove()
        >>> os.listdir(folder)
        []
    """

    def __init__(self) -> None:
        self._paths: list[str] = []

    def observe(self) -> None:
        """Begins to observe what this process creates."""
        if not _observers:
            sys.addaudithook(_on_event)
        _observers[:] = [self]

    def note_paths(self, values: Iterable[Any]) -> None:
        """Notes paths at which nothing is yet, and from which a file may be created."""
        for path in values:
            if isinstance(path, str | os.PathLike) and self in _observers:
                with contextlib.suppress(ValueError):  # a text that is no path
                    if not os.path.lexists(path):
                        self._paths.append(os.path.abspath(path))

    def remove(self) -> None:
        """Ends the observation, and removes what was created."""
        _observers[:] = [None]
        for path in self._paths:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.remove(path)


# The one that observes. Python cannot take an audit hook back, so that one serves all runs.
_observers: list[CreatedFiles | None] = []


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    observer = _observers[0]
    if observer is None:
        return
    if (
        event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
    ) or event == "os.mkdir":
        observer.note_paths(arguments[:1])
    elif event == "os.rename":
        observer.note_paths(arguments[1:2])
