"""Whether what a script saves depends on a record although all released gradients were forced.

A file that holds the weights is what the owner releases, so that everything in it must be accounted
for. Whether another file is released, the script does not say: a note names it.
"""

from collections.abc import Callable, Sequence

from audit.loop.explanations import explain, listed
from audit.loop.premises.verdicts import Verdicts
from audit.loop.runs.coupled_runs import Trace
from audit.loop.runs.generators import returned_states
from audit.loop.runs.released_numbers import differences

_MAX_NOTES = 4
_Gaps = dict[tuple[int, str], float]


def compare_saved(
    verdicts: Verdicts,
    reference: Trace,
    other_seed: Trace,
    neighbours: Sequence[tuple[Trace, bool]],
    repeat: Callable[[], Trace],
) -> None:
    """Reports saved numbers that depend on the record.

    Args:
        verdicts: gets the findings and notes.
        reference: a run of the script to its end.
        other_seed: the same with another seed.
        neighbours: runs on neighbouring data sets, and whether they drew other random numbers.
        repeat: runs the reference once more.
    """
    _report_states(verdicts, reference)
    random = _gaps(reference, other_seed)
    differing: _Gaps = {}
    of_another_number: list[Trace] = []
    for trace, shifted in neighbours:
        if len(trace.saved) != len(reference.saved):
            of_another_number.append(trace)
            continue
        for place, gap in _gaps(reference, trace).items():
            if not (shifted and place in random):
                differing[place] = max(differing.get(place, 0.0), gap)
    if not differing and not of_another_number:
        return
    # A time or a number of the run differs from that of every other run, this later one included.
    again = repeat()
    if len(again.saved) != len(reference.saved):
        verdicts.notes.append("equal runs saved different numbers of files: they were not compared")
        return
    unstable = _gaps(reference, again)
    by_file: dict[int, dict[str, float]] = {}
    for (number, name), gap in differing.items():
        if (number, name) not in unstable:
            by_file.setdefault(number, {})[name] = gap
    if of_another_number:
        _report_number(verdicts, reference, of_another_number[0])
    _report(verdicts, reference, by_file)


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
                f"{file.name} depends on the record ({listed(gaps)}); it does not hold the "
                "weights: do not release it"
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
