"""The test of unmodified scripts: verdicts, protection of files, and refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scripts_to_check import (
    FORGIVING,
    HUGGING_FACE_BROKEN,
    HUGGING_FACE_RIGHT,
    LIGHTNING_BROKEN,
    LIGHTNING_RIGHT,
    MISTAKES,
    PLAIN,
    RESUMED,
    SWEEP,
    with_mistake,
)

from audit.commands import check_script
from audit.errors import InvalidInput
from audit.loop import TrainingSet
from audit.loop.findings import PremiseReport
from audit.loop.sources.script import ScriptResult, script
from audit.loop.sources.script_items import ItemForm


def run(folder: Path, text: str, *arguments: str, **options: Any) -> ScriptResult:
    path = folder / "train.py"
    path.write_text(text)
    return script(path, arguments, **options)


@pytest.mark.slow
def test_correct_script_is_not_accused(tmp_path: Path) -> None:
    result = run(tmp_path, PLAIN, "--epochs", "2")
    assert result.exit_code == 0, str(result)
    shown = str(result)
    assert "script: n = 200, batch size 32, noise multiplier 1, arguments '--epochs 2'" in shown
    assert "not tested: everything before make_private" in shown
    assert "other loaders, taken as public (50 records)" in shown
    assert "zero-out" in shown
    assert not (tmp_path / "model.pt").exists()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rerun", "fork"])
def test_both_modes_find_the_old_loader(tmp_path: Path, mode: str) -> None:
    result = run(tmp_path, with_mistake("old loader"), mode=mode)
    assert result.exit_code == 1
    assert result.mode == mode
    assert result.report.findings[0].premise == "batches"


@pytest.mark.parametrize("mode", [pytest.param("rerun", marks=pytest.mark.slow), "fork"])
@pytest.mark.thorough
def test_what_a_script_saves_with_the_weights_is_compared(tmp_path: Path, mode: str) -> None:
    text = with_mistake("a mean saved with the weights")
    result = run(tmp_path, text, "--epochs", "2", mode=mode, records=8, steps=3)
    assert "saved" in [finding.kind for finding in result.report.findings], str(result)
    assert "model.pt (torch.save, train.py:" in str(result)


@pytest.mark.slow
def test_a_model_without_privacy_for_a_comparison_is_noted(tmp_path: Path) -> None:
    text, end = PLAIN, 'torch.save(model.state_dict(), "model.pt")'
    baseline = (
        "baseline = nn.Linear(6, 3)\n"
        "fit = torch.optim.SGD(baseline.parameters(), lr=0.1)\n"
        "for x, y in DataLoader(loader.dataset, batch_size=16):\n"
        "    fit.zero_grad()\n"
        "    criterion(baseline(x), y).backward()\n"
        "    fit.step()\n"
        'torch.save(baseline.state_dict(), "baseline.pt")\n'
    )
    assert end in text
    result = run(tmp_path, text.replace(end, baseline + end), "--epochs", "2")
    assert result.exit_code == 0, str(result)
    assert "baseline.pt (torch.save, train.py:" in " ".join(result.report.notes)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rerun", "fork"])
def test_a_checkpoint_of_a_run_is_not_resumed_by_the_next(tmp_path: Path, mode: str) -> None:
    result = run(tmp_path, RESUMED, mode=mode)
    assert result.exit_code == 0, str(result)
    assert "losses.pt" in " ".join(result.report.notes)
    assert "does not reach its end" not in str(result)


@pytest.mark.parametrize("mode", [pytest.param("rerun", marks=pytest.mark.slow), "fork"])
@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.thorough
def test_a_choice_among_several_private_runs_is_tested(
    tmp_path: Path, is_private: bool, mode: str
) -> None:
    """Each candidate is trained on a data set object of its own, with the same records."""
    text = SWEEP.replace("slice(0, 50)", "slice(50, 250)") if is_private else SWEEP
    result = run(tmp_path, text, records=8, steps=3, mode=mode)
    kinds = [finding.kind for finding in result.report.findings]
    assert kinds == (["saved"] if is_private else []), str(result)
    assert "all but the first of 4 calls of make_private" in str(result)
    assert "does not reach its end" not in str(result)


# Items are computed, as by transforms of files, so that no array of the data set holds them.
_COMPUTED = """class Computed(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, place):
        return 2 * features[50 + place], labels[50 + place]


def right_by_loader(model, loader):
    with torch.no_grad():
        return sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)


