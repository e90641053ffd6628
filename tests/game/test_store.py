"""Trials on disk: complete, verified, and bound to their audit."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit.errors import DamagedShard, InvalidInput
from audit.game.binding import audit_digest, binding
from audit.game.play import Block, Trials, all_blocks, play
from audit.game.settings import AuditConfig
from audit.game.setup import _set_up, set_up
from audit.game.store import RunFolder, locked


def opened(out: Path, **settings: Any) -> tuple[AuditConfig, RunFolder, Block]:
    config = AuditConfig(trials=300, repeats=1, epsilon=(1.0,), out=str(out), **settings)
    bound_to = binding(config.plug_ins, [set_up(config, 0)])
    folder = RunFolder(config.place.out, config.identity, bound_to)
    folder.open()
    (block,) = all_blocks(config.workload, "reduced")
    return config, folder, block


@pytest.fixture
def played(tmp_path: Path) -> tuple[RunFolder, Block]:
    config, folder, block = opened(tmp_path)
    folder.save(block, play(config, block))
    return folder, block


@pytest.mark.skipif(not Path("/proc/1").is_dir(), reason="needs /proc")
def test_a_folder_in_which_no_file_can_be_created_is_not_called_locked() -> None:
    with pytest.raises(InvalidInput, match=r"out must be a writable folder.*'/proc/1'"):
        locked(Path("/proc/1")).__enter__()


def test_saved_trials_are_loaded(played: tuple[RunFolder, Block]) -> None:
    folder, block = played
    (path,) = folder.shards(block)
    before = path.read_bytes()
    (trials,) = folder.load(block)
    folder.save(block, [trials])
    assert path.read_bytes() == before
    np.testing.assert_array_equal(trials.trial, np.arange(300))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trial": np.array(["text"] * 300)}, "does not match its seal"),
        ({"trial": np.arange(1, 301)}, "does not match its seal"),
        ({"score": np.full(300, np.nan)}, "does not match its seal"),
        ({"score": np.zeros((300, 300))}, "does not match its seal"),
        ({"audit": np.array("0" * 64)}, "it belongs to another audit"),
        ({"audit": np.zeros(3)}, "it belongs to another audit"),
        ({"seal": np.array("0" * 64)}, "does not match its seal"),
        ({"bit": None}, "bit is not a file in the archive"),
    ],
)
def test_a_changed_shard_is_damaged(
    played: tuple[RunFolder, Block], changes: dict[str, Any], words: str
) -> None:
    folder, block = played
    (path,) = folder.shards(block)
    with np.load(path) as shard:
        arrays = dict(shard) | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(DamagedShard, match=words):
        folder.load(block)


def test_a_compressed_shard_is_not_unpacked(played: tuple[RunFolder, Block]) -> None:
    folder, block = played
    (path,) = folder.shards(block)
    np.savez_compressed(path, trial=np.zeros(10**7))
    with pytest.raises(DamagedShard, match=r"unpacks to 8000.* bytes, more than its own size"):
        folder.load(block)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("code", "another version of the code"),
        ("data", "another content of the data"),
        ("fixed", "another noise, order or threshold"),
        ("schema", "another version of the files"),
        ("plug_ins", "another plug-in"),
    ],
)
def test_a_folder_with_another_binding_is_refused(tmp_path: Path, name: str, words: str) -> None:
    _, folder, _ = opened(tmp_path)
    path = tmp_path / "config.json"
    there = json.loads(path.read_text())
    there["bound_to"][name] = "other"
    path.write_text(json.dumps(there))
    with pytest.raises(ValueError, match=f"whose trials depend on {words}"):
        folder.open()


def test_different_audits_have_different_digests() -> None:
    settings = [
        {"seed": 1},
        {"threat": "NTNV", "canary": "input", "train_size": 20},
        {"threat": "NTNV", "canary": "input", "train_size": 21},
        {"threat": "NTNV", "canary": "input", "train_size": 20, "canary_index": 1},
        {"score": "worst-order"},
        {},
    ]
    found = set()
    for each in settings:
        config = AuditConfig(epsilon=(1.0,), validation_size=10, **each)
        found.add(audit_digest(config.identity, binding(config.plug_ins, [set_up(config, 0)])))
    assert len(found) == len(settings)
    # Jobs and folder do not change the results.
    config = AuditConfig(epsilon=(1.0,), validation_size=10, jobs=4, out="elsewhere")
    assert audit_digest(config.identity, binding(config.plug_ins, [set_up(config, 0)])) in found


def test_the_digest_depends_on_the_content_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    config = AuditConfig(epsilon=(1.0,), threat="NTCV", train_size=20, validation_size=10)
    game = set_up(config, 0)
    before = binding(config.plug_ins, [game])
    game.views[0].threat_model.training_set.features[3, 0, 2, 2] += 1e-3
    after = binding(config.plug_ins, [game])
    _set_up.cache_clear()
    assert before["data"] != after["data"]
    assert {**before, "data": 0} == {**after, "data": 0}


def test_joined_trials_keep_their_order(played: tuple[RunFolder, Block]) -> None:
    folder, block = played
    (trials,) = folder.load(block)
    joined = Trials.joined(trials, trials)
    np.testing.assert_array_equal(joined.score, np.tile(trials.score, 2))


@pytest.mark.parametrize("name", ["shards", ".lock", ".config.json.{pid}", "shards/.{shard}.{pid}"])
def test_a_prepared_link_is_not_followed(tmp_path: Path, name: str) -> None:
    target, folder = tmp_path / "precious", tmp_path / "audit"
    (block,) = all_blocks(AuditConfig(trials=300, repeats=1, epsilon=(1.0,)).workload, "reduced")
    path = folder / name.format(pid=os.getpid(), shard=f"{block.name}.npz")
    path.parent.mkdir(parents=True)
    if name == "shards":
        target.mkdir()
    else:
        target.write_text("mine")
    path.symlink_to(target)
    try:
        with locked(folder):
            config, stored, block = opened(folder)
            stored.save(block, play(config, block))
    except InvalidInput as error:
        assert "link" in str(error)  # noqa: PT017
        assert name in ("shards", ".lock")
    assert list(target.iterdir()) == [] if name == "shards" else target.read_text() == "mine"
