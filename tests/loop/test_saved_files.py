"""The contents of files that a script saves: what is recorded, and what of it is reported."""

import itertools
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from audit.loop import TrainingSet
from audit.loop.premises.check_premises import check_premises
from audit.loop.premises.forced_releases import RunToEnd, compare_saved
from audit.loop.premises.verdicts import Verdicts
from audit.loop.runs.coupled_runs import Trace
from audit.loop.runs.saved_files import CreatedFiles, SavedFile, SavedFiles, Shapes
from benchmarks.training_loops.loops import Loop, dense


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> tuple[list[SavedFile], nn.Module]:
    """The files that are saved within a test, and the trained module."""
    files: list[SavedFile] = []
    module = nn.Linear(3, 2)
    recorder = SavedFiles(files.append, lambda: [Shapes.of(module)], CreatedFiles())
    for place, name, function in recorder.patches():
        monkeypatch.setattr(place, name, function)
    return files, module


def test_objects_are_read_as_they_are_saved(saved: Any, tmp_path: Path) -> None:
    files, module = saved
    losses = [torch.tensor(0.5)]
    torch.save({"model": module.state_dict(), "loss": losses}, tmp_path / "model.pt")
    losses[0] += 1
    torch.save(losses, tmp_path / "losses.pt")
    with (tmp_path / "model.pkl").open("wb") as file:
        pickle.dump({"w": module.weight.detach().numpy(), "b": np.zeros(2)}, file)
    np.savez(tmp_path / "model.npz", np.zeros((2, 3)), bias=np.zeros(2), mean=np.float64(7.0))
    np.save(tmp_path / "mean.npy", np.arange(3.0))
    assert [file.name.split(" (")[0] for file in files] == [
        *("model.pt", "losses.pt", "model.pkl", "model.npz", "mean.npy")
    ]
    assert [file.holds_weights for file in files] == [True, False, True, True, False]
    assert (float(files[0].numbers["loss[0]"]), float(files[1].numbers["[0]"])) == (0.5, 1.5)
    assert "(torch.save, test_saved_files.py:" in files[0].name
    assert 7.0 in [number.item() for number in files[3].numbers.values() if number.ndim == 0]


def test_merged_adapters_are_weights(saved: Any, tmp_path: Path) -> None:
    files, module = saved
    module.requires_grad_(False)
    module.adapter = nn.Linear(3, 1, bias=False)
    torch.save({"merged": torch.ones(2, 3), "bias": torch.ones(2)}, tmp_path / "merged.pt")
    torch.save({"adapter": torch.ones(1, 3)}, tmp_path / "adapter.pt")
    torch.save({"losses": torch.ones(2), "rates": torch.ones(3)}, tmp_path / "losses.pt")
    module.weight.requires_grad_(True)  # the frozen bias alone is no sign of weights
    torch.save({"losses": torch.ones(2)}, tmp_path / "losses.pt")
    assert [file.holds_weights for file in files] == [True, True, False, False]


def test_an_object_that_cannot_be_read_is_saved_all_the_same(saved: Any, tmp_path: Path) -> None:
    files, module = saved
    torch.save([torch.zeros(3, device="meta")], tmp_path / "meta.pt")
    assert torch.load(tmp_path / "meta.pt")[0].is_meta
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    unread, weights = files
    assert (bool(unread.error), dict(unread.numbers), weights.error) == (True, {}, "")
    verdicts = Verdicts()
    run = RunToEnd(Trace(saved=files), lambda: Trace(saved=files))
    compare_saved(verdicts, run, run.trace, [run])
    assert not verdicts.findings
    assert [note.split(": ")[0] for note in verdicts.notes] == [
        "not compared, because it could not be read"
    ]


def test_a_pickled_module_keeps_gradients_of_records(saved: Any, tmp_path: Path) -> None:
    files, module = saved
    module.weight.grad_sample = torch.ones(5, 2, 3)
    torch.save({"model": module}, tmp_path / "model.pt")
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    assert files[0].numbers["model.weight.grad_sample"].shape == (5, 2, 3)
    assert not any("grad_sample" in name for name in files[1].numbers)
    # This is what the file holds.
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)["model"]
    assert torch.equal(loaded.weight.grad_sample, torch.ones(5, 2, 3))