whole = DataLoader(Computed(), batch_size=64)
"""


@pytest.mark.thorough
def test_further_runs_may_read_their_records_in_other_ways(tmp_path: Path) -> None:
    """The batches are larger than the data of the test, and a loader of its own evaluates them."""
    text = SWEEP.replace("def right", _COMPUTED + "\n\ndef right").replace(
        "TensorDataset(features[50:], labels[50:])", "Computed()"
    )
    text = text.replace(
        "batch_size=32, shuffle=True", "batch_size=32, shuffle=True, drop_last=True"
    )
    text = text.replace(
        "right_labels(model, features[public], labels[public])", "right_by_loader(model, whole)"
    )
    result = run(tmp_path, text, records=8, steps=3)
    assert [finding.kind for finding in result.report.findings] == ["saved"], str(result)
    assert "no array of the data set holds them" in str(result)
    assert "other loaders" not in str(result)


@pytest.mark.thorough
def test_whole_batches_may_drop_the_last_one(tmp_path: Path) -> None:
    text = SWEEP.replace("batch_size=32, shuffle=True", "batch_size=200, drop_last=True")
    text = text.replace("in loader:", "in (batch for _ in range(3) for batch in loader):")
    result = run(tmp_path, text, records=8, steps=3)
    assert result.exit_code == 0, str(result)
    assert "does not reach its end" not in str(result)


_POOL = """
def score(rate):
    model = train(rate, 8)
    return right_labels(model, features, labels)


if __name__ == "__main__":
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(2) as pool:
        scores = pool.map(score, [0.1, 0.2])
