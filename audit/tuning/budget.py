"""A budget for tuning by hand or with any method that looks at earlier results.

`audit.accounting.filters` has the privacy filters that keep its cap, with their theorems.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from audit import checks, processes
from audit.accounting import Mechanism, mechanism_from_dict, mechanism_to_dict
from audit.accounting.filters import (
    BudgetExceeded,
    Filter,
    Spent,
    check_protected,
    epsilon_of_cap,
    filter_for,
    spent_with,
)
from audit.errors import InvalidInput
from audit.numerics import format_rounded, last_integer
from audit.tuning.journal import write_durably

_MAX_TIMES = 10**12


class Budget:
    """A cap on the privacy cost of all runs together, which adaptive tuning cannot exceed.

    Use it for tuning by hand, with TPE, or with any other method that depends on earlier runs:
    charge each run before it starts. The number of runs, their noise and their steps may depend on
    all earlier outputs. All runs together, released or not, are (epsilon, delta)-DP.

    The first mechanism, which is chosen before any output is seen, decides how runs are counted:
    Gaussian runs (full batches) by their mu^2, all others by Renyi divergences at the order that
    allows the most runs like the first.

    Args:
        cap: epsilon of all runs together; or a mechanism, such as `DpSgd` with the total number of
            steps, or the `Composition` of all allowed runs. Runs then spend parts of this mechanism
            and keep its exact epsilon, which allows more runs if all have the same noise.
        delta: in (0, 1).
        expected: a typical run, which decides instead of the first mechanism how runs are counted:
            pass a sampled DP-SGD if the first run is Gaussian and later runs are not.
        file: a json file with the runs so far. It is written before `spend` returns, so a tuning
            that was killed resumes with the remaining budget. Its cap cannot be changed.

    Raises:
        InvalidInput: an argument is out of its range, or the file belongs to another budget.

    Example:
        >>> from audit.accounting import DpSgd
        >>> budget = Budget(3.0, delta=1e-5)
        >>> run = DpSgd(noise_multiplier=2.0, steps=500, sampling_rate=0.02)
        >>> budget.runs_left(run)
        7
        >>> budget.spend(run)
        >>> round(budget.remaining, 3), budget.runs_left(run)
        (0.869, 6)
    """

    def __init__(
        self,
        cap: float | Mechanism,
        delta: float = 1e-5,
        expected: Mechanism | None = None,
        file: str | Path | None = None,
    ) -> None:
        self._delta = checks.interval("delta", delta, 0.0, 1.0)
        if expected is not None and not isinstance(expected, Mechanism):
            raise InvalidInput(f"expected must be a mechanism, got {checks.one_line(expected)}")
        if isinstance(cap, Mechanism) and expected is not None:
            raise InvalidInput("expected must not be given if the cap is a mechanism")
        self._cap = cap if isinstance(cap, Mechanism) else None
        self._epsilon = epsilon_of_cap(cap, self._delta)
        self._spent: Spent = []
        self._first = expected
        self._file = None if file is None else Path(file)
        if self._file is not None:
            with _locked(self._file):
                if self._file.exists():
                    self._read(self._file)
                else:
                    self._write(self._file, [])

    @property
    def epsilon(self) -> float:
        """Epsilon of all runs together, however many there will be."""
        return self._epsilon

    @property
    def delta(self) -> float:
        """Delta of all runs together."""
        return self._delta

    @property
    def spent(self) -> tuple[tuple[Mechanism, int], ...]:
        """The mechanisms that were charged, each with its number of runs."""
        return tuple(self._spent)

    @property
    def remaining(self) -> float:
        """The share of the cap that is left, from 1 down to 0."""
        if not self._spent:
            return 1.0
        return max(1.0 - self._filter(self._spent[0][0]).share(self._spent), 0.0)

    def fits(self, mechanism: Mechanism, times: int = 1) -> bool:
        """Whether `spend` would accept the mechanism.

        Raises:
            InvalidInput: this budget does not count such a mechanism.
        """
        try:
            self._spent_after(mechanism, times)
        except BudgetExceeded:
            return False
        return True

    def runs_left(self, mechanism: Mechanism) -> int:
        """Number of further runs of a mechanism that fit, at most 10^12.

        Raises:
            InvalidInput: this budget does not count such a mechanism.
        """
        return int(last_integer(lambda times: self.fits(mechanism, int(times)), 0, _MAX_TIMES + 1))

    def spend(self, mechanism: Mechanism, times: int = 1) -> None:
        """Charges a run before it starts.

        Args:
            mechanism: the mechanism of the run, with at most its noise, and at least its sampling
                rate and number of steps.
            times: number of such runs.

        Raises:
            BudgetExceeded: the cap would be exceeded. Nothing is spent; a smaller run may still
                fit.
            InvalidInput: this budget does not count such a mechanism.
        """
        if self._file is None:
            self._spent = self._spent_after(mechanism, times)
            return
        with _locked(self._file):
            self._read(self._file)  # another process may have spent meanwhile
            after = self._spent_after(mechanism, times)
            self._write(self._file, after)
            self._spent = after

    def _spent_after(self, mechanism: Mechanism, times: int) -> Spent:
        if not isinstance(mechanism, Mechanism):
            raise InvalidInput(f"mechanism must be a mechanism, got {checks.one_line(mechanism)}")
        times = checks.integer("times", times, 1, _MAX_TIMES)
        after = spent_with(self._spent, mechanism, times)
        check_protected("budget", [counted for counted, _ in after])
        share = self._filter(after[0][0]).share(after)
        if not share <= 1.0:
            runs = "run" if times == 1 else f"{times} runs"
            total = format_rounded(share, up=True, digits=3)
            remainder = format_rounded(self.remaining, up=False, digits=3)
            raise BudgetExceeded(
                f"budget must cover the {runs}, got {total} of the cap in total with "
                f"{mechanism.description}; {remainder} of the cap is left, and nothing is spent"
            )
        return after

    def _filter(self, first: Mechanism) -> Filter:
        """The filter of this budget, which is fixed before any output is seen."""
        like = self._first or first
        cap = self._epsilon if self._cap is None else self._cap
        return filter_for(cap, self._delta, like, like.gaussian_mu is not None)

    def _settings(self) -> dict[str, Any]:
        return {
            "cap": self._epsilon if self._cap is None else mechanism_to_dict(self._cap),
            "delta": self._delta,
            "expected": None if self._first is None else mechanism_to_dict(self._first),
        }

    def _read(self, file: Path) -> None:
        try:
            content = json.loads(checks.read_text(file))
            settings = {name: content[name] for name in ("cap", "delta", "expected")}
            spent = [
                (
                    mechanism_from_dict(entry["mechanism"]),
                    checks.integer("times", entry["times"], 1, _MAX_TIMES),
                )
                for entry in content["spent"]
            ]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(
                f"file must hold a budget, got {str(file)!r}, which cannot be read as one: "
                f"{checks.one_line(error)}"
            ) from error
        requested = json.loads(json.dumps(self._settings()))
        if settings != requested:
            different = next(name for name in requested if settings[name] != requested[name])
            raise InvalidInput(
                f"{different} must be that of the budget in {str(file)!r}, "
                f"{checks.one_line(settings[different])}, got "
                f"{checks.one_line(requested[different])}: a cap cannot be changed later"
            )
        self._spent = spent

    def _write(self, file: Path, spent: Spent) -> None:
        plain = [
            {"mechanism": mechanism_to_dict(counted), "times": times} for counted, times in spent
        ]
        write_durably(file, json.dumps({**self._settings(), "spent": plain}, indent=1))


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Locks a budget's file against other processes."""
    with contextlib.ExitStack() as stack:
        try:
            lock = file.with_name(file.name + ".lock")
            stack.enter_context(processes.locked(lock, wait=True))
        except OSError as error:
            raise InvalidInput(
                f"file must be a path that can be written, got {str(file)!r}"
            ) from error
        yield
