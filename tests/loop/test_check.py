"""Audits of training functions: what is watched, what is claimed, what is found.

Every attack has fixed seeds. It accuses a correct training with probability at most 9e-5.
"""

import contextlib
import copy
import functools
import json
import math
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import broken_trainings as trainings
import numpy as np
import opacus
import pytest
import torch
from clusters import local_backend
from opacus import GradSampleModule, PrivacyEngine
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialGradClip
from torch import nn
from torch.nn import functional
from toy import records

import audit
from audit import accounting, lower_bounds
from audit.dpsgd import DpSgdSettings, RunBatch, make_engine, noise, streams
from audit.dpsgd.models import make_model
from audit.errors import InvalidInput
from audit.integrations.opacus import tuning_epsilon
from audit.loop import (
    CheckResult,
    PrivacyLeak,
    TrainingSet,
    Watch,
    check,
    check_one_run,
    checking,
    command,
)
from audit.loop.attack.attack import Attack, discriminant
from audit.loop.result import ATTACK_ERROR
from audit.loop.runs import readings
from audit.loop.runs.readings import model_and_numbers
from audit.loop.runs.training_runs import AuditTask, Run, run_once
from audit.loop.runs.work import CpuLimit
from audit.repetitions import Fixed
from audit.user_code import run_seed
from canaries import DiracCanary, InputCanary, crafted
from threat_models import CanaryLoss, FirstCoordinate, etcv, ntcv

torch.set_num_threads(1)
# The game alone: test_differential.py has the test of the premises, which comes before it.
attack = functools.partial(check, premises=False, jobs=1)
# Without a gradient by the input, torch warns of what Opacus's hooks see: harmless.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.usefixtures("little_work"),
]
STEPS, NOISE, CLIP, RATE = 5, 1.3, 0.7, 0.05


@pytest.mark.parametrize("premises", [False, True])
def test_warnings_of_the_function_are_not_shown_for_every_run(
    premises: bool, recwarn: pytest.WarningsRecorder
) -> None:
    def noisy_sum(records: Any, candidate: Any, seed: int, watch: Any) -> float:
        warnings.warn("not secure", UserWarning, stacklevel=1)
        watch.claim(1.0)
        return records.features.sum() + np.random.default_rng(seed).normal()

    check(noisy_sum, ([[0.0]] * 5, [0] * 5), trials=4, premises=premises, jobs=1)
    assert not [each for each in recwarn if "not secure" in str(each.message)]


def by_opacus(
    batches: Any,
    seed: Any,
    model: Any,
    watch: Any,
    optimizer_class: Any = DPOptimizer,
    **options: Any,
) -> Any:
    """The engine `opacus`, written by a user: the same batches and the same noise."""
    model = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
    optimizer = optimizer_class(
        torch.optim.SGD(model.parameters(), lr=RATE),
        noise_multiplier=NOISE,
        expected_batch_size=None,
        loss_reduction="sum",
        generator=streams.generators(np.array([seed], np.uint64), 0, "cpu")[0],
        **{"max_grad_norm": CLIP, **options},
    )
    accountant = RDPAccountant()
    rate = 1.0 if batches[0][2] is None else batches[0][2]
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=rate))
    watch(optimizer, model)
    for x, y, _ in batches:
        optimizer.zero_grad()
        if len(y):
            functional.cross_entropy(model(x), y, reduction="sum").backward()
        else:
            for p in model.parameters():
                p.grad_sample = p.new_zeros(0, *p.shape)
        optimizer.step()
    return model


def threats() -> Any:
    training_set, canary = records(9), records(1, seed=9).canary(0)
    return {
        "NTCV input": (training_set, canary, ntcv(training_set, None, canary, CanaryLoss(canary))),
        "ETCV input": (None, canary, etcv(canary, CanaryLoss(canary), (1, 8, 8), 10)),
        "NTCV dirac": (
            training_set,
            DiracCanary(),
            ntcv(training_set, None, DiracCanary(), FirstCoordinate()),
        ),
    }


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize("sampling_rate", [1.0, 0.4])
@pytest.mark.parametrize("name", threats())
def test_watched_opacus_has_the_proxies_of_the_opacus_engine(
    name: str, sampling_rate: float, included: bool
) -> None:
    training_set, canary, threat = threats()[name]
    if name == "NTCV dirac" and sampling_rate < 1:
        pytest.skip("the watch draws the batches of a Dirac canary itself")
    settings = DpSgdSettings(STEPS, NOISE, CLIP, RATE, sampling_rate=sampling_rate, model="mlp")
    batch = RunBatch(np.array([included]), np.zeros(1, int), np.array([77], np.uint64))
    expected = make_engine("opacus", threat, settings).run(batch)

    x = np.zeros((0, 1, 8, 8), np.float32) if training_set is None else training_set.features
    y = np.zeros(0, np.int64) if training_set is None else training_set.labels
    one = None
    if isinstance(canary, InputCanary):
        one = TrainingSet(canary.features[None], np.array([canary.label]))
        x, y = np.concatenate([x, one.features]), np.concatenate([y, one.labels])
    features, labels = torch.from_numpy(x), torch.from_numpy(y)
    width = 1 if training_set is None else len(training_set) + 1
    drawn = noise.poisson_steps(batch.seeds, sampling_rate, STEPS, torch.device("cpu"), width, 1)
    batches = []
    for everybody in drawn:
        taken = everybody[0, : len(y)] | (sampling_rate == 1.0)
        if one is not None and not included:
            taken[-1] = False
        batches.append((features[taken], labels[taken], sampling_rate))
    watch = Watch(one, np.array([included]))
    model = make_model("mlp", 0, (1, 8, 8), 10, torch.float32)
    trained = by_opacus(batches, 77, model, watch)
    watch.close()
    trace = watch.trace()
    np.testing.assert_allclose(trace.lambda_a, expected.lambda_a, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(trace.lambda_c, expected.lambda_c, rtol=1e-5, atol=1e-7)
    assert abs(expected.lambda_a[0]) > 1e-3
    if one is not None:
        # The score of a canary is the same number too, and so is lambda_b.
        score = readings.record_scores(
            trained, one, lambda net, x, y: functional.cross_entropy(net(x), y, reduction="sum")
        )
        ours, theirs = (
            threat.lambda_b(*pair)
            for pair in ((trace.lambda_a, score), (expected.lambda_a, expected.scores))
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def train_twice(watched: Any, make: Any) -> Any:
    """The same steps with a watch and without; the watch, and the weights of both."""
    training_set, canary = records(8), records(1, seed=9).canary(0)
    x, y = torch.from_numpy(training_set.features), torch.from_numpy(training_set.labels)
    watch = Watch(TrainingSet(canary.features[None], np.array([canary.label])), np.array([False]))
    torch.manual_seed(5)
    weights = []
    for look in (watch, None):
        torch.manual_seed(5)
        step, optimizer, model = make()
        if look is not None:
            look(optimizer)
        for _ in range(3):
            step(x, y)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    watch.close()
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)
    return watch.trace()


def private(clipping: Any = "flat", grad_sample_mode: Any = "hooks", **options: Any) -> Any:
    """A maker of one training step by `PrivacyEngine`, with dropout in the model."""

    def make() -> Any:
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 10)
        )
        data = torch.utils.data.TensorDataset(torch.zeros(8, 1))
        criterion = nn.CrossEntropyLoss()
        made = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=RATE),
            data_loader=torch.utils.data.DataLoader(data, batch_size=8),
            noise_multiplier=NOISE,
            max_grad_norm=[CLIP] * 4 if clipping == "per_layer" else CLIP,
            clipping=clipping,
            grad_sample_mode=grad_sample_mode,
            poisson_sampling=False,
            criterion=criterion,
            **options,
        )
        model, optimizer = made[0], made[1]
        criterion = made[2] if grad_sample_mode == "ghost" else criterion

        def step(x: Any, y: Any) -> None:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()

        return step, optimizer, model

    return make


