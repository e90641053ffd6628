"""The results of an audit as dataclasses; text, tables, pages and figures are made from them.

They are stored in summary.json (docs/audit_a_tuning.md describes it), and their bounds in
results.csv, one row per bound.
"""

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audit import checks
from audit.errors import InvalidInput
from audit.game.settings import SCHEMA, AuditConfig
from audit.typed_json import read_typed
from audit.upper_bounds import BaseReport
from threat_models.datasets import FOREIGN

if TYPE_CHECKING:
    import pandas as pd

PROXIES = ("lambda_a", "lambda_b")
"""The paper's proxies. Sampled batches also have lambda_c, the likelihood ratio of a run."""
ALL_PROXIES = (*PROXIES, "lambda_c")
PAPER_PROTOCOL = "gaussian-curve:max-grid"
"""Key of the paper's estimator: the f-curve at the best threshold of a grid, uncorrected."""
VALID, UNCORRECTED = "valid", "paper's, uncorrected"
ALL_RUNS = "valid, from all runs"
# Estimators that use all runs, not only the winners; the strongest first.
_ALL_RUNS = ("pooled-gaussian-curve:rank-sum", "pooled:scan")
# Estimators for a score of known distribution, which assume more and give larger bounds.
_OWN_CURVES = {
    "lifted-curve:rank-sum": "valid if monotone",
    "worst-order-curve:fixed": "valid for this order",
}
_FIRST = ("epsilon_base", "score", "side", "proxy", "repeat", "name", "rule", "epsilon", "valid")


@dataclass(frozen=True)
class LowerValue:
    """A lower bound from one set of trials, and the counts behind it."""

    epsilon: float  # the lower bound
    threshold: float | None  # the threshold on the statistic; None if there is no single one
    direction: str  # "higher" if a statistic above the threshold indicates the canary, else "lower"
    false_positives: int | None  # trials without the canary on the side that indicates it
    false_negatives: int | None  # trials with the canary on the other side
    trials_without: int  # number of trials without the canary; number of runs if all runs count
    trials_with: int  # number of trials with the canary, or of runs

    @property
    def trials(self) -> int:
        """Number of trials that were counted."""
        return self.trials_without + self.trials_with


@dataclass(frozen=True)
class LowerResult:
    """One estimator's lower bounds from one proxy."""

    name: str  # the estimator
    rule: str  # how its threshold was chosen
    valid: bool  # whether the confidence holds in this audit
    label: str  # kind of the number, in a few words
    assumes: str  # the assumptions
    source: str  # paper and theorem
    confidence: float  # confidence of each bound on its own
    pooled: LowerValue  # the bound from the trials of all repeats together
    repeats: tuple[LowerValue, ...]  # the bound from each single repeat; their mean is not a bound

    @property
    def epsilon(self) -> float:
        """The lower bound from the trials of all repeats."""
        return self.pooled.epsilon

    @property
    def min(self) -> float:
        """The smallest bound of a single repeat."""
        return min(repeat.epsilon for repeat in self.repeats)

    @property
    def max(self) -> float:
        """The largest bound of a single repeat."""
        return max(repeat.epsilon for repeat in self.repeats)

    @property
    def mean(self) -> float:
        """The mean over the repeats, as papers print it; it is not a bound."""
        return math.fsum(repeat.epsilon for repeat in self.repeats) / len(self.repeats)


@dataclass(frozen=True)
class UpperResult:
    """An upper bound on the cost of the tuning, or a number for comparison."""

    name: str  # name of the bound; "base" and "base-renyi" are the cost of a single run
    epsilon: float | None  # the value; None if the bound does not apply
    valid: bool  # whether it is an upper bound for this score and protocol
    label: str  # kind of the number, in a few words
    assumes: str  # the assumptions
    source: str  # paper and theorem
    error: float  # largest effect of rounding and discretisation


@dataclass(frozen=True)
class Contradiction:
    """A valid lower bound above a valid upper bound (see `audit.report.assemble`)."""

    key: str  # key of the lower bound
    proxy: str  # the statistic of the lower bound
    lower: float  # the lower bound from all trials, with its own confidence
    upper_bound: str  # name of the smallest valid upper bound
    upper: float  # the upper bound
    # whether the lower bound still exceeds the upper bound when all compared lower bounds share the
    # error; only then does the report announce a contradiction
    beyond_chance: bool
    compared: int = 0  # number of lower bounds that the report compares


