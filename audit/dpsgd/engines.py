"""Which engine runs a threat model, by name or by what its law allows."""

from audit import checks
from audit.dpsgd import reduced
from audit.dpsgd.base import Engine
from audit.dpsgd.settings import DpSgdSettings
from threat_models import ThreatModel

ENGINES = ("reduced", "batched")


def make_engine(
    name: str,
    threat_model: ThreatModel,
    settings: DpSgdSettings,
    device: str = "cpu",
    precision: str = "float32",
) -> Engine:
    """An engine by name.

    Args:
        name: one of ENGINES.
        threat_model: data, canary and score.
        settings: the base mechanism.
        device: a torch device; the reduced engine needs none.
        precision: "float32" or "float64"; the reduced engine always takes float64.

    Returns:
        The engine.

    Raises:
        ValueError: an unknown name, or an engine that does not apply, with the reason.
    """
    checks.one_of("engine", name, ENGINES)
    if name == "reduced":
        return reduced.ReducedEngine(threat_model, settings)
    # torch takes seconds to import: only where something is trained.
    from audit.dpsgd.batched import BatchedEngine

    return BatchedEngine(threat_model, settings, device, precision)


def choose_engine(threat_model: ThreatModel, settings: DpSgdSettings) -> tuple[str, str]:
    """The engine that "auto" stands for: an exact reduction where there is one.

    Args:
        threat_model: data, canary and score.
        settings: the base mechanism.

    Returns:
        Its name and the reason in one line.
    """
    obstacle = reduced.why_not(threat_model, settings)
    if obstacle is None:
        return "reduced", (
            "the law of the released statistic is known: a sum of Gaussian steps in the first "
            "coordinate, one draw per run"
        )
    return "batched", f"no closed law, because of {obstacle}: every run is trained"
