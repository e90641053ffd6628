"""Verifies certificates by recomputing their numbers and conditions from their inputs.

A later version of this package may have smaller bounds. A certificate that an earlier version
issued is still correct then: a tuning that is (epsilon, delta)-DP is so for every larger epsilon.
So a stated cost is accepted if it is at least as large as the cost of today's bounds.
"""

import datetime
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from audit import checks
from audit.accounting import DeltaUnreachable, Mechanism, mechanism_to_dict
from audit.accounting.conversion import expecting
from audit.certificate.certificate import Certificate, Made, hash_of
from audit.certificate.conditions import (
    NOT_STATED,
    Ground,
    bases_of,
    checkable,
    most_steps,
    testable,
)
from audit.certificate.numbers import (
    DELTAS,
    Numbers,
    PrivacyPoint,
    check_different,
    compute,
    derived,
    epsilon_of_run,
    largest_attained,
)
from audit.errors import InvalidInput
from audit.numerics import format_exact, rounded_down, rounded_up
from audit.protocols import Protocol
from audit.upper_bounds import TuningCosts, costs_of

SAFE = 1.0 - 1e-9
"""A stated cost may be smaller than the recomputed one by this factor, for other numpy versions."""
# Relative difference up to which a stated cost counts as today's.
_EQUAL = 1e-6
_MAX_BYTES = 10**7
_MAX_INTEGER = 2**53  # other json readers lose larger integers
_MAX_SHOWN = 200
# Other versions of numpy and scipy may round differently. Numbers of a file may be larger by the
# first relative tolerance, but smaller only by the second.
_TOLERANCE = 1e-6
_TOLERANCE_UNSAFE = 1e-9
_NEARLY_ZERO = 1e-12
# A smaller bound is named only if it could be smaller by more than this share.
_NEARLY_ATTAINED = 2e-4
_COMPUTED = ("numbers", "groups", "total", "evidence.ceiling")
# Deltas are constants or sums of numbers in the file. Sizes of groups and rates of false positives
# (the first number of each point of the trade-off curve) are constants.
_EXACT = (".delta", ".records", "][0]")
_FROM_NUMBERS = ("hash", "statement", "groups", "total")
_NO_HASH = "released model: hash not stated"
_STATED = "stated by the author, not verified"
_LOWER = ("numbers.attained", "numbers.trade_off")
_FIRST_DAY = datetime.date(2026, 11, 1)  # first day of this format
_VERSION = re.compile(r"\d[\w.+!-]{0,39}", re.ASCII)


@dataclass(frozen=True)
class Proved:
    """Numbers whose costs today's bounds prove.

    Attributes:
        numbers: the numbers that follow from the stated costs.
        weaker: the stated numbers, by name, that are correct but weaker than today's.
        costs: today's bounds, of which the named ones are computed.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.certificate.numbers import compute
        >>> from audit.protocols import parse_protocol
        >>> tuning = GaussianMechanism(0.5), parse_protocol("fixed:1"), 1e-5
        >>> with_stated_costs(compute(*tuning, ["region"]), *tuning).weaker
        ()
    """

    numbers: Numbers
    weaker: tuple[str, ...]
    costs: TuningCosts


