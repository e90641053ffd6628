"""The folder of an audit survives kills, edits, a second process and a full disk.

Hypothesis chooses the events and their order. Processes that die or compete are real forks that end
in the middle of a write. In every case, the finished audit has the bytes of an undisturbed audit,
or it was refused in one line.
"""

import contextlib
import functools
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from forks import code_of, forked
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from audit import run
from audit.errors import DamagedShard
from audit.game import store
from audit.game.play import Trials
from audit.game.settings import AuditConfig

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork")

KILLED = 9
BLOCKS = 4


def config_of(folder: Path, seed: int = 0) -> AuditConfig:
    return AuditConfig(
        trials=20,
        repeats=2,
        epsilon=(1.0, 4.0),
        repetitions="fixed:2",
        seed=seed,
        out=str(folder),
    )


def digest(all_trials: dict[tuple[int, int], Trials]) -> str:
    parts = [
        getattr(trials, name).tobytes() for trials in all_trials.values() for name in vars(trials)
    ]
    return hashlib.sha256(b"".join(parts)).hexdigest() + "\n"


@pytest.fixture(scope="module", autouse=True)
def results_without_bounds() -> Iterator[None]:
    """Replaces the results by a digest of the trials, because bounds and figures take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "audit.report.assemble.assemble", lambda config, set_ups, all_trials, *_: all_trials
        )
        patch.setattr("audit.report.results.to_table", lambda all_trials: all_trials)
        patch.setattr("audit.report.results.to_csv", digest)
        patch.setattr("audit.report.results.to_json", digest)
        patch.setattr("audit.game.play.outlook", lambda *settings: ())
        patch.setattr("audit.report.pictures.draw", lambda report, path: None)
        patch.setattr("audit.report.pictures.draw_scores", lambda report, all_trials, path: None)
        yield


def files(folder: Path) -> dict[str, bytes]:
    """The files of an audit, without its lock and temporary files."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in found
        if not path.name.startswith(".")
    }


def content(found: dict[str, bytes]) -> dict[str, object]:
    """The arrays of shards, and the bytes of other files.

    A shard also has meaningless bytes such as padding; a change there is no damage.
    """
    return {name: arrays(data) if name.endswith(".npz") else data for name, data in found.items()}


def arrays(shard: bytes) -> dict[str, bytes]:
    with np.load(io.BytesIO(shard)) as file:
        return {name: array.dtype.str.encode() + array.tobytes() for name, array in file.items()}


@functools.cache
def undisturbed(seed: int) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        run.run(config_of(Path(folder), seed))
        return files(Path(folder))


def refusal(folder: Path, seed: int = 0) -> str:
    """The error of the audit; empty if it finished."""
    error_line = ""
    try:
        run.run(config_of(folder, seed))
    except ValueError as error:
        error_line = str(error)
    assert len(error_line.splitlines()) <= 1
    return error_line


