"""Public names of version 0.2 that have new names. They work for one version and warn.

Packages use `renamed(__name__)` as their `__getattr__`, and `audit` installs the finder of old
modules.
"""

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAMES = {
    "audit.accounting.Unreachable": "audit.accounting.DeltaUnreachable",
    "audit.accounting.AnyOf": "audit.accounting.WorstOf",
    "audit.accounting.OneOf": "audit.accounting.Mixture",
    "audit.accounting.best_order": "audit.accounting.best_alpha",
    "audit.accounting.from_plain": "audit.accounting.mechanism_from_dict",
    "audit.accounting.noise_multiplier_for": "audit.accounting.full_batch_noise_multiplier",
    "audit.accounting.parse": "audit.accounting.parse_mechanism",
    "audit.accounting.to_plain": "audit.accounting.mechanism_to_dict",
    "audit.dpsgd.LaneOutcomes": "audit.dpsgd.RunOutcomes",
    "audit.dpsgd.Lanes": "audit.dpsgd.RunBatch",
    "audit.lower_bounds.AcceptedTailsCurve": "studies.accepted_tails.AcceptedTailsCurve",
    "audit.lower_bounds.Looks": "audit.lower_bounds.SequentialPlan",
    "audit.lower_bounds.all_bounds": "audit.lower_bounds.all_lower_bounds",
    "audit.lower_bounds.doubling": "audit.lower_bounds.doubling_sizes",
    "audit.lower_bounds.ceiling": "audit.lower_bounds.max_detectable_epsilon",
    "audit.lower_bounds.provable": "studies.papers.max_provable_epsilon.max_provable_epsilon",
    "audit.protocols.DEFAULT_LAW": "audit.protocols.DEFAULT_REPETITIONS",
    "audit.protocols.parse": "audit.protocols.parse_protocol",
    "audit.repetitions.MOST_RUNS": "audit.repetitions.MAX_RUNS",
    "audit.repetitions.parse": "audit.repetitions.parse_repetitions",
    "audit.tuning.Inadmissible": "audit.tuning.ProtocolViolation",
    "audit.tuning.Void": "audit.tuning.StudyAborted",
    "audit.tuning.Whole": "audit.tuning.Integer",
    "audit.tuning.cost_of": "audit.tuning.cost_of_trials",
    "audit.upper_bounds.Affordable": "audit.upper_bounds.AffordableRepetitions",
    "audit.upper_bounds.Compared": "audit.upper_bounds.ComparedProtocol",
    "audit.upper_bounds.all_bounds": "audit.upper_bounds.all_upper_bounds",
    "audit.upper_bounds.best_law": "audit.upper_bounds.best_repetitions",
    "audit.upper_bounds.best_order": "audit.attacks.worst_case_order",
    "audit.upper_bounds.best_split_order": "audit.attacks.worst_case_split_order",
    "audit.upper_bounds.cost": "audit.upper_bounds.tuning_cost",
    "audit.upper_bounds.same_runs": "audit.upper_bounds.compare_protocols",
    "audit.accounting.tuning_epsilon": "audit.integrations.opacus.tuning_epsilon",
    "audit.certificate.Finding": "audit.certificate.Status",
    "audit.claims.Condition": "audit.claims.Assumption",
    "audit.claims.Verdict": "audit.claims.Validity",
    "audit.upper_bounds.tested_region": "audit.upper_bounds.tuning_cost",
    "audit.upper_bounds.tested_tight": "audit.upper_bounds.tuning_cost",
    "audit.upper_bounds.tightest": "audit.upper_bounds.tuning_cost",
    "audit.upper_bounds.solve_mu": "audit.upper_bounds.calibrate_mu_for_tuning",
    "audit.upper_bounds.solve_noise_multiplier": "audit.upper_bounds.calibrate_noise",
    "audit.upper_bounds.solve_runs": "audit.upper_bounds.calibrate_runs",
    "audit.upper_bounds.corollary_16": "studies.papers.papernot_steinke.corollary_16",
    "audit.upper_bounds.cost_ratio": "studies.papers.distributions.cost_ratio",
    "audit.upper_bounds.noisy_max_closed_form": "studies.papers.koskela_redberg_wang."
    "noisy_max_closed_form",
    "audit.upper_bounds.noisy_max_renyi": "studies.papers.koskela_redberg_wang.noisy_max_renyi",
    "audit.upper_bounds.FoldedOrder": "audit.orders.FoldedOrder",
    "audit.upper_bounds.SplitOrder": "audit.orders.SplitOrder",
}
"""Old names and their new names."""

MOVED = {"audit.upper_bounds": ("audit.attacks", "audit.upper_bounds.published")}
"""Packages that lost names, and the packages that have these names now."""

_SOLVER = {"target": "target_epsilon", "law": "protocol", "delta": "target_delta"}
PARAMETERS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "audit.tuning.cost_of": (
        ("trials", "chosen", "delta", "law", "prior", "cap", "budgets"),
        {"law": "protocol"},
    ),
    "audit.upper_bounds.best_law": (("target", "base", "delta", "bound"), _SOLVER),
    "audit.upper_bounds.solve_mu": (("target", "law", "delta", "bound"), _SOLVER),
    "audit.upper_bounds.solve_noise_multiplier": (
        ("target", "law", "delta", "steps", "sampling_rate", "neighbours", "bound"),
        _SOLVER,
    ),
    "audit.upper_bounds.solve_runs": (
        ("target", "base", "law", "delta", "bound"),
        _SOLVER | {"law": "repetitions"},
    ),
}
"""Old parameters in their order, and those with new names, of functions with a new signature."""

MODULES = {
    "audit.coverage": "audit.coverage_study",
    "audit.opacus": "audit.integrations.opacus",
    "audit.optuna": "audit.integrations.optuna",
}
"""Old modules and their new names."""


def renamed(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package, which finds its old names and warns."""

    def find(name: str) -> Any:
        old = f"{package}.{name}"
        address = NAMES.get(old) or _moved(package, name)
        if address is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, new = address.rpartition(".")
        warn(old, address)
        found = getattr(importlib.import_module(module), new)
        return _with_old_parameters(found, *PARAMETERS[old]) if old in PARAMETERS else found

    return find


def _moved(package: str, name: str) -> str | None:
    """The new address of a name that only moved to another package."""
    homes = () if name.startswith("_") else MOVED.get(package, ())
    found = (home for home in homes if name in importlib.import_module(home).__all__)
    return next((f"{home}.{name}" for home in found), None)


def _with_old_parameters(
    function: Callable[..., Any], order: tuple[str, ...], names: dict[str, str]
) -> Callable[..., Any]:
    """The function with the old order and names of its parameters."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        old = dict(zip(order, args, strict=False)) | kwargs
        return function(**{names.get(name, name): value for name, value in old.items()})

    return call


class OldModules(MetaPathFinder, Loader):
    """Imports a module under its old name and warns."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds old modules only."""
        return ModuleSpec(fullname, self) if fullname in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        """Copies the names of the new module."""
        new = MODULES[module.__name__]
        warn(module.__name__, new)
        names = vars(importlib.import_module(new))
        vars(module).update({name: value for name, value in names.items() if name[:2] != "__"})


def install() -> None:
    """Makes old modules importable, once."""
    if not any(isinstance(finder, OldModules) for finder in sys.meta_path):
        sys.meta_path.append(OldModules())


def warn(old: str, new: str) -> None:
    """Warns that an old name is used."""
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)
