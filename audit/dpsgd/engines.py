"""Engines by name, the choice of the fastest exact engine, and equivalent smaller problems."""

from typing import TYPE_CHECKING

from audit import checks
from audit.dpsgd.base import Engine
from audit.dpsgd.reduced import ReducedEngine, why_not_reduced
from audit.dpsgd.settings import MODELS, DpSgdSettings, check_precision
from audit.errors import InvalidInput
from canaries import DiracCanary
from threat_models import ThreatModel

if TYPE_CHECKING:
    from torch import nn
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from canaries import InputCanary
from threat_models import CanaryLoss, etcv

if TYPE_CHECKING:
    from torch import nn

ENGINES = ("reduced", "collapsed", "projected", "batched", "opacus")

# Avoids a division by zero for a canary of zeros without bias, whose logits are 0.
_MIN_NORM = 1e-30


def collapse(threat_model: ThreatModel, settings: DpSgdSettings) -> DpSgdSettings | str:
    """Settings of one step that is equivalent to all steps, for the Dirac canary.

    The gradients do not depend on the weights, so w_0 - w_N = lr sum_i p_i, one draw of N(N C b
    e_0, N C^2 sigma^2 I). One step with clipping norm N C and noise multiplier sigma / sqrt(N) has
    the same distribution. The score may be any function of the final model.
    """
    if threat_model.training_set is not None:
        return "a training set, whose gradients depend on the weights"
    if not isinstance(threat_model.canary, DiracCanary):
        return "an input canary, whose gradient depends on the weights"
    if max(settings.momentum) > 0 or settings.sampling_rate < 1:
        return "momentum or a sampling rate below 1, which make the steps differ"
    return replace(
        settings,
        steps=1,
        max_grad_norm=tuple(settings.steps * clip for clip in settings.max_grad_norm),
        noise_multiplier=settings.noise_multiplier / math.sqrt(settings.steps),
    )


def project(threat_model: ThreatModel, model: "nn.Module") -> "tuple[ThreatModel, nn.Module] | str":
    """An equivalent model with one input, for an input canary and a first layer that is Linear.

    The component of the first layer's weights orthogonal to the canary x~ = (x, 1) affects no
    output, gradient or clipping factor, and the noise is isotropic. The layer is therefore
    equivalent to one without bias that has the single input |x~|.
    """
    import torch
    from torch import nn

    from audit.dpsgd.layers import Linear, parse_network, sequence

    if threat_model.training_set is not None:
        return "a training set, whose records differ in direction"
    canary = threat_model.canary
    if not isinstance(canary, InputCanary):
        return "a Dirac canary, which has no features"
    if not isinstance(threat_model.score, CanaryLoss):
        return f"the score {threat_model.score.name}, which uses more than the canary's loss"
    try:
        network = parse_network(model)
    except NotImplementedError as reason:
        return f"a model that does not begin with a Linear layer: {reason}"
    if not isinstance(network.first_layer, Linear):
        return "a model that does not begin with a Linear layer"
    first_layer, *after = sequence(model)[len(network.before) :]
    assert isinstance(first_layer, nn.Linear)
    with torch.no_grad():
        x = torch.from_numpy(np.array(canary.features)).to(first_layer.weight)[None, None]
        for layer in network.before:
            x, _ = layer.forward([], x)
        x = x[0]
        if x.dim() != 2:
            return "a Linear layer at several positions of a record"
        size = (x.square().sum() + float(first_layer.bias is not None)).sqrt()
        narrow = nn.Linear(1, first_layer.out_features, bias=False).to(first_layer.weight)
        narrow.weight.copy_((first_layer(x) / size.clamp(min=_MIN_NORM)).T)
    record = InputCanary(size.double().cpu().numpy()[None], canary.label, canary.name)
    smaller = etcv(record, CanaryLoss(record), (1,), threat_model.classes)
    return smaller, nn.Sequential(narrow, *after)


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
            "collapsed" and "projected" train an exactly equivalent smaller problem;
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
