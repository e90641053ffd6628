"""The checks of each run, and what ends a study."""

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from known import Unprintable
from light_runs import noisy
from study_helpers import (
    DP_SGD,
    Loader,
    Recorded,
    UniformWithReplacementSampler,
    study,
)

from audit import Study, accounting, tuning
from audit.accounting import GaussianMechanism
from audit.errors import InvalidInput

# The bounds of a certificate are tested elsewhere.
pytestmark = pytest.mark.usefixtures("region_alone", "little_work")


@pytest.mark.parametrize(
    ("history", "loader", "words"),
    [
        ([(1.0, 0.1, 101)], None, "steps must be at most 100 in a run, got 101"),
        ([(1.0, 0.1, 60), (1.1, 0.1, 41)], None, "steps must be at most 100"),
        ([(0.99, 0.1, 100)], None, "noise_multiplier must be at least 1.0 in a run, got 0.99"),
        ([(0.0, 0.1, 100)], None, "noise_multiplier must be in"),
        ([(1.0, 0.11, 100)], None, "sampling_rate must be at most 0.1 in a run, got 0.11"),
        ([(1.0, 0.1, 100)], Loader(object()), "data_loader must sample batches by Poisson"),
        (
            [(1.0, 0.1, 100)],
            Loader(UniformWithReplacementSampler(0.2)),
            "data_loader must sample at a rate of at most 0.1, got 0.2",
        ),
        ([], None, "accountant must have recorded a step"),
    ],
)
def test_a_run_with_other_settings_than_the_accounted_ones_ends_the_study(
    history: list[tuple[float, float, int]], loader: Any | None, words: str
) -> None:
    def train(trial: Any) -> Any:
        trial.check(Recorded(*history), loader)
        return noisy(trial)

    with pytest.raises(tuning.StudyAborted, match=words):
        study(base=DP_SGD).run(train)


def test_a_run_that_costs_less_than_accounted_is_allowed() -> None:
    def train(trial: Any) -> Any:
        loader = Loader(UniformWithReplacementSampler(trial.sampling_rate))
        trial.check(Recorded((2.0, 0.05, 10)), loader)
        trial.check(Recorded((trial.noise_multiplier, trial.sampling_rate, 90)), loader)
        return noisy(trial)

    checked = study(base=DP_SGD)
    assert checked.run(train).candidate is not None
    # The settings are below the study's constants, so their dependence on n was not checked.
    assert checked._played.checked == {
        "steps", "noise_multiplier", "sampling_rate", "poisson_sampling",
    }  # fmt: skip


class Optimizer:
    """The attributes of Opacus's optimizer that `Trial.check` reads."""

    def __init__(self, expected_batch_size: Any, loss_reduction: Any = "mean") -> None:
        self.expected_batch_size = expected_batch_size
        self.loss_reduction = loss_reduction


class CountedLoader(Loader):
    """A loader of given numbers of records and batches."""

    def __init__(self, rate: Any, records: Any = 1200) -> None:
        super().__init__(UniformWithReplacementSampler(rate))
        self.dataset, self.batches = range(records), int(1 / rate)

    def __len__(self) -> Any:
        return self.batches


def checked_constants(
    history: Any = (1.0, 0.1, 100), rate: Any = 0.1, optimizer: Any = None, **settings: Any
) -> Any:
    """The checked conditions and the certificate of a study of DP-SGD without any training."""

    def train(trial: Any) -> Any:
        trial.check(Recorded(history), CountedLoader(rate), optimizer)
        return noisy(trial)

    settings = {"base": accounting.DpSgd(1.0, 100, 0.1)} | settings
    one = study(**settings)
    one.run(train)
    return one._played.checked & {"divisor", "constants"}, one.certificate


