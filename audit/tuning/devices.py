"""Devices of a machine that several processes share: each serves one of them at a time."""

import contextlib
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit import checks
from audit.errors import InvalidInput
from audit.processes import locked

_POLL_SECONDS = 0.2
# A process prefers its latest device, because it occupies memory of every device that it has used.
_latest: list[str] = []


@dataclass(frozen=True)
class Devices:
    """Names of devices, and a folder for their locks, created on each machine with workers."""

    names: tuple[str, ...]
    folder: Path

    def claim(self, until: contextlib.ExitStack) -> str:
        """A device that no other process here uses until `until` closes; waits for one."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            for index, name in sorted(
                enumerate(self.names), key=lambda device: device[1] not in _latest
            ):
                with contextlib.suppress(TimeoutError):
                    until.enter_context(locked(self.folder / str(index), wait=False))
                    _latest[:] = [name]
                    return name
            time.sleep(_POLL_SECONDS)


KINDS = ("cpu", "cuda", "mps", "xpu", "hpu", "xla")
"""Kinds of devices, by the names that torch gives them."""

_DEVICE = re.compile(rf"(?:{'|'.join(KINDS)})(?::(?:0|[1-9][0-9]*))?")


def device_names(devices: Any) -> tuple[str, ...]:
    """The checked names of the devices; none if they are not given."""
    if devices is None:
        return ()
    names = tuple(devices) if isinstance(devices, list | tuple) else ()
    # Without a number, a name means the first device of its kind.
    places = {
        name.removesuffix(":0")
        for name in names
        if isinstance(name, str) and _DEVICE.fullmatch(name)
    }
    if not names or len(places) < len(names):
        raise InvalidInput(
            "devices must be a list of different names such as ['cuda:0', 'cuda:1'] (of the kinds "
            f"{', '.join(KINDS)}), got {checks.one_line(devices)}"
        )
    return names


@contextlib.contextmanager
def shared_devices(names: tuple[str, ...]) -> Iterator[Devices | None]:
    """The devices with a new folder for their locks; None if there are no names."""
    if not names:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="dp-tuning-audit-") as folder:
        yield Devices(names, Path(folder))