class RunFolderMachine(RuleBasedStateMachine):
    """An audit of four blocks in one folder."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.is_edited = False

    def teardown(self) -> None:
        shutil.rmtree(getattr(self, "folder", "/nonexistent"), ignore_errors=True)

    def shards(self) -> list[Path]:
        return sorted((self.folder / "shards").glob("[!.]*"))

    def is_started(self) -> bool:
        return store.is_started(self.folder)

    @rule()
    def finish(self) -> None:
        error_line = refusal(self.folder)
        if self.is_edited:
            assert "out must be a new folder or hold this audit" in error_line
        else:
            assert error_line == ""
            assert content(files(self.folder)) == content(undisturbed(0))

    @rule(at=st.integers(0, 2 * BLOCKS + 4), half=st.booleans())
    def kill(self, at: int, half: bool) -> None:
        """A process dies at one of its writes, before or after half of the bytes are written."""
        writes = iter(range(at))

        def die(descriptor: int) -> None:
            if next(writes, None) is None:
                if half:
                    path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
                    os.truncate(path, path.stat().st_size // 2)
                os._exit(KILLED)

        def work() -> None:
            with mock.patch("os.fsync", die):
                refusal(self.folder)

        assert code_of(forked(work)) in (0, KILLED)

    @rule(room=st.integers(0, BLOCKS))
    def fill_the_disk(self, room: int) -> None:
        """The disk has room for a limited number of shards."""
        left = iter(range(room))
        savez = np.savez

        def save(file: object, **arrays: object) -> None:
            if next(left, None) is None:
                raise OSError(28, "No space left on device")
            savez(file, **arrays)

        with mock.patch("numpy.savez", save):
            error_line = refusal(self.folder)
        assert error_line == "" or "with free space" in error_line or self.is_edited

    @precondition(lambda self: self.shards())
    @rule(
        data=st.data(), how=st.sampled_from(["flip", "cut", "empty", "delete", "swap", "foreign"])
    )
    def edit_a_shard(self, data: st.DataObject, how: str) -> None:
        path = data.draw(st.sampled_from(self.shards()), label="shard")
        stored = bytearray(path.read_bytes())
        if how == "delete":
            path.unlink()
        elif how == "flip":
            if stored:
                stored[data.draw(st.integers(0, len(stored) - 1), label="byte")] ^= 1
            path.write_bytes(stored)
        elif how == "foreign":
            path.write_bytes(undisturbed(1)[f"shards/{path.name}"])
        else:
            another = self.shards()[-1 if path == self.shards()[0] else 0]
            other = {"cut": stored[: len(stored) // 2], "empty": b""}
            path.write_bytes(other.get(how, another.read_bytes()))

    @precondition(lambda self: self.is_started() and not self.is_edited)
    @rule()
    def edit_the_settings(self) -> None:
        path = self.folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seed": 1}))
        self.is_edited = True

    @precondition(lambda self: self.is_edited)
    @rule()
    def restore_the_settings(self) -> None:
        (self.folder / "config.json").write_bytes(undisturbed(0)["config.json"])
        self.is_edited = False

    @rule()
    def compete_with_a_process_that_runs(self) -> None:
        """Another process locks the folder until it ends."""
        (ready, held), (end, wait_end) = os.pipe(), os.pipe()

        def work() -> None:
            os.close(wait_end)
            with store.locked(self.folder):
                os.write(held, b"1")
                os.read(end, 1)  # until the other side is closed

        child = forked(work)
        try:
            os.read(ready, 1)
            before = files(self.folder)
            assert "where another audit is running" in refusal(self.folder)
            assert files(self.folder) == before
        finally:
            for descriptor in (ready, held, end, wait_end):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            assert code_of(child) == 0

    @precondition(lambda self: self.is_started() and not self.is_edited)
    @rule()
    def another_audit_is_refused(self) -> None:
        before = files(self.folder)
        assert "seed 0 there and 1 now" in refusal(self.folder, seed=1)
        assert files(self.folder) == before

    @precondition(lambda self: not self.is_started())
    @rule()
    def two_audits_begin_at_once(self) -> None:
        def work() -> None:
            assert not refusal(self.folder, seed=1)

        child = forked(work)
        error_line = refusal(self.folder)
        other = code_of(child)
        assert bool(error_line) != bool(other)
        winner = 0 if error_line == "" else 1
        assert files(self.folder) == undisturbed(winner)
        shutil.rmtree(self.folder)  # The next events must not depend on the winner.

    @invariant()
    def every_readable_shard_has_the_trials_of_its_block(self) -> None:
        if not self.is_started():
            return
        for path in self.shards():
            expected = arrays(undisturbed(0)[f"shards/{path.name}"])
            (audit,) = np.frombuffer(expected["audit"][4:], "U64").tolist()
            try:
                store._read(path, audit)
            except DamagedShard:
                continue
            assert arrays(path.read_bytes()) == expected


def played(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        RunFolderMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=[Phase.generate],  # Shrinking a failure takes minutes.
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.thorough
def test_an_audit_survives_random_events() -> None:
    assert len([name for name in undisturbed(0) if name.endswith(".npz")]) == BLOCKS
    played(12, 8)


@pytest.mark.slow
def test_an_audit_survives_many_more_random_events() -> None:
    played(150, 25)