def with_stated_costs(
    stated: Numbers, base: Mechanism, protocol: Protocol, delta: float
) -> Proved | None:
    """The numbers that follow from the stated costs; None if one of these is below today's bounds.

    At its own delta a named bound must prove the stated cost, because the certificate states the
    source of that bound. At every other delta the quick values of the named bounds come first, then
    the named bounds, in their order, until one is at most the stated cost, and all bounds only if
    none is. So a correct certificate is verified quickly.

    Args:
        stated: the numbers of the certificate.
        base: the base mechanism.
        protocol: the protocol.
        delta: delta of the tuning.

    Raises:
        DeltaUnreachable: no named bound reaches delta.
        InvalidInput: a named bound is unknown, named twice, or does not hold for every score.

    Example:
        >>> from dataclasses import replace
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.certificate.numbers import compute
        >>> from audit.protocols import parse_protocol
        >>> tuning = GaussianMechanism(0.5), parse_protocol("fixed:1"), 1e-5
        >>> today = compute(*tuning, ["region"])
        >>> larger = tuple(replace(point, epsilon=point.epsilon + 1) for point in today.profile)
        >>> stated = replace(today, profile=larger, epsilon=today.epsilon + 1)
        >>> with_stated_costs(stated, *tuning).weaker
        ('epsilon', 'profile')
        >>> smaller = tuple(replace(point, epsilon=point.epsilon - 0.1) for point in today.profile)
        >>> stated = replace(today, profile=smaller, epsilon=today.epsilon - 0.1)
        >>> with_stated_costs(stated, *tuning) is None
        True
    """
    check_different(stated.bounds)
    points = stated.profile
    deltas = [point.delta for point in points]
    # Its own costs, because bounds that expect the stated numbers may stop at these.
    costs = TuningCosts(base, protocol, delta)
    with expecting(stated.epsilon):
        at_delta = costs.within(1.0, stated.bounds)
    if deltas != sorted({*deltas} & {*DELTAS, delta}, reverse=True) or delta not in deltas:
        return None
    if not math.isclose(stated.epsilon, points[deltas.index(delta)].epsilon, rel_tol=_EQUAL):
        return None
    if SAFE * at_delta[0].epsilon > stated.epsilon:
        return None
    proofs = {
        point.delta: at_delta[0].epsilon
        if point.delta == delta
        else _proof(point, costs, stated.bounds)
        for point in points
    }
    if any(proof is None for proof in proofs.values()):
        return None
    run_today, attained_today = epsilon_of_run(base, delta), largest_attained(costs)
    run, attained = stated.run_epsilon, stated.attained
    if run is None or run_today is None or run < SAFE * run_today:
        run = run_today
    # An attack of an earlier version may attain less, but never less than 0. It may attain more
    # within the error of a grid, which a version may estimate otherwise.
    most = max((bound.epsilon + 0.5 * bound.error for bound in costs.attained), default=0.0)
    if attained is None or attained_today is None or not 0.0 <= attained <= most:
        attained = attained_today
    is_larger = stated.epsilon > (1.0 + _EQUAL) * at_delta[0].epsilon
    weaker = {
        "run_epsilon": run is not None and run > (1.0 + _EQUAL) * (run_today or 0.0),
        "epsilon": is_larger,
        "attained": attained is not None and attained < (1.0 - _EQUAL) * (attained_today or 0.0),
        "profile": any(
            point.epsilon > (1.0 + _EQUAL) * (proofs[point.delta] or 0.0)
            for point in points
            if point.delta != delta or is_larger
        ),
    }
    # The order of the names may have changed together with the bounds.
    names = stated.bounds if is_larger else tuple(bound.name for bound in at_delta)
    (first_named,) = [bound for bound in at_delta if bound.name == names[0]]
    numbers = Numbers(
        run_epsilon=run,
        bounds=names,
        source=first_named.source,
        assumes=first_named.assumes,
        attained=attained,
        **derived(points, delta),
    )
    names_of_weaker = tuple(name for name, is_weaker in weaker.items() if is_weaker)
    return Proved(numbers, names_of_weaker, costs)


def _proof(point: PrivacyPoint, certified: TuningCosts, names: tuple[str, ...]) -> float | None:
    """The first of today's bounds that is at most a stated cost, the named ones first; or None."""
    quick = certified.quick_names(names)
    # Usually one quick value is the stated cost. All of them together are only needed otherwise.
    # Without quick bounds, the named ones come first.
    is_other = bool(quick) and point.delta != certified.delta
    for quick_names in dict.fromkeys([*zip(quick), quick]) if is_other else ():
        try:
            with expecting(point.epsilon):
                epsilon = certified.epsilon_at(point.delta, quick_names)
        except DeltaUnreachable:
            continue
        is_equal = point.epsilon <= (1.0 + _EQUAL) * epsilon
        if SAFE * epsilon <= point.epsilon and (is_equal or quick_names == quick):
            return epsilon
    costs = costs_of(certified.base, certified.protocol, point.delta)
    for name in [*quick, *(name for name in names if name not in quick)]:
        try:
            (bound,) = costs.within(1.0, (name,))
        except DeltaUnreachable:
            continue
        if SAFE * bound.epsilon <= point.epsilon:
            return bound.epsilon
    try:
        least = costs.smallest.epsilon
    except DeltaUnreachable:
        return None
    return least if SAFE * least <= point.epsilon else None


class Status(Enum):
    """Result of a verification.

    Example:
        >>> [one.value for one in Status]
        ['correct', 'wrong', 'void']
    """

    CORRECT = "correct"
    WRONG = "wrong"
    VOID = "void"