@pytest.mark.filterwarnings("ignore")  # Opacus's own: no secure generator, hooks without input
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"grad_sample_mode": "ghost"},
        {"grad_sample_mode": "functorch"},
        {"clipping": "per_layer"},
        {
            "clipping": "adaptive",
            "target_unclipped_quantile": 0.5,
            "clipbound_learning_rate": 0.2,
            "max_clipbound": 2.0,
            "min_clipbound": 0.1,
            "unclipped_num_std": 2.0,
        },
    ],
    ids=["hooks", "ghost", "functorch", "per layer", "adaptive"],
)
def test_a_watch_leaves_the_training_as_it_is(options: dict[str, Any]) -> None:
    trace = train_twice(True, private(**options))
    assert trace.steps == 3
    assert np.isfinite(trace.lambda_a).all()
    assert abs(trace.lambda_a[0]) > 1e-3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_the_proxy_is_the_mean_product_whatever_the_clipping(mode: str) -> None:
    # In one step by hand: z clipped as the optimizer does it, p as it is released.
    for clipping in ("flat", "per_layer") if mode == "hooks" else ("flat",):
        training_set, canary = records(8), records(1, seed=9).canary(0)
        x, y = torch.from_numpy(training_set.features), torch.from_numpy(training_set.labels)
        one = torch.from_numpy(canary.features[None]), torch.tensor([canary.label])
        torch.manual_seed(5)
        step, optimizer, model = private(clipping, mode)()
        model.eval()
        bare = list(model._module.parameters())
        model.disable_hooks()
        z = torch.autograd.grad(functional.cross_entropy(model(one[0]), one[1]), bare)
        model.enable_hooks()
        model.train()
        watch = Watch(
            TrainingSet(canary.features[None], np.array([canary.label])), np.array([False])
        )
        watch(optimizer)
        step(x, y)
        watch.close()
        if clipping == "flat":
            scale = min(1.0, CLIP / float(torch.stack([g.norm() for g in z]).norm()))
            z, unit = [g * scale for g in z], CLIP**2
        else:
            z, unit = [g * min(1.0, CLIP / float(g.norm())) for g in z], 4 * CLIP**2
        released = [8 * p.grad for p in bare]
        expected = sum(float((g * p).sum()) for g, p in zip(z, released, strict=True)) / unit
        assert watch.trace().lambda_a[0] == pytest.approx(expected, rel=1e-4)


# --- controls ---


def checked(control: Any, **options: Any) -> Any:
    return attack(
        control.train,
        trainings.data(control.size, control.rare),
        **{"canary": control.canary, "trials": control.games, **options},
    )


# Seen by one kind of statistic alone: learned, the score by counting, and by rank sums.
ALONE = (
    "noise on weights, none on biases",
    "exact loss in the log",
    "coordinates clipped instead of the norm",
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ALONE else pytest.mark.slow)
        for name in trainings.BROKEN
    ],
)
def test_a_broken_training_is_caught(name: str) -> None:
    found = checked(trainings.BROKEN[name])
    assert found.leaks, str(found)
    assert not found
    assert found.exit_code == 1
    with pytest.raises(PrivacyLeak, match=r"claims .*; leak proven: an attack shows at least"):
        found.raise_if_leaking()


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", trainings.CORRECT)
def test_a_correct_training_is_not_accused(name: str) -> None:
    found = checked(trainings.CORRECT[name])
    assert not found.leaks, str(found)
    assert found.exit_code == 0
    assert found.raise_if_leaking() is found
    assert found.epsilon < found.claim


