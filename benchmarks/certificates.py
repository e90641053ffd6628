"""Time to issue and to verify certificates: `python -m benchmarks.certificates`.

Prints a row for each protocol and base: the CPU seconds to issue a certificate, those to verify it
in a new process without any stored value, and its epsilon at delta 1e-5. Importing the package is
not included. The last line counts the certificates whose verification takes longer than the goal.
Every certificate must be verified as correct. With `--forged`, the same one with a cost at one
delta that is two percent below the smallest of all bounds must be refused: at its own delta and at
the largest and the smallest one of its profile, or at each of them with `--forged all`. Each
forgery is printed on the standard error once it is verified. The command ends with an error if a
verdict is not right.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from audit.accounting import ApproximateDp, DpSgd, GaussianMechanism, Mechanism, PureDp
from audit.certificate import Certificate, Status, StudyFacts, verify
from audit.certificate.certificate import hash_of
from audit.certificate.numbers import derived
from audit.errors import AuditError
from audit.protocols import parse_protocol
from audit.upper_bounds import costs_of

BASES: Mapping[str, Mechanism] = {
    "pure": PureDp(0.3),
    "gaussian": GaussianMechanism(0.25),
    "dpsgd": DpSgd(1.0, 500, 0.01),
    "approximate": ApproximateDp(0.3, 1e-9),
}
PROTOCOLS = (
    "fixed:1",
    "fixed:20",
    "tnb:0,0.01",
    "tnb:1,0.1",
    "poisson:10",
    "grid:20",
    "grid:20,0.5",
    "distinct:5/poisson:5",
    "distinct:50/tnb:0,0.02",
    "adaptive:0.5,2/tnb:1,0.1",
    "adaptive:0.75,1.33/tnb:0,0.01",
    "subset:0.3/tnb:1,0.1",
    "best:3/poisson:20",
    "best:5/tnb:0,0.01",
    "pareto:4/tnb:1,0.1",
    "ptr:0.5,1e-7,1e-8/tnb:1,0.1",
    "until:0.1",
    "stopping:0.1",
    "schedule:4,2,1",
    "noisy-max:20",
    "sequential:10",
)
DELTA, GOAL, _FORGED = 1e-5, 3.0, 0.98
_NONE_SMALLER = "no cost is smaller"


def in_new_process(task: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds and result of a task in a process of its own, so that nothing is remembered."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        before = resource.getrusage(resource.RUSAGE_SELF)
        try:
            result = task()
        except AuditError as error:
            result = {"refused": str(error)}
        after = resource.getrusage(resource.RUSAGE_SELF)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        with os.fdopen(writing, "w") as stream:
            json.dump([seconds, result], stream)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    seconds, result = json.loads(answer)
    return seconds, result


def issue(base: Mechanism, protocol: str) -> dict[str, Any]:
    """The fields of a new certificate."""
    facts = StudyFacts({}, settings="0" * 64)
    parsed = parse_protocol(protocol)
    return Certificate.issue(base, base, parsed, DELTA, None, facts).as_dict()


def verified(values: dict[str, Any]) -> list[str]:
    """The status of a certificate and the first line of its verification."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "certificate.json")
        path.write_text(json.dumps(values))
        verdict = verify(path)
    return [verdict.status.name, verdict.lines[0]]


def forgery(values: dict[str, Any], place: int, epsilon: float) -> dict[str, Any]:
    """A certificate with another cost at one delta; all that follows from it is derived."""
    certificate = Certificate.from_dict(values)
    numbers = certificate.numbers
    points = list(numbers.profile)
    points[place] = replace(points[place], epsilon=epsilon)
    changed = replace(numbers, **derived(tuple(points), certificate.delta))
    content = replace(certificate, numbers=changed).as_dict()
    return content | {"hash": hash_of(content)}


def verified_forgery(base: Mechanism, values: dict[str, Any], place: int) -> tuple[float, str]:
    """CPU seconds and status of a certificate with too small a cost at one point.

    The costs at other deltas are by quick bounds, so that the smallest bound may be well below.
    """
    point = values["numbers"]["profile"][place]
    protocol = Certificate.from_dict(values).protocol
    _, smallest = in_new_process(lambda: costs_of(base, protocol, point["delta"]).smallest.epsilon)
    too_small = _FORGED * min(smallest, point["epsilon"])
    if too_small == 0.0:
        return 0.0, _NONE_SMALLER
    seconds, (status, _) = in_new_process(lambda: verified(forgery(values, place, too_small)))
    return seconds, status


def forged_places(profile: list[dict[str, float]], forged: str | None) -> list[int]:
    """The points of a profile whose costs are made smaller."""
    places = [place for place, point in enumerate(profile) if point["epsilon"] > 0.0]
    if forged != "few":
        return places if forged else []
    own = [place for place in places if profile[place]["delta"] == DELTA]
    return sorted({*places[:1], *own, *places[-1:]})


def measured(name: str, protocol: str, forged: str | None) -> tuple[bool, float]:
    """Prints a row; returns whether all verdicts are right, and the seconds of a verification."""
    base = BASES[name]
    issuing, values = in_new_process(lambda: issue(base, protocol))
    row = f"{protocol:31} {name:12}"
    if "refused" in values:
        print(f"{row} {values['refused'][:60]}", flush=True)
        return True, 0.0
    verifying, (status, line) = in_new_process(lambda: verified(values))
    correct = status == Status.CORRECT.name
    remark = "" if correct else f" {line}"
    profile = values["numbers"]["profile"]
    for place in forged_places(profile, forged):
        delta, seconds, status = profile[place]["delta"], *verified_forgery(base, values, place)
        report = f"  {row}, smaller at {delta}: {status} in {seconds:.1f} CPU s"
        print(report, file=sys.stderr, flush=True)
        if status not in (Status.WRONG.name, _NONE_SMALLER):
            correct = False
            remark += f" smaller at {delta}: {status}"
    epsilon = values["numbers"]["epsilon"]
    print(f"{row} {issuing:7.2f} {verifying:7.2f} {epsilon:10.4f}{remark}", flush=True)
    return correct, verifying


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--only", default="", help="protocols with this text in their names")
    parser.add_argument("--base", choices=BASES, help="one base; by default all")
    parser.add_argument(
        "--forged",
        choices=("few", "all"),
        nargs="?",
        const="few",
        help="also try smaller costs, at three deltas or at all of them",
    )
    options = parser.parse_args()
    print(f"{'protocol':31} {'base':12} {'issue':>7} {'verify':>7} {'epsilon':>10}")
    rows = [
        measured(name, protocol, options.forged)
        for protocol in PROTOCOLS
        for name in ([options.base] if options.base else BASES)
        if options.only in protocol
    ]
    seconds = [verifying for _, verifying in rows]
    print(
        f"{sum(spent > GOAL for spent in seconds)} of {len(rows)} certificates take more than "
        f"{GOAL:g} CPU s to verify; the slowest takes {max(seconds, default=0.0):.1f}"
    )
    return 0 if all(correct for correct, _ in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