@dataclass(frozen=True)
class Verdict:
    """Result of a verification.

    Attributes:
        status: correct, wrong or void.
        lines: explanation in printable ASCII; the first line begins with the status.
        short: the lines without most statements of the author; empty if the certificate is wrong.
        certificate: the verified certificate; None if it is wrong.

    Example:
        >>> Verdict(Status.WRONG, ("wrong: the hash differs",)).status.value
        'wrong'
    """

    status: Status
    lines: tuple[str, ...]
    certificate: Certificate | None = None
    short: tuple[str, ...] = ()


def verify(path: str | Path) -> Verdict:
    """Verifies a certificate.

    Recomputes every number, every condition and every other sentence from the inputs in the file,
    and compares them with the file. No file can prove how the tuning was actually done.

    Args:
        path: path of the json file.

    Raises:
        InvalidInput: the file cannot be read as a certificate.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = Path(folder, "mine.json").write_text("{}")
        ...     try:
        ...         verify(Path(folder, "mine.json"))
        ...     except InvalidInput as error:
        ...         print(type(error).__name__)
        InvalidInput
    """
    return verdict_of(read(path))


def read(path: str | Path) -> bytes:
    """Reads a file of at most 10 MB; a larger or unreadable one is refused."""
    if not isinstance(path, str | Path):
        raise InvalidInput(f"certificate must be the path of a file, got {checks.one_line(path)}")
    try:
        return checks.read_bytes(path, _MAX_BYTES)
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"certificate must be a readable json file, got {checks.one_line(str(path))}: "
            f"{checks.reason_of(error)}"
        ) from error


def verdict_of(content: bytes) -> Verdict:
    """Verifies a certificate, given the content of its json file; other content is refused."""
    try:
        values = _parsed(content)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _verdict(values)
    except RecursionError:
        raise InvalidInput(
            "certificate must have the fields of its format, got some nested too deeply"
        ) from None
    except MemoryError:
        raise InvalidInput("certificate must fit into memory to be verified") from None
    except (ArithmeticError, LookupError, TypeError, AttributeError) as error:
        raise InvalidInput(
            "certificate must have inputs whose cost can be computed, got some of another kind"
        ) from error


def _parsed(content: bytes) -> Any:
    """Parses strict json: no repeated names, finite numbers only."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        by_name = dict(pairs)
        if len(by_name) < len(pairs):
            twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise InvalidInput(f"a name must occur once in an object, got {_quoted(twice)} twice")
        return by_name

    def finite(text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            raise InvalidInput(f"a number must be finite, got {text[:40]}")
        return number

    def integer(text: str) -> int:
        if len(text) > 20 or abs(int(text)) > _MAX_INTEGER:
            raise InvalidInput(f"an integer must be at most 2^53, got {text[:40]}")
        return int(text)

    try:
        return json.loads(
            content.decode("utf-8"),
            object_pairs_hook=unique,
            parse_float=finite,
            parse_int=integer,
            parse_constant=finite,
        )
    except ValueError as error:
        if not content.strip():
            raise InvalidInput("certificate must be the json file, got an empty file") from None
        if content.lstrip()[:1] == b"<":
            raise InvalidInput(
                "certificate must be the json file, got an HTML page: verify the .json file that "
                "was saved with it"
            ) from None
        raise InvalidInput(f"certificate must be a readable json file: {error}") from None


def _verdict(values: Any) -> Verdict:
    certificate = Certificate.from_dict(values)
    if values.get("hash") != hash_of(values):
        return _wrong("the hash is not that of the other fields")
    allowed = checkable(certificate.training, certificate.protocol)
    checked = certificate.study.checked
    if checked != tuple(name for name in allowed if name in checked):
        return _wrong(
            f"study.checked is {_quoted(list(checked))}, must be of {_quoted(list(allowed))}"
        )
    if problem := _problem_of_test(certificate):
        return _wrong(problem)
    possible = [
        mechanism_to_dict(base) for base in bases_of(certificate.training, certificate.score)
    ]
    if mechanism_to_dict(certificate.base) not in possible:
        return _wrong("base is not training with its score")
    # The fast comparisons first: conditions and sentences without computed numbers.
    problem = _problem(values, certificate, but=_FROM_NUMBERS)
    if problem := problem or _problem_of_provenance(certificate.made):
        return _wrong(problem)
    tuning = certificate.base, certificate.protocol, certificate.delta
    try:
        proved = with_stated_costs(certificate.numbers, *tuning)
        if proved is None:  # the recomputed numbers name the field that is wrong
            numbers = compute(*tuning, certificate.numbers.bounds)
            right = replace(certificate, numbers=numbers)
            return _wrong(_problem(values, right) or "the numbers are not those of the inputs")
    except DeltaUnreachable:
        return _wrong(f"no bound reaches delta = {format_exact(certificate.delta)}")
    right = replace(certificate, numbers=proved.numbers)
    if problem := _problem(values, right):
        return _wrong(problem)
    evidence = certificate.evidence
    if evidence is not None and evidence.epsilon_lower > right.numbers.epsilon:
        return _wrong(
            f"an audit shows epsilon >= {rounded_down(evidence.epsilon_lower, 6)}, "
            "more than the certified epsilon"
        )
    recomputed = [*_claim(right, proved), *_conditions(right)]
    return Verdict(
        Status.VOID if right.void else Status.CORRECT,
        tuple(map(_ascii, [*recomputed, *_statements(right)])),
        right,
        tuple(map(_ascii, [*recomputed, *_short_statements(right)])),
    )


def _claim(right: Certificate, proved: Proved) -> Iterator[str]:
    """The verdict, and whether the numbers are today's."""
    stated, name, smaller = right.numbers.epsilon, right.numbers.bounds[0], ""
    # No bound is below what an attack attains, so near it there is no smaller one to look for.
    if stated > (1.0 + _NEARLY_ATTAINED) * (right.numbers.attained or 0.0):
        # Slow bounds are left out: whether the certificate is correct does not depend on this.
        today = proved.costs.smallest_quickly
        if stated > today.epsilon * (1.0 + _TOLERANCE):
            name, smaller = today.name, f"; today's bound is {rounded_up(today.epsilon)}"
    claim = (
        f"({rounded_up(stated)}, {format_exact(right.delta)})-DP by {name}, if "
        f"{right.required('on trust')} hold"
    )
    if right.void:
        yield f"void: {'; '.join(right.void)}. Otherwise: {claim}{smaller}"
    else:
        yield f"correct{smaller}: {claim}"
    yield (
        f"numbers: recomputed; correct, but weaker than today's: {', '.join(proved.weaker)}"
        if proved.weaker
        else "numbers: recomputed and correct"
    )


