"""Whether what a run saves depends on a record although all released gradients were forced.

A file of a script that holds the weights is what the owner releases, so that everything in it must
be accounted for. A function returns what it releases, and of another file the script does not say
whether it is released: a note names it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from audit.loop.explanations import explain, listed
from audit.loop.premises.verdicts import Verdicts
from audit.loop.runs.coupled_runs import Trace
from audit.loop.runs.generators import returned_states
from audit.loop.runs.released_numbers import differences

_MAX_NOTES = 4
# Further runs of each of two neighbours, all of which must agree with the first.
_REPETITIONS = 4

_Gaps = dict[tuple[int, str], float]


class RunToEnd(NamedTuple):
    """A run of a script to its end.

    Attributes:
        trace: the run.
        repeat: runs it again.
        shifted: whether it drew other random numbers than the reference.
    """

    trace: Trace
    repeat: Callable[[], Trace]
    shifted: bool = False


def compare_saved(
    verdicts: Verdicts, reference: RunToEnd, other_seed: Trace, neighbours: Sequence[RunToEnd]
) -> None:
    """Reports saved numbers that depend on the record.

    Args:
        verdicts: gets the findings and notes.
        reference: a run to the end.
        other_seed: the same with another seed.
        neighbours: runs on neighbouring data sets.
    """
    usual = reference.trace
    _report_states(verdicts, usual)
    unread = [f"{file.name}: {file.error}" for file in usual.saved if file.error]
    verdicts.notes += [
        f"not compared, because it could not be read: {file}" for file in unread[:_MAX_NOTES]
    ]
    random = _gaps(usual, other_seed)
    differing: _Gaps = {}
    unstable: set[tuple[int, str]] = set()
    of_other_number = None
    for neighbour in neighbours:
        trace = neighbour.trace
        gaps: _Gaps = {}
        if len(trace.saved) == len(usual.saved):
            gaps = _gaps(usual, trace)
        elif of_other_number is None:
            of_other_number = trace
        else:
            continue
        new = gaps.keys() - differing.keys() - unstable
        new -= random.keys() if neighbour.shifted else set()
        if not new and trace is not of_other_number:
            continue
        changing = _changing(reference, neighbour)
        if changing is None:
            verdicts.notes.append(
                "equal runs saved different numbers of files, which were not compared"
            )
            return
        unstable |= changing
        differing |= {place: gaps[place] for place in new}
    if of_other_number is not None:
        _report_number(verdicts, usual, of_other_number)
    by_file: dict[int, dict[str, float]] = {}
    for (number, name), gap in differing.items():
        if (number, name) not in unstable:
            by_file.setdefault(number, {})[name] = gap
    _report(verdicts, usual, by_file)


def _changing(reference: RunToEnd, neighbour: RunToEnd) -> set[tuple[int, str]] | None:
    """The saved numbers that differ between equal runs; None if their files differ in number.

    These are times, durations and numbers of the run. The two take turns, so that a clock does not
    show one time for all runs of the first and another one for all runs of the second.
    """
    changing: set[tuple[int, str]] = set()
    for _ in range(_REPETITIONS):
        for run in (reference, neighbour):
            again = run.repeat()
            if len(again.saved) != len(run.trace.saved):
                return None
            changing |= _gaps(run.trace, again).keys()
    return changing


def _gaps(first: Trace, second: Trace) -> _Gaps:
    """The largest difference of every saved number, by the number of the file and the name."""
    return {
        (number, name): gap
        for number, files in enumerate(zip(first.saved, second.saved, strict=False))
        for name, gap in differences(files[0].numbers, files[1].numbers).items()
    }


def _report_number(verdicts: Verdicts, reference: Trace, other: Trace) -> None:
    """Reports that the number of saved files depends on the record."""
    more = max((reference, other), key=lambda trace: len(trace.saved))
    with_weights = [file for file in more.saved if file.holds_weights]
    file = (with_weights or more.saved)[-1]
    if with_weights:
        verdicts.findings.append(explain("saved files", file=file.name))
    else:
        verdicts.notes.append(f"whether {file.name} is written depends on the record")


def _report(verdicts: Verdicts, reference: Trace, by_file: dict[int, dict[str, float]]) -> None:
    notes = 0
    is_reported = False
    for number, gaps in sorted(by_file.items()):
        file = reference.saved[number]
        if file.holds_weights and not is_reported:
            is_reported = True
            depend = "depends" if len(gaps) == 1 else "depend"
            finding = explain("saved", file=file.name, names=listed(gaps), depend=depend)
            verdicts.findings.append(finding)
        elif not file.holds_weights and notes < _MAX_NOTES:
            notes += 1
            verdicts.notes.append(
                f"{file.name} depends on the record ({listed(gaps)}): do not release it"
            )


def _report_states(verdicts: Verdicts, reference: Trace) -> None:
    """Reports saved states of generators, from which earlier draws follow."""
    for file in reference.saved:
        states = returned_states(file.numbers) if file.holds_weights else {}
        names = [
            name for name, library in states.items() if reference.moved_generators <= {library}
        ]
        if names:
            shown = f"{file.name}: {listed(names, 'hold')}"
            verdicts.findings.append(explain("generator state", names=shown))
            return