def test_created_files_are_removed_and_others_stay(saved: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    torch.save({}, tmp_path / "mine.pt")
    created = CreatedFiles()
    recorder = SavedFiles(lambda _: None, lambda: None, created)
    save = next(new for place, name, new in recorder.patches() if (place, name) == (torch, "save"))
    created.observe()
    save({}, tmp_path / "new.pt")  # compiled code opens it
    save({}, tmp_path / "mine.pt")
    (tmp_path / "mine.txt").write_text("mine too")
    (tmp_path / "folder" / "below").mkdir(parents=True)
    (tmp_path / "folder" / "state.json").write_text("{}")
    (tmp_path / "folder" / "part").write_text("")
    (tmp_path / "folder" / "part").rename(tmp_path / "whole")
    created.remove()
    (tmp_path / "later.txt").write_text("later")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["later.txt", "mine.pt", "mine.txt"]


def test_nothing_is_removed_without_an_observation(tmp_path: Path) -> None:
    created = CreatedFiles()  # as for files that no overlay covers
    recorder = SavedFiles(lambda _: None, lambda: None, created)
    save = next(new for place, name, new in recorder.patches() if (place, name) == (torch, "save"))
    save({}, tmp_path / "mine.pt")
    created.remove()
    assert (tmp_path / "mine.pt").exists()


def trace(*files: tuple[bool, dict[str, Any]]) -> Trace:
    return Trace(
        saved=[
            SavedFile(f"{number}.pt", {k: np.asarray(v) for k, v in numbers.items()}, weights)
            for number, (weights, numbers) in enumerate(files)
        ]
    )


def verdicts_of(
    usual: list[Trace], other_seed: Trace, neighbour: list[Trace], shifted: bool = False
) -> SimpleNamespace:
    """The verdicts on runs of a reference and of a neighbour; the last one is repeated."""

    def run_to_end(runs: list[Trace], shifted: bool = False) -> RunToEnd:
        further = itertools.chain(runs[1:], itertools.repeat(runs[-1]))
        return RunToEnd(runs[0], lambda: next(further), shifted)

    verdicts = Verdicts()
    compare_saved(verdicts, run_to_end(usual), other_seed, [run_to_end(neighbour, shifted)])
    return SimpleNamespace(
        kinds=[finding.kind for finding in verdicts.findings],
        text=" ".join([*(finding.message for finding in verdicts.findings), *verdicts.notes]),
    )


def test_what_is_reported() -> None:
    def run(mean: float, loss: float, time: float) -> Trace:
        return trace((True, {"w": 1.0, "mean": mean, "time": time}), (False, {"loss": loss}))

    usual = [run(2.0, 3.0, 0.0), run(2.0, 3.0, 1.0)]
    other = trace((True, {"w": 4.0, "mean": 2.0, "time": 0.5}), (False, {"loss": 3.0}))
    same = verdicts_of(usual, other, [run(2.0, 3.0, 0.7)])
    assert (same.kinds, same.text) == ([], "")  # only the time differs, as it always does
    found = verdicts_of(usual, other, [run(2.5, 3.0, 0.7)])
    assert found.kinds == ["saved"]
    assert "0.pt holds the weights and `mean`, which depends" in found.text
    # Without the weights, it is a note.
    noted = verdicts_of(usual, other, [run(2.0, 3.5, 0.7)])
    assert noted.kinds == []
    assert "1.pt depends on the record (`loss`)" in noted.text
    # A rounded duration is equal in most runs.
    late = verdicts_of([run(2.0, 3.0, 0.0)], other, [run(2.0, 3.0, 0.1), run(2.0, 3.0, 0.0)])
    assert (late.kinds, late.text) == ([], "")
    # A date changes between two runs.
    date = verdicts_of(usual, other, [run(2.0, 3.0, 1.0)])
    assert (date.kinds, date.text) == ([], "")


def test_numbers_of_another_random_stream_are_not_compared() -> None:
    usual, other = trace((True, {"w": 1.0, "mean": 2.0})), trace((True, {"w": 4.0, "mean": 2.0}))
    drawn, both = trace((True, {"w": 5.0, "mean": 2.0})), trace((True, {"w": 5.0, "mean": 9.0}))
    assert verdicts_of([usual], other, [drawn], shifted=True).kinds == []
    assert verdicts_of([usual], other, [drawn]).kinds == ["saved"]
    assert "`mean`, which depends" in verdicts_of([usual], other, [both], shifted=True).text


def test_a_file_that_one_record_makes_the_script_save_is_found() -> None:
    once = trace((True, {"w": 1.0}))
    twice = trace((True, {"w": 1.0}), (True, {"w": 1.0}))
    for usual, neighbour in ((once, twice), (twice, once), (trace(), once)):
        assert verdicts_of([usual], usual, [neighbour]).kinds == ["saved files"]
    note = verdicts_of([trace()], trace(), [trace((False, {"loss": 1.0}))])
    assert note.kinds == []
    assert "whether 0.pt is written depends on the record" in note.text
    itself = verdicts_of([once, twice], once, [twice])
    assert itself.kinds == []
    assert "equal runs saved different numbers of files" in itself.text


def test_a_model_made_from_the_released_one_is_found() -> None:
    def run(weight: float, is_model: bool = True) -> Trace:
        numbers = {"weight": np.full((2, 2), weight)}
        return Trace(saved=[SavedFile("student.pt", numbers, False, is_model=is_model)])

    def kinds(usual: Trace, neighbour: Trace, of_other_gradients: Trace) -> list[str]:
        verdicts, reference = Verdicts(), RunToEnd(usual, lambda: usual)
        neighbours = [RunToEnd(neighbour, lambda: neighbour)]
        compare_saved(verdicts, reference, usual, neighbours, lambda: of_other_gradients)
        return [finding.kind for finding in verdicts.findings]

    assert kinds(run(1.0), run(2.0), run(3.0)) == ["saved model"]
    assert kinds(run(1.0), run(2.0), run(1.0)) == []  # not made from the released weights
    assert kinds(run(1.0), run(1.0), run(3.0)) == []  # does not depend on the record
    assert kinds(run(1.0, False), run(2.0, False), run(3.0, False)) == []


def test_models_are_recognised(saved: Any, tmp_path: Path) -> None:
    files, _ = saved
    student = nn.Linear(4, 3)
    torch.save({"student": student.state_dict(), "epoch": 1}, tmp_path / "student.pt")
    torch.save(student, tmp_path / "module.pt")
    torch.save({"fc.weight": torch.ones(3, 4)}, tmp_path / "weights.pt")
    torch.save({"predictions": torch.ones(3, 4)}, tmp_path / "predictions.pt")
    torch.save(torch.optim.Adam(student.parameters()).state_dict(), tmp_path / "optimizer.pt")
    assert [file.is_model for file in files] == [True, True, True, False, False]
    assert not any(file.holds_weights for file in files)


def test_the_state_of_the_generator_with_the_weights_is_found() -> None:
    state = torch.get_rng_state().numpy()
    usual = trace((True, {"w": 1.0, "rng": state}))
    usual.moved_generators = frozenset({"torch"})
    assert verdicts_of([usual], usual, [usual]).kinds == ["generator state"]
    alone = trace((False, {"rng": state}))
    assert verdicts_of([alone], alone, [alone]).kinds == []


@pytest.mark.thorough
@pytest.mark.usefixtures("little_work")
def test_a_function_gets_a_note_about_what_it_saves(tmp_path: Path) -> None:
    def train(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
        model = Loop(sampling_rate=0.4, steps=4)(records, candidate, seed, watch)
        torch.save(model.state_dict(), tmp_path / "model.pt")
        torch.save({"n": 24, "mean": records.features.mean()}, tmp_path / "scaler.pt")
        return model

    report = check_premises(train, TrainingSet.of(dense())).report
    assert not report.broken, str(report)
    assert "scaler.pt (torch.save, test_saved_files.py:" in str(report)
    assert "depends on the record (`mean`)" in str(report)
    assert "model.pt" not in str(report)