@pytest.mark.slow
def test_constants_of_the_study_are_checked_where_the_number_of_records_is_private() -> None:
    found, certificate = checked_constants(optimizer=Optimizer(120), expected_batch_size=120)
    assert found == {"divisor", "constants"}
    grounds = {one.name: one.ground.value for one in certificate.conditions}
    assert grounds["divisor"] == grounds["constants"] == "checked"
    assert grounds["relation add-remove"] == "on trust"
    (divisor,) = [one.words for one in certificate.conditions if one.name == "divisor"]
    assert divisor.endswith("divided by 120")
    assert "differentially private for add-remove neighbours, if the" in certificate.statement
    assert 'Divisor of the noisy sum: "120, a constant"' in " ".join(str(certificate).split())
    assert "normalizer" not in certificate.not_stated
    own = certificate.declare(normalizer="120, the nominal batch size")
    assert ("Divisor of the noisy sum", '"120, the nominal batch size"') in own.stated.in_words()
    # A sum has no divisor; each of two workers divides by half of it.
    assert "divisor" in checked_constants(optimizer=Optimizer(7, "sum"))[0]
    halves = Optimizer(60)
    halves.world_size = 2
    assert "divisor" in checked_constants(optimizer=halves, expected_batch_size=120)[0]


@pytest.mark.slow
def test_unchecked_conditions_are_assumed() -> None:
    found, certificate = checked_constants(expected_batch_size=120)
    assert found == {"constants"}
    (divided,) = [one for one in certificate.conditions if one.name == "divisor"]
    assert divided.ground.value == "on trust"
    # 100 is not int(1200 * 0.1), and the study does not know this constant.
    assert checked_constants(optimizer=Optimizer(100))[0] == {"constants"}
    # Fewer steps, more noise or a smaller rate than the study's may depend on n.
    for history in ((1.0, 0.1, 90), (1.5, 0.1, 100), (1.0, 0.09, 100)):
        assert checked_constants(history, expected_batch_size=120)[0] == set()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"optimizer": Optimizer(120)},
            r"expected_batch_size must be a constant of the study with add-remove neighbours, got "
            r"int\(n \* rate\), where n is the number of records; give tuning\.Study",
        ),
        (
            {"optimizer": Optimizer(120), "expected_batch_size": 128},
            r"expected_batch_size must be the study's 128\.0 with .* got int\(n \* rate\)",
        ),
        (
            {"optimizer": Optimizer(90), "expected_batch_size": 128},
            r"must be the study's 128\.0 .* got another value; .* or state neighbours='zero-out'",
        ),
        ({"optimizer": object()}, "optimizer must be Opacus's, got an object without"),
        (
            {"history": (1.0, 1 / 11, 100), "rate": 1 / 11},
            r"sampling_rate must be the study's 0\.1 with add-remove neighbours, got "
            r"1/len\(data_loader\), which depends on the number of records",
        ),
    ],
)
def test_constants_that_depend_on_the_number_of_records_end_the_study(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(tuning.StudyAborted, match=words) as ended:
        checked_constants(**settings)
    assert "120" not in str(ended.value)  # the message does not contain that number either
    # If it is public, all of them are allowed and not mentioned.
    public = accounting.DpSgd(1.0, 100, 0.1, "zero-out")
    found, certificate = checked_constants(**settings, base=public)
    assert found == set()
    about = [one.words for one in certificate.conditions if "number of records" in one.words]
    assert about == ["the number of records is public"]
    assert certificate.setting.neighbours == (
        "both data sets have the same, public number of records, and the gradients of one record "
        "are zero in one of them"
    )
    assert "differentially private for zero-out neighbours, if the" in certificate.statement


@pytest.mark.slow
def test_the_number_of_records_is_public_by_default() -> None:
    assert study(base=None, epsilon=2.0, steps=5).base.neighbours == "zero-out"
    told = study(base=None, epsilon=2.0, steps=5, neighbours="add-remove", protocol="fixed:1")
    assert told.base.neighbours == "add-remove"
    with pytest.raises(ValueError, match=r"expected_batch_size must be in \(0, inf\), got 0"):
        study(expected_batch_size=0)


def test_the_optimizer_of_another_run_is_refused() -> None:
    counted = Recorded((1.0, 0.1, 100))
    optimizer = Optimizer(120)
    optimizer.step_hook = lambda optim: counted.history
    with pytest.raises(
        tuning.StudyAborted, match="optimizer must be the one whose steps the accountant"
    ):
        checked_constants(optimizer=optimizer, expected_batch_size=120)


@pytest.mark.parametrize("place", ["optimizer", "sampler", "split batches"])
def test_a_generator_with_the_seed_of_the_global_one_is_refused(place: str) -> None:
    # Torch's generators with equal seeds draw equal numbers, so that the noise follows from the
    # initial weights. On a processor, torch uses 32 bits of a seed.
    torch = pytest.importorskip("torch")

    seed_of_torch = torch.initial_seed

    def draws(seed: int) -> Any:
        return torch.rand(4, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(draws(5), draws(2**40 + 5))

    def train(trial: Any, seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        optimizer, loader = Optimizer(120), CountedLoader(0.1)
        (optimizer if place == "optimizer" else loader.batch_sampler).generator = generator
        if place == "split batches":
            loader.batch_sampler = BatchSplittingSampler(loader.batch_sampler)
        trial.check(Recorded((1.0, 0.1, 100)), loader, optimizer)
        return noisy(trial)

    checked = {"base": accounting.DpSgd(1.0, 100, 0.1, "zero-out")}
    for other in (0, 2**40):
        with pytest.raises(tuning.StudyAborted, match="must not have the seed of torch's global"):
            study(**checked).run(lambda trial, other=other: train(trial, seed_of_torch() ^ other))

    def seeding(trial: Any) -> Any:
        torch.manual_seed(trial.seed)
        return train(trial, trial.seed)

    with pytest.raises(tuning.StudyAborted, match="must not have the seed of torch's global"):
        study(**checked).run(seeding)
    for seed in (lambda trial: int(torch.randint(2**62, ())), lambda trial: trial.seed):
        best = study(**checked).run(lambda trial, seed=seed: train(trial, seed(trial)))
        assert best.candidate is not None


def test_a_cryptographic_generator_has_no_seed_to_compare() -> None:
    # As `torchcsprng`, which Opacus uses with secure_mode=True.
    torch = pytest.importorskip("torch")

    class Generator:
        device = torch.device("cpu")

        def initial_seed(self) -> int:
            raise RuntimeError("not implemented")

    def train(trial: Any) -> Any:
        optimizer = Optimizer(120)
        optimizer.generator = Generator()
        trial.check(Recorded((1.0, 0.1, 100)), CountedLoader(0.1), optimizer)
        return noisy(trial)

    assert study(base=accounting.DpSgd(1.0, 100, 0.1, "zero-out")).run(train).candidate is not None


class BatchSplittingSampler:
    """A sampler with the name of that of Opacus's BatchMemoryManager."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler


def test_large_batches_may_be_split() -> None:
    def train(trial: Any) -> Any:
        split = Loader(BatchSplittingSampler(UniformWithReplacementSampler(0.1)))
        trial.check(Recorded((1.0, 0.1, 100)), split)
        return noisy(trial)

    checked = study(base=DP_SGD)
    checked.run(train)
    assert "poisson_sampling" in checked._played.checked


def test_steps_after_the_check_count() -> None:
    def train(trial: Any) -> Any:
        accountant = Recorded((1.0, 0.1, 60))
        trial.check(accountant)
        accountant.history += ((1.0, 0.1, 60),)
        return noisy(trial)

    with pytest.raises(tuning.StudyAborted, match="steps must be at most 100 in a run, got 120"):
        study(base=DP_SGD).run(train)


def test_a_failed_check_ends_the_study_even_if_its_error_is_caught() -> None:
    def train(trial: Any) -> Any:
        with contextlib.suppress(ValueError):
            trial.check(Recorded((0.5, 0.1, 100)))
        return noisy(trial)

    with pytest.raises(tuning.StudyAborted, match=r"noise_multiplier must be at least 1\.0"):
        study(base=DP_SGD).run(train)


def test_two_accountants_of_one_run_add_up() -> None:
    def train(trial: Any) -> Any:
        for _ in range(2):
            trial.check(Recorded((1.0, 0.1, 60)))
        return noisy(trial)

    with pytest.raises(tuning.StudyAborted, match="steps must be at most 100 in a run, got 120"):
        study(base=DP_SGD).run(train)


@pytest.mark.parametrize("space", [np.array(0.5), np.ma.masked, "x" * 10**6, 1j])
def test_an_invalid_space_is_one_short_line(space: Any) -> None:
    with pytest.raises(InvalidInput, match="space must be a mapping from names to values, or") as e:
        tuning.Study(space, "fixed:2", base="gaussian:0.1", folder=None)
    assert len(str(e.value)) < 500


def test_values_without_a_text_are_refused() -> None:
    for space in ({"x": [Unprintable()]}, [{"x": Unprintable()}]):
        with pytest.raises(InvalidInput, match="have a repr, got one that raises RuntimeError"):
            tuning.Study(space, "fixed:2", base="gaussian:0.1", folder=None)
    with pytest.raises(InvalidInput, match="must be a protocol, or one as text, got a Unprintable"):
        tuning.Study({"x": [1]}, Unprintable(), base="gaussian:0.1", folder=None)


def test_invalid_scores_lose_and_invalid_jobs_are_refused() -> None:
    assert tuning.Outcome(10**400).lost
    study = tuning.Study({"lr": [1]}, "fixed:2", base="gaussian:0.1", folder=None)
    for jobs in (0, -2, 1e308, 10**30, "x"):
        with pytest.raises(InvalidInput, match="jobs must be a whole number in"):
            study.run(lambda trial: tuning.Outcome(1.0), jobs=jobs)


def _augment(image: Any) -> Any:
    return image


@dataclass(frozen=True)
class _Choice:
    names: Any


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda x: x, "name it by a text"),
        (_augment, "name it by a text"),
        (partial(_augment, 1), "name it by a text"),
        (object(), "name it by a text"),
        ({"a", "b"}, "use a tuple or a sorted list"),
        (frozenset({"a", "b"}), "use a tuple or a sorted list"),
        ([1, ({"a", "b"}, 2)], "use a tuple or a sorted list"),
        ({"layers": {"a", "b"}}, "use a tuple or a sorted list"),
        ({"f": lambda x: x}, "name it by a text"),
        (_Choice({"a", "b"}), "use a tuple or a sorted list"),
        (np.zeros(2000), "use a list"),
    ],
)
@pytest.mark.parametrize("is_candidate", [False, True])
def test_values_that_differ_between_processes_are_refused_at_construction(
    value: Any, words: str, is_candidate: bool
) -> None:
    space = [{"x": 1}, {"x": value}] if is_candidate else {"x": [1, value]}
    for folder in (None, "", "elsewhere"):
        with pytest.raises(ValueError, match=rf"space\['?(x|candidate)'?\] must hold .*{words}"):
            Study(space, "fixed:2", base=GaussianMechanism(0.5), folder=folder)


@pytest.mark.parametrize(
    "value",
    [1.5, "at 0x1", ["at 0x1"], None, True, (1, 2), {"a": [1]}, _Choice((1,)), np.zeros(3), int],
)
def test_values_that_are_the_same_in_every_process_are_allowed(value: Any) -> None:
    study = Study({"x": [1, value]}, "fixed:2", base=GaussianMechanism(0.5), folder=None)
    assert len(study.settings_hash) == 64