def _conditions(right: Certificate) -> Iterator[str]:
    """The number of conditions by ground, and those that were tested or are on trust."""
    grounds = [condition.ground for condition in right.conditions]
    counts = ", ".join(
        f"{grounds.count(ground)} {ground.value}" for ground in Ground if ground in grounds
    )
    yield (
        f"conditions: the {len(grounds)} that this tuning requires are present; stated by the "
        f"author, not verified ({counts})"
    )
    for condition in right.conditions:
        if condition.ground in (Ground.TESTED, Ground.ON_TRUST):
            yield f"  {condition.ground.value}: {condition.words}"


def _statements(right: Certificate) -> Iterator[str]:
    """Everything that the author states."""
    for title, words in right.stated.in_words():
        if words != NOT_STATED:
            yield f"{_STATED}: {title.lower()}: {words}"
    for name, words in right.study.prior.items():
        yield f"{_STATED}: candidates: {checks.quoted(f'{name}: {words}')}"
    yield f"{_STATED}: made on {right.made.date} with dp-tuning-audit {right.made.version}"
    yield from _audits(right)
    yield (
        _NO_HASH
        if right.model_hash is None
        else f"released model: SHA-256 {right.model_hash}, stated by the author; compare it with "
        "audit.certificate.model_hash(model)"
    )
    yield from _not_stated(right)


def _short_statements(right: Certificate) -> Iterator[str]:
    """What the author states about the protected unit, audits and earlier releases.

    Missing statements follow.
    """
    yield f"{_STATED}: unit of privacy: {checks.quoted(right.stated.unit)}"
    for spending in right.stated.earlier_spending or ():
        epsilon, delta = format_exact(spending.epsilon), format_exact(spending.delta)
        release = checks.quoted(spending.release)
        yield f"{_STATED}: earlier release: ({epsilon}, {delta})-DP, {release}"
    yield from _audits(right)
    if right.model_hash is None:
        yield _NO_HASH
    yield "(candidates, date, hash of the released model and further statements: --all)"
    yield from _not_stated(right)


def _audits(right: Certificate) -> Iterator[str]:
    """The audit that the author states."""
    if right.evidence is not None:
        shown = rounded_down(right.evidence.epsilon_lower)
        yield f"{_STATED}: an audit that shows epsilon >= {shown}"


