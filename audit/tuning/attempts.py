"""The attempts at one run, and the number of steps that they may have taken.

A run whose noise cannot be continued takes at most T + R steps over all of its attempts, discarded
steps included (docs/theory.md, "Interrupted runs"). The log of a run therefore has a line before
the first step of every attempt, and a line after every saved state. It is in the folder of the run.
The journal of the study counts how often the run was handed over; if a line of the log is missing,
that attempt counts as a whole run.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from audit.files import open_same


@dataclass(frozen=True)
class PastAttempt:
    """What the log says about an earlier attempt.

    Attributes:
        start: the number of steps in the state that it loaded; 0 if it loaded none.
        saved: the number of steps in the last state that it is known to have saved, or `start`.
        limited: whether it could not take more than `checkpoint_every` steps after a saved state.
        renewed: whether it drew new noise and new batches from its start on.
        refused: whether it ended before its first step.
        machine: the properties of its machine.
    """

    start: int = 0
    saved: int = 0
    limited: bool = False
    renewed: bool = False
    refused: bool = False
    machine: Mapping[str, str] | None = None


def steps_taken(
    attempts: Sequence[PastAttempt], steps: int, interval: int | None, *, same_noise: bool
) -> int:
    """The largest number of steps that attempts at a run may have taken together.

    Args:
        attempts: the attempts, in their order.
        steps: number of steps of the run.
        interval: the number of steps after which a limited attempt must have saved its state.
        same_noise: whether attempts on one machine repeat the same steps with the same noise and
            the same rounding. Such attempts are one: together they take no other steps than a
            single run from the start of the first of them.

    Returns:
        The number of steps with different noise or rounding, discarded steps included.
    """
    total, group_start, group_steps = 0, 0, 0
    before: PastAttempt | None = None
    for attempt in attempts:
        if attempt.refused:
            continue
        # An attempt takes at most the steps that remain after its start. A limited one takes at
        # most an interval after its last state, because the next step raises an error.
        max_steps = steps - attempt.start
        if attempt.limited and interval is not None:
            max_steps = min(max_steps, attempt.saved - attempt.start + interval)
        joins = (
            same_noise
            and before is not None
            and not attempt.renewed
            and attempt.start >= group_start
            and same_machine(attempt.machine, before.machine)
        )
        if joins:
            group_steps = steps - group_start
        else:
            total += group_steps
            group_start, group_steps = attempt.start, max_steps
        before = attempt
    return total + group_steps


def same_machine(first: Mapping[str, str] | None, second: Mapping[str, str] | None) -> bool:
    """Whether two machines agree in all properties that are known of both."""
    if first is None or second is None:
        return False
    return not differences(first, second)


def differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """The properties of the first machine that the second is known not to have."""
    return [
        f"{name} {value}"
        for name, value in first.items()
        if name in second and second[name] != value
    ]


class AttemptLog:
    """The log of a run: in its folder, or in memory if there is none.

    Args:
        path: the file; None to keep the log in memory.
        handed_over: how often the study has handed over the run, the present time included.
    """

    def __init__(self, path: Path | None, handed_over: int = 1) -> None:
        self._path = path
        self._handed_over = handed_over
        self._lines: list[dict[str, Any]] = []
        self._attempt = ""

    def hand_over(self) -> None:
        """Notes that the study hands over the run, before a worker receives it."""
        self._note({"handed_over": self._handed_over})

    def begin(self, machine: Mapping[str, str]) -> None:
        """Notes a new attempt, before its first step."""
        self._attempt = secrets.token_hex(8)
        self._note({"attempt": self._attempt, "machine": dict(machine)})

    def add(self, **changes: Any) -> None:
        """Notes more about the present attempt; the line is on disk when this returns."""
        self._note({"attempt": self._attempt, **changes})

    def is_latest(self) -> bool:
        """Whether no other attempt has begun since this one."""
        attempts = [line["attempt"] for line in self._read() if "machine" in line]
        return not attempts or attempts[-1] == self._attempt

    def earlier(self) -> list[PastAttempt]:
        """All attempts but the present one."""
        lines = self._read()
        noted = {line.get("handed_over") for line in lines}
        if self._path is None:
            missing = self._handed_over - 1
        else:
            missing = sum(number not in noted for number in range(1, self._handed_over))
        attempts: dict[str, dict[str, Any]] = {}
        for line in lines:
            if (name := line.get("attempt")) is not None and name != self._attempt:
                attempts.setdefault(name, {}).update(line)
        return [PastAttempt()] * missing + [_past(entry) for entry in attempts.values()]

    def _read(self) -> list[dict[str, Any]]:
        if self._path is None:
            return self._lines
        try:
            with open(self._path, encoding="utf-8", opener=open_same) as file:
                text = file.read()
        except FileNotFoundError:
            return []
        entries = []
        for line in text.split("\n"):
            # A line that a killed process did not complete is that of an attempt without a step.
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict):
                    entries.append(entry)
        return entries

    def _note(self, line: dict[str, Any]) -> None:
        if self._path is None:
            self._lines.append(line)
            return
        with open(self._path, "a", encoding="utf-8", opener=open_same) as file:
            file.write("\n" + json.dumps(line) + "\n")  # the former line may be incomplete
            file.flush()
            os.fsync(file.fileno())


def _past(entry: Mapping[str, Any]) -> PastAttempt:
    values = {field.name: entry[field.name] for field in fields(PastAttempt) if field.name in entry}
    values["saved"] = max(values.get("saved", 0), values.get("start", 0))
    return PastAttempt(**values)