@pytest.mark.slow
@pytest.mark.parametrize(
    ("confidence", "audits", "allowed"),
    [(0.5, 40, 27), (0.95, 30, 5), (0.95, 1000, 66)],
)
def test_bounds_of_correct_trainings_exceed_the_claim_no_more_often_than_said(
    confidence: float, audits: int, allowed: int
) -> None:
    # The tightest training there is: one Gaussian of the canary's own coordinate, mu = 1. It
    # also returns other numbers, so that a statistic is learned too. More than are
    # allowed have probability under 1 % if each has 1 - confidence. Few audits see an error that
    # is four times too large where half of all may err: 5 % and 20 % differ little in 30.
    mu = 1.0
    exact = accounting.GaussianMechanism(mu).epsilon(1e-5)

    def gaussian(records: Any, candidate: Any, seed: Any, watch: Any) -> Any:
        watch(accountant)
        noise = np.random.default_rng(seed).normal(size=3)
        return noise + mu * len(records) * np.array([0.6, 0.8, 0.0])

    accountant = RDPAccountant()
    accountant.history = [(1.0, 1.0, 1)]
    records = np.zeros((1, 1)), np.zeros(1, int)
    made = [
        attack(
            *(gaussian, records, (np.zeros(1), 0)),
            claim=exact,
            trials=100,
            confidence=confidence,
            seed=seed,
        )
        for seed in range(audits)
    ]
    assert not any(found.leaks for found in made)  # with probability at least 0.9
    assert sum(found.epsilon > exact for found in made) <= allowed
    assert np.mean([found.epsilon for found in made]) > 0.3  # and they do find something


def runs_of(without: Any, with_record: Any, history: Any = None) -> list[Run]:
    """Trials without and with the record, by their scores."""
    none = np.zeros(0)
    pairs = zip(without, with_record, strict=True)
    scores = [np.array([each]) for pair in pairs for each in pair]
    return [Run(each, none, none, 0.0, none, None, history) for each in scores]


def game(claim: float) -> Any:
    """A game of 100 trials."""
    return checking._Game(
        claim=claim,
        delta=1e-5,
        confidence=0.95,
        trials=100,
        distribution=Fixed(1),
        candidates=(None,),
        seed=0,
        jobs=1,
        attack=True,
        premises=False,
        relation=None,
        cpu=CpuLimit(),
    )


def verdicts(sample: Any, claim: float, audits: int, history: Any = None) -> list[CheckResult]:
    """Verdicts on 100 trials each, given a sampler of the scores of one side."""
    random = np.random.default_rng(0)
    return [
        checking._verdict(
            runs_of(*(sample(random, side) for side in (0, 1)), history),
            game(claim),
            ATTACK_ERROR,
            None,
        )
        for _ in range(audits)
    ]


def gaussian_scores(mu: float) -> Any:
    return lambda random, side: random.normal(size=50) + mu * side


