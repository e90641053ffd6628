"""Audits of differentially private hyperparameter tuning.

The functions and classes that most users need are imported from here:

- the cost of a tuning: `tuning_cost`, `all_upper_bounds`, `compare_protocols`, `calibrate_noise`,
  `cost_of_trials`, with a mechanism such as `DpSgd` and a protocol such as `Grid`;
- private tuning: `Study`, `Trial`, `Outcome`, `Budget`;
- tests of a training loop: `check`, `check_one_run`, `script` for unmodified scripts, and `step`
  for loops of arrays;
- lower bounds from trials: `lower_bound`, `all_lower_bounds`.

Everything is imported at its first use. Subpackages are available as attributes.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from audit.version import __version__ as __version__

if TYPE_CHECKING:
    from audit.accounting import (
        Composition,
        DpSgd,
        GaussianMechanism,
        from_event,
        from_opacus,
    )
    from audit.errors import AuditError
    from audit.finished import cost_of_trials
    from audit.loop import check, check_one_run, script, step
    from audit.lower_bounds import all_lower_bounds, lower_bound
    from audit.protocols import Grid, RandomSearch
    from audit.tuning import Budget, Outcome, Study, Trial
    from audit.upper_bounds import (
        all_upper_bounds,
        calibrate_noise,
        compare_protocols,
        tuning_cost,
    )

__all__ = [
    "AuditError",
    "Budget",
    "Composition",
    "DpSgd",
    "GaussianMechanism",
    "Grid",
    "Outcome",
    "RandomSearch",
    "Study",
    "Trial",
    "all_lower_bounds",
    "all_upper_bounds",
    "calibrate_noise",
    "check",
    "check_one_run",
    "compare_protocols",
    "cost_of_trials",
    "from_event",
    "from_opacus",
    "lower_bound",
    "script",
    "step",
    "tuning_cost",
]

_HOMES = {
    "audit.accounting": (
        "Composition",
        "DpSgd",
        "GaussianMechanism",
        "from_event",
        "from_opacus",
    ),
    "audit.errors": ("AuditError",),
    "audit.finished": ("cost_of_trials",),
    "audit.lower_bounds": ("all_lower_bounds", "lower_bound"),
    "audit.loop": ("check", "check_one_run", "script", "step"),
    "audit.protocols": ("Grid", "RandomSearch"),
    "audit.tuning": ("Budget", "Outcome", "Study", "Trial"),
    "audit.upper_bounds": (
        "all_upper_bounds",
        "calibrate_noise",
        "compare_protocols",
        "tuning_cost",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    if name in ("canaries", "threat_models"):  # Packages next to this one.
        return import_module(name)
    if not name.startswith("_") and find_spec(f"audit.{name}") is not None:
        return import_module(f"audit.{name}")
    raise AttributeError(f"module 'audit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