@dataclass(frozen=True)
class BudgetResult:
    """The results at one budget of a single run."""

    epsilon_base: float  # eps_B
    mu: float | None  # mu of the base; None if it is not Gaussian
    score: str  # the score that selected the best run
    base: BaseReport  # cost of a single run
    runs: int  # number of runs that were trained
    diverged_runs: int  # number of runs that diverged; they are never released
    lower_bounds: dict[str, dict[str, LowerResult]]  # lower bounds by proxy, then by key
    upper_bounds: dict[str, UpperResult]  # upper bounds by name
    # valid lower bounds above valid upper bounds, including those that chance may explain
    contradictions: tuple[Contradiction, ...] = ()
    # the largest epsilon that the bound to report could show with these trials
    ceiling: float = 0.0
    # the smallest number of trials with which the bound to report could show the smallest valid
    # upper bound; None if there is no such bound
    games_needed: int | None = None

    @property
    def smallest_upper(self) -> UpperResult | None:
        """The smallest valid upper bound; None if there is none."""
        valid = [bound for bound in self.upper_bounds.values() if bound.valid]
        return min(valid, key=lambda bound: bound.epsilon or 0.0, default=None)

    @property
    def contradiction(self) -> Contradiction | None:
        """The contradiction to announce: the largest that chance does not explain, or None."""
        announced = [
            contradiction for contradiction in self.contradictions if contradiction.beyond_chance
        ]
        return max(announced, key=lambda bound: bound.lower, default=None)


@dataclass(frozen=True)
class EngineChoice:
    """The engine that trained, and the reason for it."""

    name: str
    reason: str


@dataclass(frozen=True)
class Rounding:
    """Effect of rounded products on the clipping threshold: relative error, and explanation."""

    product_error: float
    sensitivity: str


@dataclass(frozen=True)
class Records:
    """Number of records that were used; 0 if there are none."""

    training: int
    validation: int


@dataclass(frozen=True)
class Recommended:
    """The bound to report, fixed before the first trial: its proxy and its key."""

    proxy: str
    key: str