def responses(odds: float) -> Any:
    """Randomised response with these odds of a true answer: epsilon is their logarithm."""
    share = odds / (1 + odds)
    return lambda random, side: (random.random(50) < (share if side else 1 - share)).astype(float)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("audits", "lucky"), [(40, 0), pytest.param(3000, 15, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", ["response", "Gaussian by rank sums"])
def test_an_exact_claim_is_not_refuted_by_a_bound_that_may_err(
    name: str, audits: int, lucky: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One of 3,000 correct functions is accused with probability 0.24, and three with 0.003. Bounds
    # at 95 % exceed the claim by chance.
    monkeypatch.setattr(checking, "detectable_noise", lambda *_: None)
    if name == "response":
        sample, leaking, claim, history = responses(2.0), responses(100.0), math.log(2), None
    else:
        sample, leaking, history = gaussian_scores(1.0), gaussian_scores(6.0), ((1.0, 1.0, 1),)
        claim = accounting.GaussianMechanism(1.0).epsilon(1e-5)
    made = verdicts(sample, claim, audits, history)
    assert sum(found.leaks for found in made) <= 2
    assert lucky <= sum(found.exceeds for found in made) <= 0.1 * audits
    assert all(found.exit_code == 0 for found in made if found.exceeds)
    refuted = verdicts(leaking, claim, 20, history)
    assert sum(found.exit_code == 1 for found in refuted) >= 15


@pytest.mark.slow
def test_more_trials_decide_whether_a_bound_above_the_claim_is_chance() -> None:
    played = []

    def answer(claim: float) -> Any:
        def train(records: Any, candidate: Any, seed: int, watch: Any) -> float:
            watch.claim(claim)
            played.append(seed)
            kept = np.random.default_rng(seed).random() < 2 / 3
            return float(kept == (len(records.labels) == 12))

        return train

    # Exact is log 2 = 0.693. 1,000 trials show about 0.5, and prove less.
    found = attack(answer(0.45), RECORDS, (np.zeros(3), 0))
    assert len(played) == len(set(played)) == found.trials > 1000
    assert found.exit_code == 1
    assert 0.45 < found.proven < math.log(2)
    played.clear()
    found = attack(answer(0.45), RECORDS, (np.zeros(3), 0), trials=1000)
    assert found.exceeds
    assert len(played) == 1000
    assert found.raise_if_broken() is found
    assert "no leak proven" in found.words


@pytest.mark.slow
@pytest.mark.parametrize("name", trainings.UNSEEN)
def test_what_the_page_says_cannot_be_seen_is_not(name: str) -> None:
    found = checked(trainings.UNSEEN[name], trials=100)
    assert not found.leaks, "the page says otherwise"


# --- what a function may be ---


RECORDS = np.eye(4, dtype=np.float32).repeat(3, 0)[:, :3], np.arange(12) % 3


def test_check_is_at_the_top_and_imports_nothing_before() -> None:
    assert audit.check is check
    assert audit.check_one_run is check_one_run
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        audit.chekc  # noqa: B018


@pytest.mark.parametrize("kind", ["logistic", "linear", "module", "binary", "own loss"])
def test_whatever_is_trained_is_read(kind: str) -> None:
    # Without noise the learned statistic detects the canary, whatever the model.
    from sklearn.linear_model import LinearRegression, LogisticRegression

    features, labels = RECORDS
    labels = {"linear": labels.astype(float), "binary": labels % 2}.get(kind, labels)

    def train(records: Any, candidate: Any, seed: Any, watch: Any) -> Any:
        if kind in ("logistic", "linear"):
            model = LogisticRegression() if kind == "logistic" else LinearRegression()
            return model.fit(records.features, records.labels)
        model = nn.Linear(3, 1 if kind == "binary" else 3)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        x, y = torch.from_numpy(records.features), torch.from_numpy(records.labels)
        out = model(x)
        if kind == "binary":
            functional.binary_cross_entropy_with_logits(out[:, 0], y.float()).backward()
        else:
            functional.cross_entropy(out, y).backward()
        torch.optim.SGD(model.parameters(), lr=0.5).step()
        return model

    def loss(model: Any, x: Any, y: Any) -> Any:
        return functional.cross_entropy(model(x), y, reduction="sum")

    options = {"loss": loss} if kind == "own loss" else {}
    canary = np.full(3, 2.0, np.float32), 1
    found = attack(train, (features, labels), canary, claim=0.5, trials=40, **options)
    assert found.bounds["score"].epsilon > 1.0
    assert found.leaks


def gaussian(mu: Any, seed: Any, records: Any) -> Any:
    return np.random.default_rng(seed).normal() + mu * len(records)


def test_the_best_of_k_is_audited_and_its_cost_is_claimed() -> None:
    accountant = RDPAccountant()
    accountant.history = [(1.0, 1.0, 1)]

    def train(records: Any, candidate: Any, seed: Any, watch: Any) -> Any:
        watch(accountant)
        tried.add(candidate)
        return gaussian(candidate, seed, records)

    tried: set[Any] = set()
    empty = np.zeros((0, 1)), np.zeros(0, int)
    options = {"repetitions": "tnb:0,0.3", "candidates": (0.9, 1.0), "trials": 200}
    found = attack(train, empty, (np.zeros(1), 0), **options)
    assert tried == {0.9, 1.0}
    expected = tuning_epsilon(accountant, "tnb:0,0.3", 1e-5)
    assert found.claim == pytest.approx(expected)
    assert not found.leaks
    assert list(found.bounds) == ["score", "learned"]  # a tuned output is no Gaussian


def test_validation_records_choose_where_they_are_given() -> None:
    def train(records: Any, candidate: Any, seed: Any, watch: Any) -> Any:
        model = nn.Linear(3, 3)
        with torch.no_grad():
            model.weight.copy_(candidate * torch.eye(3))
            model.bias.zero_()
        return model

    records = np.zeros((2, 3), np.float32), np.zeros(2, int)
    canary = np.array([0.0, 1.0, 0.0], np.float32), 0  # of another class than it looks
    options = {"repetitions": "fixed:5", "candidates": (1.0, -1.0), "trials": 20, "claim": 1.0}
    honest = np.eye(3, dtype=np.float32), np.arange(3)
    from audit.loop.attack.attack import Attack

    for validation, best in ((None, -1.0), (TrainingSet(*honest), 1.0)):
        task = AuditTask(
            train, TrainingSet(*records), TrainingSet(canary[0][None], [0]), validation, None, 1e-5
        )
        runs = Attack(task, Fixed(5), options["candidates"], 0).play_all(20, 1)
        # Five draws of two candidates miss the best with chance 1/32.
        margins = [run.score[0] for run in runs]
        of_best = np.log(np.exp(0) / (np.exp(best) + 1)).item()
        assert np.isclose(margins, of_best).mean() > 0.7


def test_results_do_not_depend_on_jobs_and_the_generators_are_left_alone() -> None:
    def train(records: Any, candidate: Any, seed: Any, watch: Any) -> Any:
        return float(torch.randn(1)) + np.random.rand() + len(records)  # noqa: NPY002

    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    options = {"claim": 1.0, "trials": 120}
    alone = attack(train, RECORDS, (np.zeros(3), 0), **options)
    assert torch.equal(torch.random.get_rng_state(), before)
    together = check(train, RECORDS, (np.zeros(3), 0), premises=False, jobs=2, **options)
    assert together == alone


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["loky", "dask", "ray"])
def test_an_audit_survives_a_worker_that_dies_or_says_so(backend: str, tmp_path: Path) -> None:
    alone, deaths = os.getpid(), tmp_path / "deaths"

    def train(records: Any, candidate: Any, seed: Any, watch: Any) -> Any:
        if os.getpid() != alone and (backend != "dask" or not deaths.exists()):
            deaths.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return float(np.random.default_rng(seed).normal()) + records.features.sum()

    options = {"claim": 1.0, "trials": 120, "premises": False}
    refused: Any = contextlib.nullcontext()
    if backend != "dask":
        error = "TerminatedWorkerError" if backend == "loky" else "Actor"
        refused = pytest.raises(InvalidInput, match=f"jobs must be fewer.*{error}")
    with local_backend(backend, tmp_path), refused:
        together = check(train, RECORDS, (np.ones(3), 0), jobs=2, **options)
        assert together == check(train, RECORDS, (np.ones(3), 0), jobs=1, **options)
    assert deaths.exists()


@pytest.mark.parametrize(("work", "trials"), [(0.0, 1000), (30.0, 1000), (80.0, 374), (1e6, 100)])
def test_the_number_of_trials_follows_from_the_work_of_a_run(work: float, trials: int) -> None:
    task = AuditTask(lambda *_: 0.0, TrainingSet(*RECORDS), None, None, None, 1e-5)
    assert Attack(task, Fixed(1), (None,), 0).affordable_trials(work) == trials


def test_fewer_trials_for_long_runs_are_stated() -> None:
    bound = lower_bounds.Scan()(np.zeros(10), np.zeros(10))
    found = CheckResult(
        *(1.0, 1e-5, 0.95, 0.0, 0.0, "score", {"score": bound}, 3.2, 200), planned=1000
    )
    assert "(not 1000, because each of them has many steps)" in found.words


@pytest.mark.parametrize("during", ["premises", "attack"])
def test_a_check_that_could_not_finish_has_no_verdict(during: str) -> None:
    def train(records: Any, candidate: Any, seed: Any, watch: Any) -> Any:
        watch.claim(1.0)
        if during == "premises":
            return float(records.features.sum())  # which would be found
        return float(np.random.default_rng(seed).normal() + 100 * len(records))

    options: dict[str, Any] = {"premises": during == "premises", "cpu_seconds": 1e-9}
    found = check(train, RECORDS, jobs=1, **options)
    assert found.exit_code == 2
    assert not found.broken
    assert found.words.startswith("could not finish within 1e-09 CPU seconds")
    with pytest.raises(InvalidInput, match="could not finish"):
        found.raise_if_broken()


def test_a_run_that_uses_up_the_cpu_time_is_interrupted() -> None:
    def endless(records: Any, candidate: Any, seed: Any, watch: Any) -> Any:
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))

    start = time.process_time()
    assert check(endless, RECORDS, claim=1.0, cpu_seconds=4.0).exit_code == 2
    assert time.process_time() - start < 4.0