def _not_stated(right: Certificate) -> Iterator[str]:
    """The statements that are missing, and the hash of the file's content."""
    if right.not_stated:
        yield f"not stated: {', '.join(right.not_stated)}"
    yield f"hash: {right.as_dict()['hash']}"


def _wrong(reason: str) -> Verdict:
    return Verdict(Status.WRONG, (_ascii(f"wrong: {reason}"),))


def _problem(
    values: Mapping[str, Any], right: Certificate, but: tuple[str, ...] = ("hash",)
) -> str | None:
    given, expected = (
        {name: value for name, value in contents.items() if name not in but}
        for contents in (values, right.as_dict())
    )
    for name, *pair in _differences(given, expected, ""):
        return "{} is {}, must be {}".format(name, *map(_quoted, pair))
    return None


def _problem_of_test(certificate: Certificate) -> str | None:
    study = certificate.study
    allowed = testable(certificate.training, certificate.score)
    if study.tested != tuple(name for name in allowed if name in study.tested):
        return f"study.tested is {_quoted(list(study.tested))}, must be of {_quoted(list(allowed))}"
    if bool(study.tested) != bool(study.tested_on) or bool(study.tested) != bool(study.tested_with):
        return "study.tested_on and study.tested_with are required with study.tested, and only then"
    if study.tested_steps < 0 or (study.tested_steps and not study.tested):
        return f"study.tested_steps is {study.tested_steps}, must be 0 without study.tested"
    most = most_steps(certificate.training)
    if study.tested and study.tested_steps > most:
        return f"study.tested_steps is {study.tested_steps}, must be at most {most}, those of a run"
    if study.tested and not _VERSION.fullmatch(study.tested_with):
        return f"study.tested_with is {_quoted(study.tested_with)}, must be a version"
    return None


def _problem_of_provenance(made: Made) -> str | None:
    try:
        day = datetime.date.fromisoformat(made.date)
    except ValueError:
        return f"made.date is {_quoted(made.date)}, must be a date such as 2026-11-22"
    # One more day, for clocks in other time zones.
    last_day = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1)
    if day.isoformat() != made.date or not _FIRST_DAY <= day <= last_day:
        return f"made.date is {_quoted(made.date)}, must be from {_FIRST_DAY} to {last_day}"
    versions = {"version": made.version, "python": made.python, **made.libraries}
    for name, version in versions.items():
        if not _VERSION.fullmatch(version):
            return f"made.{_name(name)} is {_quoted(version)}, must be a version"
    return None


def _differences(given: Any, right: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    """Yields the fields whose values differ from the recomputed ones."""
    kind = next((kind for kind in (Mapping, list, str) if isinstance(right, kind)), None)
    if kind is not None and not isinstance(given, kind):
        word = {Mapping: "an object", list: "a list", str: "a text"}[kind]
        raise InvalidInput(f"{name} must be {word}, got {_quoted(given)}")
    if kind is Mapping:
        for key in right:
            if key not in given:
                raise InvalidInput(f"certificate must have the field {_join(name, key)}")
            yield from _differences(given[key], right[key], _join(name, key))
        for key in given:
            if key not in right:
                yield _join(name, key), given[key], "absent"
    elif kind is list:
        for index, pair in enumerate(zip(given, right, strict=False)):
            yield from _differences(*pair, f"{name}[{index}]")
        if len(given) < len(right):
            yield f"{name}[{len(given)}]", "missing", right[len(given)]
        elif len(given) > len(right):
            yield f"{name}[{len(right)}]", given[len(right)], "absent"
    elif not _agrees(given, right, name):
        yield name, given, right


def _agrees(given: Any, right: Any, name: str) -> bool:
    if isinstance(given, bool) or isinstance(right, bool):
        return given is right
    if not (isinstance(given, int | float) and isinstance(right, int | float)):
        return bool(given == right)
    if given == right or not name.startswith(_COMPUTED) or name.endswith(_EXACT):
        return given == right
    above, below = _TOLERANCE, _TOLERANCE_UNSAFE
    if name.startswith(_LOWER):
        above, below = below, above
    size = abs(right)
    return right - below * size - _NEARLY_ZERO <= given <= right + above * size + _NEARLY_ZERO


def _join(name: str, key: str) -> str:
    return f"{name}.{_name(key)}" if name else _name(key)


def _name(key: str) -> str:
    return key if key.isascii() and key.isidentifier() else _quoted(key)


def _quoted(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _ascii(text: str) -> str:
    return checks.printable(text).encode("ascii", "backslashreplace").decode("ascii")