@dataclass(frozen=True)
class Report:
    """All results of an audit."""

    config: AuditConfig  # the settings of this view of the audit
    records: Records  # number of records that were used
    candidates: tuple[dict[str, float], ...]  # Omega, the hyperparameters of every candidate
    engine: EngineChoice  # the engine that trained
    precision: Rounding | None  # effect of rounded products; None if products are not rounded
    recommended: Recommended  # the bound to report
    results: tuple[BudgetResult, ...]  # the results at every budget
    # version, date, libraries and hardware. The rest of a report is a function of the trials
    made: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA  # version of the file format

    @property
    def proxies(self) -> tuple[str, ...]:
        """The proxies of the lower bounds."""
        return tuple(self.results[0].lower_bounds)

    def reported(self, budget: int) -> LowerResult:
        """The recommended lower bound at a budget."""
        return self.results[budget].lower_bounds[self.recommended.proxy][self.recommended.key]

    @property
    def highlights(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """The lower bounds that reports show: key, kind of the number, and proxies.

        The bound to report comes first, followed by the curve for the distribution of the score and
        a bound from all runs, if they are valid, and the paper's estimator, for comparison. The
        choice depends only on the settings.
        """
        lower = self.results[0].lower_bounds.get("lambda_a", {})
        kinds = [(self.recommended.key, VALID, self.proxies)]
        for key, kind in _OWN_CURVES.items():
            if key in lower and lower[key].valid:
                kinds.append((key, kind, ("lambda_a",)))
        of_all_runs = (key for key in _ALL_RUNS if key in lower and lower[key].valid)
        kinds += [(key, ALL_RUNS, ("lambda_a",)) for key in itertools.islice(of_all_runs, 1)]
        return [*kinds, (PAPER_PROTOCOL, UNCORRECTED, PROXIES)]


def is_search(config: AuditConfig) -> bool:
    """Whether the protocol is random search, as in the paper."""
    return config.parsed_protocol.search_repetitions is not None


def way_of_tuning(config: AuditConfig) -> str:
    """How the best run was chosen: the distribution of K for random search, else the protocol."""
    if is_search(config):
        return f"K ~ {config.repetitions}"
    is_adaptive = config.parsed_protocol.is_adaptive
    return f"{config.protocol}, sampler {config.sampler}" if is_adaptive else config.protocol


def row_of_table(config: AuditConfig) -> tuple[str, str, str]:
    """The row of table 2: threat model, X and z, for instance NTNV, FASHION, MNIST[0]."""
    canary, dataset = config.canary, config.dataset
    empty = config.threat == "ETCV"
    if canary == "input":
        canary = f"{dataset if empty else FOREIGN[dataset]}[{config.canary_index}]"
    return config.threat, "empty" if empty else dataset, canary


def to_json(report: Report) -> str:
    """The report as json; infinity and NaN become null."""
    return json.dumps(_plain(_with_derived(report)), indent=2, allow_nan=False) + "\n"


def _with_derived(report: Report) -> dict[str, Any]:
    """All fields, the schema first, and the derived values of lower bounds."""
    values = asdict(report) | {"config": report.config.identity}
    for written, result in zip(values["results"], report.results, strict=True):
        for proxy, bounds in result.lower_bounds.items():
            for key, bound in bounds.items():
                written["lower_bounds"][proxy][key] = {
                    **{name: getattr(bound, name) for name in ("epsilon", "min", "mean", "max")},
                    **written["lower_bounds"][proxy][key],
                }
    return {"schema": values.pop("schema"), "made": values.pop("made"), **values}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read(path: Path) -> Report:
    """The report in a summary.json; one that is incomplete or has another schema is refused."""
    try:
        values = json.loads(checks.read_text(path))
        if not isinstance(values, dict):
            raise InvalidInput(f"{path.name} must be a mapping, got {str(values)[:40]}")
        if values.get("schema") != SCHEMA:
            raise InvalidInput(
                f"schema of {path.name} must be {SCHEMA}, got {values.get('schema')!r}: "
                "run the audit's command again to rewrite it"
            )
        report: Report = read_typed(Report, values, path.name, {AuditConfig: _settings})
        _check(report)
    except (OSError, ValueError, RecursionError, OverflowError) as error:
        reason = checks.reason_of(error)
        if isinstance(error, FileNotFoundError):
            reason = f"it has no {path.name}" if path.parent.is_dir() else "no such folder"
        raise InvalidInput(
            f"folders must hold finished audits, got {str(path.parent)!r}: {reason}"
        ) from error
    return report


def _settings(values: Any) -> AuditConfig:
    """The settings of a summary, all of which must be stated."""
    config = AuditConfig.from_mapping(read_typed(Mapping[str, Any], values, "config"))
    for name in config.identity.keys() - values.keys():
        raise InvalidInput(f"config must have the setting {name}, got none")
    return config


def _check(report: Report) -> None:
    """Raises InvalidInput if a required part is empty."""
    if len(report.results) != len(report.config.epsilon):
        raise InvalidInput(f"summary.json must have every budget, got {len(report.results)}")
    for result in report.results:
        for name in result.lower_bounds:
            checks.one_of("proxy of summary.json", name, ALL_PROXIES)
        # The bounds that the text, the page and the figures show.
        needed = [(proxy, key) for key, _, proxies in report.highlights for proxy in proxies]
        for proxy, key in [*needed, (report.recommended.proxy, report.recommended.key)]:
            bound = result.lower_bounds.get(proxy, {}).get(key)
            if bound is None or not bound.repeats:
                raise InvalidInput(f"summary.json must have the bound {key} from {proxy}")


def to_table(report: Report) -> "pd.DataFrame":
    """One row per bound, budget, repeat and proxy; `side` is `lower`, `pooled` or `upper`."""
    import pandas as pd  # only an audit that writes its results needs it

    rows = [
        {"epsilon_base": result.epsilon_base, "mu": result.mu, "score": result.score, **row}
        for result in report.results
        for row in (*_lower(result), *_upper(result))
    ]
    table = pd.DataFrame(rows)
    return table[[*_FIRST, *table.columns.drop(list(_FIRST))]]


def to_csv(table: "pd.DataFrame") -> str:
    """A table as csv; the same numbers give the same bytes."""
    return table.to_csv(index=False, float_format="%.12g", lineterminator="\n")


def _lower(result: BudgetResult) -> Iterator[dict[str, Any]]:
    for proxy, bounds in result.lower_bounds.items():
        for key, bound in bounds.items():
            of_bound = {"proxy": proxy, **_claim(bound), "key": key}
            yield {"side": "pooled", **of_bound, **asdict(bound.pooled)}
            for repeat, value in enumerate(bound.repeats):
                yield {"side": "lower", "repeat": repeat, **of_bound, **asdict(value)}


def _claim(bound: LowerResult) -> dict[str, Any]:
    names = ("name", "rule", "confidence", "valid", "assumes", "label", "source")
    return {name: getattr(bound, name) for name in names}


def _upper(result: BudgetResult) -> Iterator[dict[str, Any]]:
    for bound in result.upper_bounds.values():
        yield {"side": "upper", **asdict(bound), "key": bound.name}