@pytest.mark.thorough
def test_trials_of_a_watched_loop_start_from_the_same_weights() -> None:
    starts = []

    def train(records: Any, candidate: Any, seed: Any, watch: Any) -> Any:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        accountant = RDPAccountant()
        watch(optimizer, model, accountant)
        starts.append(model.weight.detach().clone())
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
        accountant.step(noise_multiplier=1.0, sample_rate=1.0)
        return model

    check(train, RECORDS, trials=10, jobs=1)
    assert all(torch.equal(start, starts[-1]) for start in starts[-10:])
    starts.clear()
    check(train, RECORDS, trials=10, jobs=1, premises=False)
    assert not torch.equal(starts[-1], starts[-2])


def test_seeds_of_single_runs_are_distinct() -> None:
    seeds = {run_seed(4, trial) for trial in range(100_000)}
    assert len(seeds) == 100_000
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert run_seed(4, 7, 1) != run_seed(4, 7, 2)


def test_the_same_numbers_in_every_run_reveal_nothing() -> None:
    found = check(lambda *_: [1, 2], RECORDS, claim=1.0, trials=80)
    assert not found.broken
    assert found.epsilon == 0.0


def test_the_discriminant_finds_the_one_number_without_noise() -> None:
    random = np.random.default_rng(0)
    table = random.normal(size=(200, 30))
    table[:, 7] = np.arange(200) % 2 * 1e-6  # tiny, but exact
    table[:, 9] = 5.0
    weights = discriminant(table[0::2], table[1::2])
    fresh = random.normal(size=(200, 30))
    fresh[:, 7], fresh[:, 9] = table[:, 7], 5.0
    judged = fresh @ weights
    assert judged[1::2].min() > judged[0::2].max()
    assert discriminant(np.ones((5, 3)), np.ones((5, 3))) is None


def test_the_crafted_canary_is_where_nobody_is() -> None:
    features, labels = trainings.data(20)
    canary = crafted(features, labels)
    assert np.flatnonzero(canary.features).tolist() == [6]
    assert np.linalg.norm(canary.features) == pytest.approx(
        2 * np.linalg.norm(features, axis=1).max()
    )
    assert canary.label == np.argmin(np.bincount(labels))
    dense = np.random.default_rng(0).normal(size=(30, 5)) @ np.diag([1, 1, 1e-3, 1, 1])
    assert abs(crafted(dense, np.arange(30) % 2).features[2]) > 0.99 * np.linalg.norm(
        crafted(dense, np.arange(30) % 2).features
    )
    with pytest.raises(ValueError, match="canary must be crafted"):
        crafted(features, labels + 0.5)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"train": 3}, "train must be a function"),
        ({"train": lambda records: 0.0}, r"a function of \(records, candidate, seed, watch\), got"),
        ({"loss": lambda model: 0.0}, r"loss must be a function of \(model, features, labels\)"),
        ({"records": [1, 2, 3]}, "records must be features"),
        ({"records": (np.zeros((3, 2)), np.zeros(2))}, "with one label each"),
        ({"canary": "dirac"}, "canary must be an InputCanary"),
        ({"canary": (np.ones(7), 0)}, "canary must have features of shape"),
        ({"records": (np.ma.masked_less(np.ones((9, 3)), 0), np.ones(9))}, "got a masked array"),
        ({"delta": 0.0}, "delta must be"),
        ({"confidence": 1.0}, "confidence must be"),
        ({"trials": 1}, "trials must be"),
        ({"claim": -1.0}, "claim must be"),
        ({"candidates": ()}, "candidates must be a sequence"),
        ({"candidates": None}, "candidates must be a sequence"),
        ({"train": lambda *_: None}, "train must return"),
        ({"train": lambda *_: [1, 2], "trials": 40}, "trials must be at least 80"),
        ({"train": lambda *_: object()}, "train must return"),
        ({"train": lambda r, c, s, watch: watch(3)}, "watch must be given an optimizer"),
    ],
)
def test_what_is_wrong_is_one_line(change: dict[str, Any], error: str) -> None:
    arguments = {"train": lambda *_: 1.0, "records": RECORDS, "canary": (np.zeros(3), 0), **change}
    arguments = {"trials": 4, **arguments}
    with pytest.raises(ValueError, match=error) as raised:
        attack(**arguments)
    assert "\n" not in str(raised.value)