"""
_EXECUTOR = _POOL.replace("import multi", "import concurrent.futures, multi").replace(
    'multiprocessing.get_context("fork").Pool(2)',
    'concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork"))',
)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rerun", "fork"])
@pytest.mark.parametrize("pool", [_POOL, _EXECUTOR])
@pytest.mark.parametrize("steps", [3, 8])  # The first candidate takes four.
def test_candidates_that_other_processes_train_do_not_hang(
    tmp_path: Path, mode: str, pool: str, steps: int
) -> None:
    text = SWEEP.replace("models = [", "models = [train(0.1, 8)]\n" + pool + "models += [")
    result = run(tmp_path, text, records=8, steps=steps, mode=mode)
    assert "reach its end: it calls make_private in processes that it starts" in str(result)
    assert "BrokenProcessPool" not in str(result)
    assert result.exit_code == 0, str(result)


@pytest.mark.slow
def test_a_script_whose_first_candidate_is_trained_by_a_pool_is_refused(tmp_path: Path) -> None:
    text = SWEEP.replace("models = [", _POOL + "models = [")
    with pytest.raises(InvalidInput, match="must call make_private in its first process"):
        run(tmp_path, text)


@pytest.mark.thorough
def test_a_further_run_on_other_records_ends_the_test(tmp_path: Path) -> None:
    text = SWEEP.replace("[50:]", "[50 * (rate < 0.2) :]")
    result = run(tmp_path, text, records=8, steps=3)
    assert "it calls make_private again with another data set" in str(result)


@pytest.mark.slow
def test_a_script_that_does_not_reach_its_end_says_so(tmp_path: Path) -> None:
    raises = PLAIN.replace("torch.save(", "assert epoch > 900\ntorch.save(")
    for text, arguments, words in (
        (raises, ["--epochs", "2"], "it then raises AssertionError"),
        (PLAIN, ["--epochs", "200"], "more than 64 further batches"),
    ):
        result = run(tmp_path, text, *arguments, records=8, steps=3)
        assert result.exit_code != 1, str(result)
        assert words in str(result)


@pytest.mark.slow
def test_a_script_that_waits_at_its_end_is_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.loop.sources.script.IDLE_SECONDS", 20.0)
    text = f"{PLAIN}import time\ntime.sleep(600)\n"
    result = run(tmp_path, text, "--epochs", "2", records=8, steps=3)
    assert "does not reach its end: it waits" in str(result)
    assert "contribution" in result.report.tested


@pytest.mark.slow
def test_a_copy_does_not_wait_for_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Both before and after the copy at make_private, threads of OpenMP would take part.
    monkeypatch.delenv("OMP_NUM_THREADS")
    product = "torch.set_num_threads(2); torch.rand(600, 600) @ torch.rand(600, 600)"
    text = PLAIN.replace("optimizer = torch", f"{product}\noptimizer = torch", 1)
    text = text.replace("        # after step", f"        {product}")
    result = run(tmp_path, text, mode="fork")
    assert result.exit_code == 0, str(result)
    assert "number of threads" in str(result)


@pytest.mark.slow
def test_noise_is_compared_with_the_calibrated_one(tmp_path: Path) -> None:
    result = run(tmp_path, with_mistake("noise lowered after calibration"))
    assert result.exit_code == 1
    assert "make_private_with_epsilon computed" in result.report.findings[0].message


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(tmp_path: Path, name: str) -> None:
    assert run(tmp_path, with_mistake(name)).exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "broken"),
    [(LIGHTNING_RIGHT, LIGHTNING_BROKEN), (HUGGING_FACE_RIGHT, HUGGING_FACE_BROKEN)],
    ids=["lightning", "hugging face"],
)
def test_trainers(tmp_path: Path, right: str, broken: str) -> None:
    assert run(tmp_path, right).exit_code == 0
    assert run(tmp_path, broken).exit_code == 1


@pytest.mark.slow
def test_script_that_catches_everything(tmp_path: Path) -> None:
    assert run(tmp_path, FORGIVING, mode="fork").exit_code == 0


@pytest.mark.slow  # test_unfit_scripts.py has a quick case
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PLAIN.replace("(200, 6)", "(4, 6)").replace("range(200)", "range(4)"), "at least 8"),
        ("print('no engine')", "must call PrivacyEngine.make_private"),
        ("import missing_package_xyz", "No module named"),
        (PLAIN.replace("batch_size=32", "batch_size=32, sampler=None, xyz=1"), "xyz"),
        (PLAIN.replace("for epoch in range(args.epochs)", "for epoch in []"), "take a step"),
    ],
)
def test_unfit_scripts_get_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        run(tmp_path, text)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_files_are_protected(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    text = f"""
import os, pathlib
folder = pathlib.Path({str(tmp_path)!r})
(folder / "kept.txt").write_text("overwritten")
(folder / "new").mkdir()
os.remove(folder / "train.py")
"""
    with pytest.raises(InvalidInput, match="make_private"):
        run(tmp_path, text)
    assert (tmp_path / "kept.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.txt", "train.py"]


@pytest.mark.slow
def test_network_is_cut_behind_make_private(tmp_path: Path) -> None:
    text = PLAIN.replace(
        "# after make_private",
        "import socket\nsocket.create_connection(('127.0.0.1', 9), timeout=1)",
    )
    with pytest.raises(InvalidInput, match="network is cut"):
        run(tmp_path, text)


@pytest.mark.slow
def test_command_prints_json_and_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(with_mistake("accountant records another noise"))
    code = check_script.main(["--json", str(path), "--epochs", "1"])
    assert code == 1
    assert json.loads(capsys.readouterr().out)["exit_code"] == 1
    assert check_script.main([str(tmp_path / "none.py")]) == 2
    assert "must name a script" in capsys.readouterr().err
    with pytest.raises(InvalidInput, match="path must name a script, got 3"):
        script(3)  # type: ignore[arg-type]


def test_a_verdict_names_what_it_does_not_cover() -> None:
    facts = {"loaders": [], "unchanged": ["mask"], "engines": 2, "failure": "", "files": []}
    facts["end"] = "it then raises an error"
    premises = PremiseReport((), ("contribution",), {}, (), {}, True, 80, 20.0)
    shown = "; ".join(ScriptResult("train.py", premises, facts, {"n": 24}, "rerun").not_tested)
    words_of_items = ("before make_private", "prints, logs", "by an attack", "(mask)", "held out")
    for words in (*words_of_items, "all but the first of at least 2 calls"):
        assert words in shown


def test_items_come_back() -> None:
    items = [
        {
            "ids": torch.tensor([i + 2, 3, 0]),
            "mask": torch.tensor([1, 1, 0]),
            "label": i % 2,
            "text": "words",
        }
        for i in range(6)
    ]
    form = ItemForm.of(items)
    assert (form.features, form.label) == (("ids",), ("label",))
    records = form.records()
    assert records.features.shape == (6, 3)
    back = form.items_of(records)
    assert all(torch.equal(a["ids"], b["ids"]) for a, b in zip(items, back, strict=True))
    assert [item["label"] for item in back] == [0, 1] * 3
    assert back[0]["text"] == "words"
    assert form.unchanged_parts == ["mask", "text"]


def test_items_of_unequal_length_are_padded() -> None:
    items = [(torch.arange(1, 3 + i), i % 2) for i in range(4)]
    records = ItemForm.of(items).records()
    assert np.array_equal(records.features[0], [1, 2, 0, 0, 0])


def test_texts_are_exchanged_by_their_words() -> None:
    texts = ["a  good film", "no", "a bad film, not good"]
    items = [{"text": text, "id": f"row {i}", "label": i % 2} for i, text in enumerate(texts)]
    form = ItemForm.of(items)
    assert (form.features, form.label) == (("text",), ("label",))
    records = form.records()
    assert records.features.shape == (3, 5)
    assert [item["text"] for item in form.items_of(records)] == texts  # blanks are as they were
    words = np.array([[1, 1, 2, 0, 0]] * 3)
    (changed, *_) = form.items_of(TrainingSet(words, np.array([1, 0, 1])))
    assert changed == {"text": "a a bad", "id": "row 0", "label": 1}
    assert form.unchanged_parts == ["id"]
    pairs = ItemForm.of([("one two", 1.0), ("three", 0.0)])
    assert pairs.items_of(pairs.records()) == [("one two", 1.0), ("three", 0.0)]
    with pytest.raises(InvalidInput, match="an array of numbers or a text"):
        ItemForm.of([("a", 1), ("b", 0)])
