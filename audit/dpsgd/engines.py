"""Engines by name, and the choice of the fastest exact engine."""

from typing import TYPE_CHECKING

from audit import checks
from audit.dpsgd.base import Engine
from audit.dpsgd.precision import check_precision
from audit.dpsgd.reduced import ReducedEngine, why_not_reduced
from audit.dpsgd.reductions import collapse, project
from audit.dpsgd.settings import MODELS, DpSgdSettings
from audit.errors import InvalidInput
from canaries import DiracCanary
from threat_models import ThreatModel

if TYPE_CHECKING:
    from torch import nn

ENGINES = ("reduced", "collapsed", "projected", "batched", "opacus")


def make_engine(
    name: str,
    threat_model: ThreatModel,
    settings: DpSgdSettings,
    device: str = "cpu",
    precision: str = "float32",
) -> Engine:
    """An engine by name.

    Args:
        name: one of ENGINES. "reduced" samples the released statistic from its distribution;
            "collapsed" and "projected" train an exactly equivalent smaller problem (`reductions`);
            "batched" trains many runs at once; "opacus" trains one run at a time with Opacus and
            is the reference.
        threat_model: data, canary and score.
        settings: the base mechanism.
        device: a torch device; the reduced engine ignores it.
        precision: a name of PRECISIONS. The reduced engine always uses float64, and "opacus" does
            not support "tf32" and "bf16". Equivalent smaller problems round different products.

    Raises:
        InvalidInput: the name is unknown, or the engine does not apply, for the stated reason.

    Example:
        >>> import numpy as np
        >>> from audit.dpsgd import DpSgdSettings, RunBatch
        >>> from canaries import DiracCanary
        >>> from threat_models import FirstCoordinate, etcv
        >>> model = etcv(DiracCanary(), FirstCoordinate(), (1, 8, 8), 10)
        >>> engine = make_engine("reduced", model, DpSgdSettings(20, 5.0, (1.0,), (0.1,)))
        >>> without, seeds = np.array([False, False]), np.arange(2, dtype=np.uint64)
        >>> batch = RunBatch(without, np.zeros(2, np.int64), seeds)
        >>> engine.run(batch).finite.tolist()
        [True, True]
    """
    name = checks.one_of("engine", name, ENGINES)
    formats = check_precision(precision)
    if name == "reduced":
        if settings.model not in MODELS:  # a wrong name is refused, although no model is trained
            _make_model(threat_model, settings, formats.dtype)
        return ReducedEngine(threat_model, settings)
    model = _make_model(threat_model, settings, formats.dtype)
    from audit.dpsgd.batched import BatchedEngine

    if name == "opacus":
        from audit.dpsgd.reference import OpacusEngine

        if formats.significand_bits is not None:
            raise InvalidInput(
                f"precision must be float32 or float64 for engine opacus, got {precision!r}"
            )
        return OpacusEngine(threat_model, settings, model, device)
    if name == "collapsed":
        one_step = collapse(threat_model, settings)
        if isinstance(one_step, str):
            raise InvalidInput(f"engine collapsed does not apply, because of {one_step}")
        settings = one_step
    if name == "projected":
        smaller = project(threat_model, model)
        if isinstance(smaller, str):
            raise InvalidInput(f"engine projected does not apply, because of {smaller}")
        threat_model, model = smaller
    return BatchedEngine(threat_model, settings, model, device, name, formats)


def choose_engine(threat_model: ThreatModel, settings: DpSgdSettings) -> tuple[str, str]:
    """The name of the engine that "auto" selects: an exact reduction if one applies.

    Args:
        threat_model: data, canary and score.
        settings: the base mechanism.

    Returns:
        The engine's name and the reason in one line.

    Example:
        >>> from audit.dpsgd import DpSgdSettings
        >>> from canaries import DiracCanary
        >>> from threat_models import FirstCoordinate, etcv
        >>> model = etcv(DiracCanary(), FirstCoordinate(), (1, 8, 8), 10)
        >>> choose_engine(model, DpSgdSettings(20, 5.0, (1.0,), (0.1,)))[0]
        'reduced'
    """
    obstacle = why_not_reduced(threat_model, settings)
    if obstacle is None:
        return "reduced", (
            "the distribution of the released statistic is known: a sum of Gaussian steps in the "
            "first coordinate, one draw per run"
        )
    if not isinstance(collapse(threat_model, settings), str):
        return "collapsed", (
            "the distribution of the final model is known: its gradients do not depend on the "
            "weights, one draw of all steps per run"
        )
    if threat_model.training_set is None and not isinstance(threat_model.canary, DiracCanary):
        model = _make_model(threat_model, settings)
        if not isinstance(project(threat_model, model), str):
            return "projected", (
                "only the first layer's weights in the direction of the canary affect the outcome: "
                "an equivalent model with one input is trained"
            )
    return "batched", f"no distribution in closed form, because of {obstacle}: every run is trained"


def _make_model(
    threat_model: ThreatModel, settings: DpSgdSettings, dtype: str = "float32"
) -> "nn.Module":
    # Importing torch takes seconds, so only engines that train import it.
    import torch

    from audit.dpsgd.models import make_model

    shape, classes = threat_model.record_shape, threat_model.classes
    return make_model(settings.model, settings.model_seed, shape, classes, getattr(torch, dtype))