def test_steps_that_count_the_records_are_refused() -> None:
    def train(records: Any, candidate: Any, seed: Any, watch: Any) -> Any:
        accountant = RDPAccountant()
        accountant.history = [(1.0, 1.0 / len(records), 2 * len(records))]
        watch(accountant)
        return 0.0

    with pytest.raises(ValueError, match="must not depend on the number of records"):
        attack(train, RECORDS, (np.zeros(3), 0), trials=16)


def test_a_random_number_of_steps_is_no_dependence_on_the_records() -> None:
    def train(records: Any, candidate: Any, seed: Any, watch: Any) -> Any:
        accountant = RDPAccountant()
        accountant.history = [(1.0, 1.0, int(np.random.default_rng(seed).integers(10, 20)))]
        watch(accountant)
        return float(np.random.default_rng(seed + 1).normal())

    for trials in (2, 16):
        assert attack(train, RECORDS, (np.zeros(3), 0), trials=trials).exit_code == 0


def test_nothing_claimed_is_said_and_raises() -> None:
    found = attack(lambda r, c, s, w: float(s), RECORDS, (np.zeros(3), 0), trials=10)
    assert found.claim is None
    assert found.words.startswith("nothing to compare with: the function neither calls watch")
    assert "; claims nothing; an attack shows at least 0 with" in found.words
    assert found.exit_code == 2
    with pytest.raises(InvalidInput, match="nothing to compare with"):
        found.raise_if_broken()
    with pytest.raises(ValueError, match="claim must be given"):
        found.raise_if_leaking()


def test_the_largest_of_all_claims_counts() -> None:
    def train(records: Any, candidate: Any, seed: Any, watch: Any) -> Any:
        watch.claim(1.0 + seed % 2)
        return 0.0

    assert attack(train, RECORDS, (np.zeros(3), 0), trials=10).claim == 2.0


def test_batches_that_are_sampled_are_judged_by_lambda_c_too() -> None:
    for rate in (0.5, 1.0):
        control = trainings.Control(trainings.with_opacus(sampling_rate=rate), games=4)
        bounds = set(checked(control).bounds)
        assert {"score", "lambda_a"} <= bounds
        assert ("lambda_c" in bounds) == (rate < 1.0)


@pytest.mark.slow
def test_a_dirac_canary_shows_the_whole_budget_and_needs_opacus() -> None:
    # mu = 2: lambda_a is N(b, 1 / 2^2), as the reduced game says; 300 games show at least 1.
    train = trainings.with_opacus(noise_multiplier=1.0, clip=0.01)
    control = trainings.Control(train, 300, size=1)
    found = checked(control, canary=DiracCanary())
    assert found.bounds["lambda_a"].epsilon > 1.0
    assert not found.leaks
    with pytest.raises(ValueError, match="Opacus's for a Dirac canary"):
        attack(trainings.Loop(), trainings.data(), DiracCanary(), trials=4)


@pytest.mark.parametrize("rate", [1.0, 0.4])
@pytest.mark.parametrize("given", ["dirac", "record"])
def test_proxies_follow_a_threshold_that_a_schedule_changes(given: str, rate: float) -> None:
    """A hand computation in units of the threshold of each step: C, C/2, C/4, ..."""
    dirac = given == "dirac"
    one = TrainingSet(np.ones((1, 3), np.float32), np.zeros(1, int))
    watch = Watch(None if dirac else one, np.array([True]), seed=3)
    torch.manual_seed(1)
    model = GradSampleModule(nn.Linear(3, 2), loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=None,
        loss_reduction="sum",
    )
    accountant = RDPAccountant()
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=rate))
    schedule = ExponentialGradClip(optimizer, gamma=0.5)
    watch(optimizer, model)
    x, y = torch.ones(1, 3), torch.zeros(1, dtype=torch.long)
    products = []
    for step in range(8):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y, reduction="sum").backward()
        own = torch.cat([p.grad_sample.flatten() for p in model.parameters()])
        if dirac:
            for p in model.parameters():
                p.grad_sample.zero_()  # of the record; the canary is inserted in the sum
        optimizer.step()
        threshold = CLIP * 0.5**step
        released = torch.cat([p.grad.flatten() for p in model.parameters()])
        unit = own * min(1.0, threshold / float(own.norm())) / threshold
        unit = torch.eye(len(own))[0] if dirac else unit
        products.append((float(unit @ released) / threshold, float(unit @ unit)))
        schedule.step()
    watch.close()
    trace = watch.trace()
    inner, squares = np.array(products).T
    assert trace.lambda_a[0] == pytest.approx(inner.mean(), rel=1e-4)
    ratio = np.log(1 - rate + rate * np.exp((2 * inner - squares) / (2 * NOISE**2))).sum()
    expected = 0.5 + ratio * NOISE**2 / 8
    assert trace.lambda_c[0] == pytest.approx(expected if rate < 1 else inner.mean(), rel=1e-3)
    if dirac and rate == 1:
        assert abs(inner.mean() - 1) < 4 * NOISE / math.sqrt(8)  # the canary is in every step


# --- one run ---


def test_one_run_of_many_canaries_finds_missing_noise_and_no_other() -> None:
    for noise_multiplier, leaks in ((0.0, True), (10.0, False)):
        train = trainings.with_opacus(noise_multiplier=noise_multiplier, recorded=10.0, clip=0.01)
        empty = np.zeros((0, 7), np.float32), np.zeros(0, int)
        found = check_one_run(train, empty, canaries=50, dirac=True)
        assert found.leaks == leaks, str(found)
        crafted_ones = check_one_run(train, trainings.data(20), canaries=40)
        assert {"lambda_a, independent-canaries", "lambda_a, gaussian-canaries"} <= set(
            found.bounds
        )
        assert "lambda_a, one-run" in crafted_ones.bounds
        assert not any("independent" in name for name in crafted_ones.bounds)
        assert "50 canaries can prove at most" in found.words or leaks


