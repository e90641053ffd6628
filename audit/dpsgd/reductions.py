"""Smaller training problems with exactly the same outcomes, for an empty training set.

Each function returns a problem for the batched engine, or the reason why it does not apply.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from audit.dpsgd.settings import DpSgdSettings
from canaries import DiracCanary, InputCanary
from threat_models import CanaryLoss, ThreatModel, etcv

if TYPE_CHECKING:
    from torch import nn


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

    from audit.dpsgd.layers import parse_network, sequence
    from audit.dpsgd.layers.linear import Linear

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
