"""Smaller problems with exactly the same outcomes, for an empty training set.

Each function gives the reason why it does not apply, or a problem for the batched engine.
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


def collapse(threat_model: ThreatModel, settings: DpSgdSettings) -> DpSgdSettings | str:
    """All steps as one, for the Dirac canary and any score of the final model.

    The gradients do not depend on the weights, so w_0 - w_N = lr sum_i p_i, one draw of
    N(N C b e_0, N C^2 sigma^2 I): a single step of threshold N C and noise sigma / sqrt(N).

    Returns:
        The settings of that step, or why there is none.
    """
    if threat_model.training_set is not None:
        return "a training set, whose gradients depend on the weights"
    if not isinstance(threat_model.canary, DiracCanary):
        return "an input canary, whose gradient depends on the weights"
    if max(settings.momentum) > 0 or settings.sampling_rate < 1:
        return "momentum or a sampling rate below 1, which make the steps unlike"
    return replace(
        settings,
        steps=1,
        max_grad_norm=tuple(settings.steps * clip for clip in settings.max_grad_norm),
        noise_multiplier=settings.noise_multiplier / math.sqrt(settings.steps),
    )


def project(threat_model: ThreatModel, model: "nn.Module") -> "tuple[ThreatModel, nn.Module] | str":
    """One input instead of all, for a canary that meets a Linear layer first.

    What the first layer's weights do orthogonally to the canary x~ = (x, 1) never reaches an
    output, a gradient or a clipping factor, and the noise is isotropic: the layer acts as one of a
    single input |x~| without bias.

    Returns:
        The smaller threat model and model, or why there is none.
    """
    import torch
    from torch import nn

    from audit.dpsgd.layers import parse_network, sequence
    from audit.dpsgd.layers.linear import Linear

    if threat_model.training_set is not None:
        return "a training set, whose records differ in direction"
    canary = threat_model.canary
    if not isinstance(canary, InputCanary):
        return "a Dirac canary, which is no record"
    if not isinstance(threat_model.score, CanaryLoss):
        return f"the score {threat_model.score.name}, which looks beyond the canary"
    try:
        network = parse_network(model)
    except NotImplementedError as reason:
        return f"a model that does not begin with a Linear layer: {reason}"
    if not isinstance(network.first, Linear):
        return "a model that does not begin with a Linear layer"
    first, *after = sequence(model)[len(network.before) :]
    assert isinstance(first, nn.Linear)
    with torch.no_grad():
        x = torch.from_numpy(np.array(canary.features)).to(first.weight)[None, None]
        for layer in network.before:
            x, _ = layer.forward([], x)
        x = x[0]
        if x.dim() != 2:
            return "a Linear layer at several positions of a record"
        size = (x.square().sum() + float(first.bias is not None)).sqrt()
        narrow = nn.Linear(1, first.out_features, bias=False).to(first.weight)
        narrow.weight.copy_((first(x) / size.clamp(min=1e-30)).T)
    record = InputCanary(size.double().cpu().numpy()[None], canary.label, canary.name)
    smaller = etcv(record, CanaryLoss(record), (1,), threat_model.classes)
    return smaller, nn.Sequential(narrow, *after)