def test_one_run_draws_tokens_within_the_vocabulary() -> None:
    tokens = np.random.default_rng(2).integers(3, 9, (20, 4))

    def untrained(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        watch.claim(1.0)
        assert records.features.dtype.kind == "i"
        assert records.features.min() >= 3
        assert records.features.max() <= 8
        return nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(8, 2))

    found = check_one_run(untrained, (tokens, np.arange(20) % 2), canaries=30)
    assert found.unit == "canaries"
    assert not found.leaks


def test_canaries_that_do_not_interact_are_independent_trials() -> None:
    # 50 coordinates of one run, mu = 2: Kolmogorov-Smirnov test, false alarm 1e-3.
    from scipy import stats

    train = trainings.with_opacus(noise_multiplier=1.0, recorded=1.0, clip=0.01)
    question = AuditTask(
        train, TrainingSet(np.zeros((0, 7), np.float32), np.zeros(0, int)), None, None, None, 1e-5
    )
    coins = np.arange(50) % 2 == 1
    run = run_once(question, coins, None, 11)
    assert stats.kstest(2 * (run.lambda_a - coins), "norm").pvalue > 1e-3
    with pytest.raises(ValueError, match="canaries must be a number with dirac"):
        check_one_run(train, question.records, (np.zeros((3, 7)), [0, 1, 2]), dirac=True)


# --- the command ---


def answer(folder: Path, options: list[str]) -> Any:
    """What the command's own process hands over, computed in this process."""
    command._answer(str(folder / "answer.json"), options)
    return json.loads((folder / "answer.json").read_text())


OF_DATA = ["--records", "broken_trainings.data", "--jobs", "1", "--trials", "40"]


@pytest.mark.slow
def test_the_command_says_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    from audit import run

    assert run.main(["--train", "broken_trainings.FORGOTTEN", *OF_DATA]) == 1
    # Forty trials prove less than the claim.
    out = capsys.readouterr().out
    assert "broken premise: noise" in out
    assert "no leak proven by an attack (40 trials)" in out


@pytest.mark.slow
def test_the_command_says_that_nothing_was_found(tmp_path: Path) -> None:
    found = answer(tmp_path, ["--train", "broken_trainings.RIGHT", *OF_DATA])
    assert found["exit_code"] == 0
    assert "no broken premise found" in found["words"]


def test_the_command_takes_a_loss(tmp_path: Path) -> None:
    options = ["--train", f"{__name__}.on_prepared_records", "--records", f"{__name__}.WHOLE"]
    options += ["--no-premises", "--trials", "6", "--jobs", "1", "--loss"]
    assert "score" in answer(tmp_path, ["--all", *options, f"{__name__}.loss_of_prepared"])["words"]
    found = answer(tmp_path, [*options, "math.nothing"])
    assert "loss must be a name that can be imported" in found["error"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--train", "broken_trainings.nothing"], "train must be a name"),
        (["--train", "train"], "can be imported, got 'train': write module.name"),
        (["--train", "train:loop"], "can be imported, got 'train:loop': write module.name"),
        (["--train", "broken_trainings.RIGHT", "--threat", "XTCV"], "threat must be one of"),
    ],
)
def test_the_command_names_what_is_wrong(tmp_path: Path, options: list[str], error: str) -> None:
    found = answer(tmp_path, options)
    assert error in found["error"]
    assert found["exit_code"] == 2


def _exits(records: Any, candidate: Any, seed: Any, watch: Any) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("train", "settings", "words"),
    [
        (_exits, {}, "train must return a value, but it raised SystemExit: 3"),
        (lambda *_: 1 / 0, {}, "train must return a value, but it raised ZeroDivisionError"),
        (lambda *_: math.nan, {}, "train must release finite numbers, got none in 6 trials"),
        (lambda *_: 0.0, {"max_runs": 5}, "max_runs must be at least the 6 runs"),
        (lambda *_: 0.0, {"repetitions": "fixed:1000000"}, "max_runs must be at least the 6e"),
        (lambda *_: 0.0, {"jobs": 10**6}, r"jobs must be a whole number in \[1, 1024\]"),
    ],
)
def test_a_function_that_fails_or_would_take_for_ever_is_one_line(
    train: Callable[..., Any], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        attack(train, ([[0.0]], [0]), ([9.0], 0), trials=6, **settings)


def test_a_verdict_says_how_many_trials_would_do() -> None:
    bound = lower_bounds.Scan()(np.zeros(10), np.zeros(10))
    few = CheckResult(
        *(9.0, 1e-5, 0.95, 0.0, 0.0, "score", {"score": bound}, 1.2, 20), needed=37_326
    )
    assert "20 trials can prove at most 1.2," in few.words
    assert few.words.endswith("so no leak could have been proven: 37,326 trials could prove one")
    result = attack(lambda *_: [0.0], ([[0.0]], [0]), ([1.0], 0), trials=20, claim=5.0)
    half = result.needed // 2
    least = lower_bounds.max_detectable_epsilon(half, half, 1e-5, 1 - ATTACK_ERROR)
    assert least >= 5.0 > result.ceiling


@pytest.mark.parametrize("part", ["features", "labels"])
def test_complex_records_are_refused(part: str) -> None:
    given = {"features": np.zeros((3, 2)), "labels": np.zeros(3)}
    given[part] = given[part] + 1j
    with pytest.raises(
        ValueError, match=f"^{part} of records must be real numbers, got complex128"
    ):
        TrainingSet(**given)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"spectrum": x}, lambda x: [x, x]])
