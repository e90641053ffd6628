"""Cost of a finished tuning, from its runs as any tracker recorded them."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from audit import checks
from audit.accounting import Mechanism
from audit.accounting.filters import check_protected
from audit.claims import Kind
from audit.errors import InvalidInput
from audit.finished import readers
from audit.finished.columns import (
    IGNORE,
    ColumnRoles,
    check_mapped_names,
    listed,
    parse_columns,
    without_prefix,
    words_of,
)
from audit.finished.cost import (
    NO_BOUND,
    Cost,
    all_of,
    check_prior,
    checked_search,
    cost_of_independent,
    cost_of_sequential,
    dominating_few,
)
from audit.finished.interpretation import interpret, read_prior, rounding_remark, units_remark
from audit.finished.material import (
    GRID,
    RANDOM,
    SEQUENTIAL,
    Evidence,
    Material,
    RecordedRun,
    candidates_of_table,
    combined,
    evidence_of_columns,
    runs_of_log,
)
from audit.finished.material import evidence_of_repetitions as of_repetitions
from audit.finished.runs import RunSettings
from audit.numerics import format_exact, format_rounded
from audit.upper_bounds import ProtocolLike
from audit.upper_bounds.costs import SCORES, CostStatement, Premises, premises_of, sentence

WAYS = (GRID, RANDOM, SEQUENTIAL)
"""How candidates may have been chosen; `sequential` if they depend on earlier results."""

UNKNOWN = "unknown"
"""How candidates were chosen, if neither the user nor the material states it."""

_OTHER_WAYS = {"list": GRID, "tpe": SEQUENTIAL, "bayesian": SEQUENTIAL, "manual": SEQUENTIAL}

_UNKNOWN = (
    "nothing shows how candidates were chosen, so they are taken to depend on earlier results; "
    "if they were a fixed list, pass chosen grid, and if they were drawn at random, chosen random"
)
_SEVERAL_OBJECTIVES = (
    "a study of several objectives releases a Pareto front, which is more than one output, so all "
    "trials count"
)
_CONTRADICTION = "{chosen} was stated, but {reasons}: this is the cost of what the runs show"
_RELEASE = {
    True: "only the best run is released, and losing runs stay secret",
    False: "any runs are released",
}


def _wrapped(lines: Iterable[str], width: int) -> list[str]:
    return [
        wrapped_line
        for line in lines
        for wrapped_line in textwrap.wrap(checks.printable(line), width, subsequent_indent="  ")
    ]


@dataclass(frozen=True)
class TuningCost:
    """Cost of a finished tuning.

    Attributes:
        trials: number of runs.
        chosen: how candidates were chosen, as the cost assumes.
        delta: in (0, 1).
        best_only: epsilon if only the best run is ever released; None if no bound is valid.
        bound: the theorem behind `best_only`.
        all_released: epsilon of releasing every run; None if no bound is valid.
        assumed: how candidates were chosen, in words.
        why: the reason for the cost, in one line.
        kind: `valid`, `odometer reading`, which is no guarantee, or `no bound`.
        odometer: the privacy loss of all runs that is exceeded with probability at most delta; None
            if `best_only` is known, or if no finite reading is.
        premises: what the cost assumes about each run.
        contradiction: how the material contradicts what the user stated; empty if it does not.
        remarks: what was found in the material besides.
        columns: the role of each column, in words.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> cost = cost_of_trials([GaussianMechanism(0.1)] * 3, "sequential")
        >>> cost.kind, cost.epsilon == cost.best_only == cost.all_released
        ('valid', True)
    """

    trials: int
    chosen: str
    delta: float
    best_only: float | None
    bound: str
    all_released: float | None
    assumed: str
    why: str
    kind: str
    odometer: float | None
    premises: Premises
    contradiction: str = ""
    remarks: tuple[str, ...] = ()
    columns: tuple[str, ...] = field(default=())

    @property
    def epsilon(self) -> float | None:
        """Epsilon of the tuning if only its best run is released; None if no bound is valid."""
        return self.best_only

    @property
    def statement(self) -> str:
        """The cost as one sentence with all its premises; empty if no bound is valid."""
        return "" if self.cost_statement is None else str(self.cost_statement)

    @property
    def cost_statement(self) -> CostStatement | None:
        """The cost with its premises; None if no bound is valid."""
        if self.best_only is None:
            return None
        conditions = [self.assumed, _RELEASE[self.best_only != self.all_released], SCORES]
        runs = "1 run" if self.trials == 1 else f"{self.trials} runs"
        return sentence(
            self.best_only, self.delta, f"The tuning of {runs}", self.premises, conditions
        )

    @property
    def lines(self) -> list[str]:
        """The cost as lines of text."""
        statement = f"statement: {self.statement}" if self.statement else self._assumed
        return [*self._answer, statement, *self._reasons]

    def wrapped(self, width: int) -> list[str]:
        """The cost as lines of at most `width` columns, each condition of the cost by itself."""
        statement = self.cost_statement
        conditions = [] if statement is None else ["", *statement.lines(width), ""]
        assumed = [self._assumed] if statement is None else []
        return [
            *_wrapped([*self._answer, *assumed], width),
            *map(checks.printable, conditions),
            *_wrapped(self._reasons, width),
        ]

    @property
    def _answer(self) -> list[str]:
        heading = f"{self.trials} trials, chosen: {self.chosen}; delta = {format_exact(self.delta)}"
        contradiction = [f"contradiction: {self.contradiction}"] if self.contradiction else []
        return [*contradiction, *self._numbers, heading]

    @property
    def _assumed(self) -> str:
        return f"assumed: {self.assumed}; {SCORES}"

    @property
    def _reasons(self) -> list[str]:
        remarks = [f"remark: {remark}" for remark in self.remarks]
        return [f"why: {self.why}", *remarks, *self.columns]

    @property
    def _numbers(self) -> list[str]:
        if self.kind == NO_BOUND:
            return ["no bound on epsilon is valid for this tuning"]
        if self.best_only is None or self.all_released is None:
            reading = "-" if self.odometer is None else format_rounded(self.odometer, up=True)
            return [
                f"odometer reading: {reading} (privacy loss of all trials, exceeded with "
                f"probability at most {format_exact(self.delta)})",
                "not an (epsilon, delta)-DP guarantee: none is proved for this tuning",
            ]
        method = self.bound if self.bound.startswith("privacy filter") else "composition"
        return [
            f"only the best is released: epsilon = {format_rounded(self.best_only, up=True)} "
            f"(by {self.bound})",
            "all are released:          epsilon = "
            f"{format_rounded(self.all_released, up=True)} ({method})",
        ]

    def as_dict(self) -> dict[str, Any]:
        """The cost as plain values, for json."""
        return {"epsilon": self.epsilon, "statement": self.statement} | asdict(self)

    def __str__(self) -> str:
        return "\n".join(self.lines)


def cost_of_trials(
    source: Any,
    chosen: str | None = None,
    *,
    columns: str | Mapping[str, str] | None = None,
    records: int | None = None,
    base: Mechanism | None = None,
    delta: float = 1e-5,
    protocol: ProtocolLike | None = None,
    prior: Mechanism | str | Path | None = None,
    cap: float | Mechanism | None = None,
    budgets: str | None = None,
    neighbours: str | None = None,
    group_size: int = 1,
    noise_multiplier: float | None = None,
    sampling_rate: float | None = None,
    batch_size: float | None = None,
    steps: float | None = None,
    epochs: float | None = None,
    target_epsilon: float | None = None,
    target_delta: float | None = None,
    accountant: str | None = None,
    drop_last: bool = False,
    batches: str = "poisson",
    study: str | None = None,
) -> TuningCost:
    """Cost of a finished tuning, given how its candidates were chosen.

    Columns, parameters and attributes of runs are read if they are named `noise_multiplier`,
    `sampling_rate`, `batch_size`, `steps`, `epochs`, `delta`, `target_epsilon`, `gdp_mu` or
    `zcdp_rho`, with or without the prefix of a tracker. Others are read only where they are mapped.

    Args:
        source: a table (csv, tsv, json, parquet), a folder of runs (MLflow, W&B, Ray Tune, Hydra,
            Keras Tuner), the address of an Optuna storage, a data frame, a study or a search, a
            list of base mechanisms or mappings; or a list of sources, which are one tuning on the
            same records.
        chosen: `grid` (a fixed list, also without replacement), `random` (drawn with replacement),
            or `sequential` (TPE, by hand, with pruning: any choice that depends on earlier runs).
            By default, what the material shows; if it shows nothing, sequential.
        columns: roles of columns, such as `{"sigma": "noise_multiplier"}` or
            `"sigma=noise_multiplier,bs=batch_size"`; the role `ignore` is for columns that are not
            about privacy, and `run` for a column that identifies runs if each has several rows.
        records: number of records of the data set, from which batch size and epochs give the
            sampling rate and the steps, with the rounding of Opacus.
        base: the mechanism of every run, if the runs do not describe it.
        delta: in (0, 1).
        protocol: for random trials, the random search or the distribution of K from which their
            number was drawn. Without it, their number was fixed.
        prior: for random trials that are not all equally private, the mechanism of one draw: an
            `accounting.Mixture`, or a table of all candidates, with a column `chance` or
            `probability` if they are not equally likely.
        cap: for sequential trials, the largest epsilon (or mechanism, see `tuning.Budget`) that all
            trials together were allowed to spend, fixed before the first trial.
        budgets: for sequential trials without a cap: `planned` if their number and the budget of
            each were fixed before the first trial, `adaptive` if they depend on earlier outputs.
            The default is `planned` if all trials have the same budget, otherwise `adaptive`.
        neighbours: `zero-out` (the default: n is public), `add-remove` or `replace-one`.
        group_size: number of records of one person, protected together.
        noise_multiplier: that of all runs, if no column has it; likewise the following five.
        sampling_rate: probability that a record is in a batch.
        batch_size: expected batch size, with `records`.
        steps: number of steps.
        epochs: number of epochs.
        target_epsilon: epsilon from which the noise was computed.
        target_delta: delta of the target epsilons, if no column `delta` has it.
        accountant: the accountant that computed the noise from the target epsilons: `prv` (the
            default of Opacus), `rdp` or `gdp`.
        drop_last: whether the loader drops the last batch of an epoch if it is smaller.
        batches: `poisson` (assumed by default) or `shuffled`.
        study: the study or experiment, in a storage of several.

    Returns:
        The cost. Its `epsilon` is None only if the runs are understood and no bound is valid, as
        for budgets that were chosen by looking at results.

    Raises:
        InvalidInput: a source or one of its columns is not understood, or an argument is out of its
            range.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> cost = cost_of_trials([GaussianMechanism(0.1)] * 30, "random")
        >>> round(cost.epsilon, 2), round(cost.all_released, 2)
        (1.41, 2.21)
        >>> runs = [{"sigma": 1.1, "bs": 100, "epochs": 5, "lr": lr} for lr in (0.1, 0.2)]
        >>> columns = "sigma=noise_multiplier,bs=batch_size"
        >>> round(cost_of_trials(runs, "grid", columns=columns, records=10_000).epsilon, 3)
        1.515
    """
    delta = checks.interval("delta", delta, 0.0, 1.0)
    if chosen is not None:
        canonical = _OTHER_WAYS.get(chosen.lower(), chosen) if isinstance(chosen, str) else chosen
        chosen = checks.one_of("chosen", canonical, WAYS)
    if base is not None and not isinstance(base, Mechanism):
        raise InvalidInput(f"base must be a mechanism, got {checks.one_line(base)}")
    constants = {
        "noise_multiplier": noise_multiplier,
        "sampling_rate": sampling_rate,
        "batch_size": batch_size,
        "steps": steps,
        "epochs": epochs,
        "target_epsilon": target_epsilon,
    }
    settings = RunSettings(
        {name: value for name, value in constants.items() if value is not None},
        records,
        drop_last,
        batches,
        accountant,
        target_delta,
        neighbours,
        group_size,
        base,
    )
    read = _read(source, columns, study, settings)
    if isinstance(prior, str | Path):
        prior = read_prior(prior, read.mapping, settings)
    cost = _cost(
        read.materials, read.runs, read.roles, chosen, delta, protocol, prior, cap, budgets
    )
    remarks = dict.fromkeys([*cost.remarks, *read.remarks])
    return replace(cost, remarks=tuple(remarks))


class _Read(NamedTuple):
    """The runs of all sources, and how their columns were read."""

    materials: list[Material]
    runs: list[Mechanism]
    roles: list[ColumnRoles]
    mapping: Mapping[str, str]
    remarks: list[str]


def _read(
    source: Any, columns: str | Mapping[str, str] | None, study: str | None, settings: RunSettings
) -> _Read:
    mapping = parse_columns(columns)
    ignored = frozenset(name for name, role in mapping.items() if role == IGNORE)
    check_mapped_names(mapping)
    materials = _materials(source, readers.ReadOptions(study, ignored))
    _check_mapping(mapping, materials)
    materials = [runs_of_log(material, mapping) for material in materials]
    runs, roles = _interpreted(materials, mapping, settings)
    remarks = [
        remark
        for material, column_roles in zip(materials, roles, strict=True)
        for remark in (
            rounding_remark(material, column_roles, settings),
            units_remark(column_roles),
        )
        if remark
    ]
    return _Read(materials, runs, roles, mapping, remarks)


def _materials(source: Any, options: readers.ReadOptions) -> list[Material]:
    """The runs of every source; runs that are mechanisms already form one."""
    if isinstance(source, list | tuple) and not _are_rows(source):
        if not source:
            raise InvalidInput("source must have at least one run, got none")
        mechanisms = [item for item in source if isinstance(item, Mechanism)]
        if len(mechanisms) == len(source):
            return [_of_mechanisms(mechanisms)]
        if mechanisms:
            wrong = next(item for item in source if not isinstance(item, Mechanism))
            raise InvalidInput(f"source must be mechanisms only, got {checks.one_line(wrong)}")
        return [material for item in source for material in _materials(item, options)]
    return [readers.read(source, options)]


def _are_rows(source: Sequence[Any]) -> bool:
    return bool(source) and all(isinstance(row, Mapping) for row in source)


def _of_mechanisms(mechanisms: Iterable[Mechanism]) -> Material:
    runs = tuple(
        RecordedRun({}, f"trial {i}", mechanism=run) for i, run in enumerate(mechanisms, 1)
    )
    return Material("the list of mechanisms", runs)


def _check_mapping(mapping: Mapping[str, str], materials: Sequence[Material]) -> None:
    names = {
        name
        for material in materials
        for column in material.columns
        for name in (column.strip(), without_prefix(column))
    }
    for name in mapping:
        if name not in names:
            raise InvalidInput(
                f"columns must name columns of the runs, got {checks.one_line(name)}; they have "
                f"{listed(sorted(names)) or 'none'}"
            )


def _interpreted(
    materials: Sequence[Material], mapping: Mapping[str, str], settings: RunSettings
) -> tuple[list[Mechanism], list[ColumnRoles]]:
    runs: list[Mechanism] = []
    roles = []
    for material in materials:
        mechanisms, column_roles = interpret(material, mapping, settings)
        if material.trainings > 1:
            composed = {
                run: all_of([run] * material.trainings) for run in dict.fromkeys(mechanisms)
            }
            mechanisms = [composed[run] for run in mechanisms]
        runs += mechanisms
        roles.append(column_roles)
    return runs, roles


def _cost(
    materials: Sequence[Material],
    runs: list[Mechanism],
    roles: Sequence[ColumnRoles],
    chosen: str | None,
    delta: float,
    protocol: ProtocolLike | None,
    prior: Mechanism | None,
    cap: float | Mechanism | None,
    budgets: str | None,
) -> TuningCost:
    evidence = _evidence(materials, chosen)
    contradiction = ""
    way = chosen or evidence.method or UNKNOWN
    if chosen is not None and evidence.contradicts(chosen):
        contradiction = _CONTRADICTION.format(
            chosen=f"chosen {chosen}", reasons=", and ".join(evidence.reasons)
        )
        way = evidence.method or UNKNOWN
        protocol = prior = None  # they describe random draws, which these are not
    several_objectives = any(material.objectives > 1 for material in materials)
    search = None if protocol is None else checked_search(protocol, way, len(runs))
    for name, value in {"cap": cap, "budgets": budgets}.items():
        if value is not None and way not in (SEQUENTIAL, UNKNOWN) and not several_objectives:
            raise InvalidInput(f"{name} must be given with chosen sequential only, got {way}")
    different = dict.fromkeys(runs)
    if prior is not None:
        check_prior(prior, different, way)
    check_protected("trials", different if prior is None else (*different, prior))
    if several_objectives and (search is not None or prior is not None):
        raise InvalidInput(
            "protocol and prior must come with one objective, got several objectives"
        )
    no_bound = next((material.no_bound for material in materials if material.no_bound), "")
    label = way
    if no_bound:
        cost = Cost(None, "none", None, "the runs are those of the table", no_bound, NO_BOUND)
    elif several_objectives:
        if budgets is None and cap is None and way in (GRID, RANDOM):
            budgets = "planned"  # candidates that ignore earlier results depend on no output
        cost = cost_of_sequential(runs, delta, cap, budgets)
        cost = replace(cost, why=_with_reason(_SEVERAL_OBJECTIVES, cost))
        label = f"{way}, several objectives"
    elif way in (SEQUENTIAL, UNKNOWN):
        cost = cost_of_sequential(runs, delta, cap, budgets)
        if way == UNKNOWN:
            cost = replace(cost, why=_with_reason(_UNKNOWN, cost))
    else:
        cost = cost_of_independent(runs, dominating_few(different), way, delta, search, prior)
    lines = dict.fromkeys(line for column_roles in roles for line in column_roles.lines)
    return TuningCost(
        len(runs),
        label,
        delta,
        premises=premises_of(runs),
        contradiction=contradiction,
        remarks=_remarks(materials, evidence, chosen),
        columns=tuple(lines),
        **vars(cost),
    )


def _with_reason(reason: str, cost: Cost) -> str:
    return reason if cost.kind == Kind.BOUND.value else f"{reason}; {cost.why}"


def _evidence(materials: Sequence[Material], chosen: str | None) -> Evidence:
    """What all sources together show about how candidates were chosen."""
    by_material = [combined_with_states(material) for material in materials]
    evidence = combined(by_material)
    candidates = [candidate for material in materials for candidate in _candidates(material)]
    repetitions = of_repetitions(candidates)
    evidence = replace(evidence, remarks=(*evidence.remarks, *repetitions.remarks))
    if chosen == RANDOM and repetitions.reasons and evidence.method != SEQUENTIAL:
        return replace(evidence, method=SEQUENTIAL, reasons=repetitions.reasons)
    return evidence


def _candidates(material: Material) -> list[tuple[object, ...]]:
    """The candidates of one source, as far as its columns show them."""
    if material.parameters:
        names = sorted(material.parameters)
        return [tuple(str(run.values.get(name)) for name in names) for run in material.runs]
    settings = {
        name: cells for name, cells in material.columns.items() if name not in material.bookkeeping
    }
    return candidates_of_table(settings, words_of)


def combined_with_states(material: Material) -> Evidence:
    """What one source shows: the marks of its sampler, its columns, and the states of its runs."""
    states = material.state_evidence
    marks = material.evidence
    columns = evidence_of_columns(
        {without_prefix(name).strip().lower(): cells for name, cells in material.columns.items()}
    )
    # Marks of a tracker's own sampler count more than the word of a column.
    if columns.method == SEQUENTIAL or marks.method is None:
        reasons = (*marks.reasons, *columns.reasons) if marks.method == columns.method else ()
        marks = replace(
            marks, method=columns.method, reasons=reasons or columns.reasons or marks.reasons
        )
    remarks = (*marks.remarks, *columns.remarks, *states.remarks)
    if states.method == SEQUENTIAL:
        reasons = marks.reasons if marks.method == SEQUENTIAL else ()
        return Evidence(SEQUENTIAL, (*reasons, *states.reasons), remarks)
    return replace(marks, remarks=remarks)


def _remarks(
    materials: Sequence[Material], evidence: Evidence, chosen: str | None
) -> tuple[str, ...]:
    remarks = list(evidence.remarks)
    if chosen is None and evidence.method is not None:
        remarks.insert(
            0, f"the runs show how candidates were chosen: {', '.join(evidence.reasons)}"
        )
    if len(materials) > 1:
        remarks.append(
            f"{len(materials)} sources are one tuning: the statement about the candidates is about "
            "all of them"
        )
    trainings = [material.trainings for material in materials if material.trainings > 1]
    if trainings:
        remarks.append(f"each candidate was trained {trainings[0]} times")
    return tuple(dict.fromkeys(remarks))
