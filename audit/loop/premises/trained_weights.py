"""Contributions at weights that training may reach: those that fit some records.

At first weights a model knows nothing, so that no record has a short gradient, and a wrong clipping
may be exceeded by short gradients alone. Gaussian noise may release any gradient, also one that
leads to weights which fit the records: what the function does there counts as well.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from audit.loop.premises import canary_runs
from audit.loop.premises.canary_pool import gradient_of
from audit.loop.premises.canary_runs import CanaryRuns
from audit.loop.premises.equal_records import run_equal_records
from audit.loop.premises.experiment import Experiment
from audit.loop.premises.size_of_noise import compare_size
from audit.loop.runs.coupled_runs import Trace
from audit.numerics import FloatArray

# A contribution that exceeds those at the usual weights by this factor is compared with the noise.
_LARGER = 1.05
# Distance to the weights, in units of their norm, by which a forced step moves them, and tries.
_DISTANCE, _TRIES = 1.0, 3
_MAX_POOL = 10
# Share of the coordinates whose noise must have another scale.
_MANY = 0.25


def compare_at_trained_weights(
    experiment: Experiment,
    canaries: CanaryRuns,
    loss: Callable[..., Any] | None,
    delta: float,
) -> None:
    """Tests contributions and noise again, after a forced step that fits records of the data.

    Args:
        experiment: the experiment; at least two of its steps are tested.
        canaries: runs with each canary at the usual weights.
        loss: `loss(model, features, labels)`, summed; None takes the cross-entropy.
        delta: delta of the costs in messages.
    """
    is_testable = experiment.steps > 1 and canaries.comparable is None
    if not is_testable or experiment.accounted is None or not experiment.work_left(0.6):
        return
    forced = _fitting(experiment, loss)
    if forced is None:
        return
    accounted = experiment.accounted
    pool = {id(record): record for record in (*canaries.pair, *_starting(canaries), *canaries.pool)}
    trained = replace(
        experiment,
        pool=tuple(pool.values())[:_MAX_POOL],
        # The notes on the usual weights say the same.
        verdicts=replace(experiment.verdicts.of_later_steps(), notes=[]),
        forced=forced,
        base=forced.from_step(1),
        accounted=replace(accounted, expanded=accounted.expanded[1:] or accounted.expanded),
        first_step=1,
        steps=experiment.steps - 1,
        brief=True,
    )
    runs = canary_runs.run_canaries(trained)
    if len(runs.traces) < 2:
        return
    measured = canary_runs.measure(trained, runs, None, loss)
    larger = measured.contributions.largest
    usual = canaries.contributions.largest[1 : 1 + len(larger)]
    grows = np.any((usual > 0) & (larger[: len(usual)] > _LARGER * usual))
    if grows or _has_other_noise(experiment, trained):
        compare_size(trained, measured, run_equal_records(trained, measured), None, delta)


def _has_other_noise(experiment: Experiment, trained: Experiment) -> bool:
    """Whether the noise of a full batch has another scale in some coordinates than before.

    Two seeds differ by their noise alone, and draw the same normal numbers after any release.
    """
    if experiment.sampled:
        return False
    seeds = [experiment.seed_of(number) for number in (1, 2)]
    changes = []
    for case, skipped in ((experiment, 1), (trained, 0)):
        traces = [case.coupled(experiment.records, seed, digests=False) for seed in seeds]
        if any(case.ended_early(trace) for trace in traces):
            return False
        first, second = (trace.gradients[skipped : skipped + trained.steps] for trace in traces)
        changes.append(np.abs(first - second))
    usual, now = changes
    differs = np.abs(now - usual) > (_LARGER - 1.0) * np.maximum(usual, now)
    return bool(differs.mean() > _MANY)


def _starting(canaries: CanaryRuns) -> list[Any]:
    """Records of the data, from which the search for canaries starts."""
    return [record for record in canaries.pool if record.family == "own"][:2]


def _fitting(experiment: Experiment, loss: Callable[..., Any] | None) -> Trace | None:
    """The reference with another first release, after which the model fits records of the data.

    Returns:
        The run to force; None where no model is known, or no release moves the weights so far, as
        with an optimizer whose steps have a fixed size.
    """
    from audit.loop.attack.white_box import cross_entropy, undisturbed

    run = partial(
        experiment.runs.run,
        experiment.with_canary(experiment.pool[0]),
        experiment.base_seed,
        keep_model=True,
    )
    at_start = run(like=experiment.forced, stop_after=1)
    parameters = [p for p in at_start.parameters if p.requires_grad]
    records = [record for record in experiment.pool if record.family == "own"]
    if at_start.model is None or not parameters or not records:
        return None
    weights = _flat(parameters)
    try:
        with undisturbed(at_start.model):
            gradients = [
                gradient_of(at_start.model, loss or cross_entropy, record, parameters)
                for record in records
            ]
    except Exception:  # of the user's model, which may not accept the records as they are
        return None
    direction = sum(gradients).double().cpu().numpy()
    length = float(np.linalg.norm(direction))
    if len(direction) != sum(experiment.base.sizes) or not 0 < length < np.inf:
        return None
    size = float(np.linalg.norm(experiment.base.steps[0].gradient))
    for _ in range(_TRIES):
        forced = _with_first_release(experiment.forced, direction * (size / length))
        reached = run(like=forced, stop_after=2)
        moved = float(np.linalg.norm(_flat(reached.parameters) - weights))
        distance = moved / max(float(np.linalg.norm(weights)), 1e-30) / _DISTANCE
        if not 0 < distance < np.inf:
            return None
        if 0.5 < distance < 2.0:
            return forced
        size /= distance
    return None


def _with_first_release(forced: Trace, gradient: FloatArray) -> Trace:
    first, *later_steps = forced.steps
    return replace(forced, steps=[replace(first, gradient=gradient), *later_steps])


def _flat(parameters: list[Any]) -> FloatArray:
    trained = [p.detach().double().cpu().numpy().ravel() for p in parameters if p.requires_grad]
    return np.concatenate([np.zeros(0), *trained])