def test_complex_results_are_refused(wrap: Any) -> None:
    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        return wrap(1j * records.features.ravel())  # the real part reveals nothing

    with pytest.raises(ValueError, match="train must return real numbers, got complex ones"):
        audit.check(train, ([[0.0], [1.0]], [0, 1]), claim=1.0, trials=100, jobs=1)


def test_of_many_released_numbers_a_part_is_kept() -> None:
    # 1,000 trials of 300,000 numbers would need several GB.
    numbers = np.arange(300_000.0)
    records, canary = (TrainingSet(np.ones((1, 1)), np.zeros(1)) for _ in range(2))
    task = AuditTask(lambda *_: numbers, records, canary, None, None, 1e-5)
    found = run_once(task, np.array([False]), None, 0).details
    assert len(found) == 50_000
    assert np.array_equal(found, numbers[::6])


def test_a_dictionary_with_a_model_and_numbers_is_attacked() -> None:
    module = torch.nn.Linear(2, 2)
    model, numbers = model_and_numbers({"model": module, "losses": [1.0, 2.0], "name": "run"})
    assert model is module
    assert numbers.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="got set"):
        model_and_numbers({"a": {1.0}})

    def leaky(records: Any, candidate: Any, seed: Any, watch: Any) -> Any:
        watch.claim(0.1)
        return {"model": torch.nn.Linear(1, 2), "exact": float(np.sum(records.features))}

    found = audit.check(leaky, ([[0.0]], [0]), ([9.0], 0), premises=False, trials=100)
    assert found.exit_code == 1


def on_prepared_records(
    records: Any,
    candidate: Any,
    seed: int,
    watch: Any,
    shows_model: bool = True,
    rate: float = 1.0,
) -> Any:
    """Records are whole numbers, which the function scales before the model sees them."""
    x = torch.as_tensor(records.features).float() / 16
    y = torch.as_tensor(records.labels)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accountant = RDPAccountant()
    watch(optimizer, accountant, *([model] if shows_model else []))
    for _ in range(3):
        logits = functional.linear(x, model.weight, model.bias).detach()
        each = logits.softmax(1) - functional.one_hot(y, 2)
        if rate < 1:
            each = each * (torch.rand(len(y)) < rate)[:, None]
        sums = {"weight": each[:, :, None] * x[:, None], "bias": each}
        norms = sum(each.flatten(1).square().sum(1) for each in sums.values()).sqrt()
        for name, p in model.named_parameters():
            clipped = torch.tensordot((1 / norms.clamp(min=1e-9)).clamp(max=1), sums[name], 1)
            p.grad = clipped + 2 * torch.randn_like(p)
        optimizer.step()
        accountant.step(noise_multiplier=2.0, sample_rate=rate)
    return model if shows_model else model.weight


WHOLE = np.random.default_rng(0).integers(0, 17, (20, 3)).astype(np.uint8), np.arange(20) % 2


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize("shows_model", [True, False])
def test_a_model_that_does_not_accept_the_records_as_they_are_is_tested(shows_model: bool) -> None:
    loop = functools.partial(on_prepared_records, shows_model=shows_model)
    result = check(loop, WHOLE, jobs=1, trials=100)
    assert result.exit_code == 0, result
    assert "residual" in result.bounds
    assert "lambda_a" not in result.bounds
    reason = "the model does not accept the records" if shows_model else "watch was not given"
    assert f"some statistics were not computed: {reason}" in str(result)


@pytest.mark.thorough
def test_no_attack_without_any_statistic() -> None:
    result = check(functools.partial(on_prepared_records, rate=0.5), WHOLE, jobs=1)
    assert result.exit_code == 0, result
    assert result.attack_skipped.startswith("no attack was made: the model does not accept")
    task = AuditTask(
        on_prepared_records,
        TrainingSet(*WHOLE),
        TrainingSet(*WHOLE).first_records(1),
        None,
        None,
        1e-5,
    )
    assert len(Attack(task, Fixed(1), (None,), 0).play_all(1000, 1)) == 2
    with pytest.raises(InvalidInput, match="the model does not accept the records"):
        attack(on_prepared_records, WHOLE, (WHOLE[0][0], 0), trials=4)


def loss_of_prepared(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(x.float() / 16), y, reduction="sum")


def test_a_loss_prepares_the_records() -> None:
    result = attack(on_prepared_records, WHOLE, trials=40, loss=loss_of_prepared)
    assert {"lambda_a", "score"} <= set(result.bounds)
    assert not result.unread


def test_numbers_of_tensors_with_a_gradient_and_of_lower_precision() -> None:
    weight = nn.Parameter(torch.tensor([0.5], dtype=torch.bfloat16))
    assert model_and_numbers({"weight": weight, "steps": torch.tensor(3)})[1].tolist() == [0.5, 3.0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_noise_of_make_private_with_epsilon_is_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the runs of the tutorial's loop take too long for the test."""
    counted = mock.Mock(wraps=opacus.privacy_engine.get_noise_multiplier)
    monkeypatch.setattr(opacus.privacy_engine, "get_noise_multiplier", counted)

    def train(data: Any, candidate: Any, seed: int, watch: Any) -> Any:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        tensors = torch.from_numpy(data.features), torch.from_numpy(data.labels)
        engine = PrivacyEngine(accountant="rdp")
        model, optimizer, loader = engine.make_private_with_epsilon(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(
                torch.utils.data.TensorDataset(*tensors), batch_size=5
            ),
            target_epsilon=4.0,
            target_delta=1e-5,
            epochs=1,
            max_grad_norm=1.0,
        )
        watch(optimizer, model, engine)
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        return model

    result = check(train, records(20), relation="zero-out", jobs=1)
    assert result.exit_code == 0, result
    assert result.premises is not None
    assert counted.call_count < 10 < result.premises.runs
    assert opacus.privacy_engine.get_noise_multiplier is counted
