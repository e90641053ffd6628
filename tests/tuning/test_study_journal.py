"""The journal of a study on disk."""

import contextlib
import errno
import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from forks import code_of, forked
from hypothesis import settings, stateful
from hypothesis import strategies as st
from light_runs import noisy
from study_helpers import (
    study,
)

from audit.tuning import study as live
from audit.tuning.journal import Journal, Record, _end


def test_folder_is_private_and_deleted_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    seen = {}

    def train(trial: Any) -> Any:
        for path in folder.iterdir():
            seen[path.name] = path.stat().st_mode & 0o777
        seen["folder"] = folder.stat().st_mode & 0o777
        seen["words"] = (folder / "READ_ME_PRIVATE.txt").read_text()
        return noisy(trial)

    before = os.umask(0)
    try:
        study(folder=folder).run(train)
    finally:
        os.umask(before)
    assert seen.pop("folder") == 0o700
    assert "PRIVATE" in seen.pop("words")
    assert seen.pop("runs") == 0o700
    assert {"state.json", "runs.jsonl", "READ_ME_PRIVATE.txt", "lock"} <= set(seen)
    assert set(seen.values()) == {0o600}
    assert not folder.exists()


def test_other_folders_are_not_changed(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("mine")
    tmp_path.chmod(0o755)
    with pytest.raises(ValueError, match="folder must be empty, new, or that of a study, got"):
        study(folder=tmp_path).run(noisy)
    assert (tmp_path / ".gitignore").read_text() == "mine"
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    with pytest.raises(ValueError, match="folder must be one that can be created and written"):
        study(folder=tmp_path / ".gitignore" / "study").run(noisy)


@pytest.mark.parametrize("left", range(8))
def test_a_study_begins_anew_where_the_deletion_of_the_last_one_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    folder = tmp_path / "study"
    study(folder=folder, keep=True).run(noisy)
    (folder / "models").mkdir()
    (folder / "state.json.draft").write_text("{")
    with monkeypatch.context() as patch:
        deletions = iter(range(left))

        def count(path: Path) -> bool:
            if path.exists() and path != folder and next(deletions, None) is None:
                raise KeyboardInterrupt
            return True

        unlink = Path.unlink
        patch.setattr(Path, "unlink", lambda path, **given: count(path) and unlink(path, **given))
        with contextlib.suppress(KeyboardInterrupt):
            Journal(folder).end()
    assert folder.exists() or left == 7
    assert study(folder=folder).run(noisy).candidate is not None
    assert not folder.exists()


@pytest.mark.parametrize("missing", ["state.json", "runs.jsonl", "end.json"])
def test_a_journal_without_one_of_its_files_is_refused(tmp_path: Path, missing: str) -> None:
    folder = tmp_path / "study"
    study(folder=folder, keep=True).run(noisy)
    (folder / missing).unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match="folder must hold a study as it was written"):
        study(folder=folder, keep=True).run(noisy)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    "name",
    [
        *("state.json.draft", ".gitignore.draft", "READ_ME_PRIVATE.txt.draft", "end.json.draft"),
        *("state.json", "runs.jsonl", "end.json", "lock", "models", "models/0.draft"),
    ],
)
def test_a_prepared_link_does_not_lead_to_a_file_of_the_owner(tmp_path: Path, name: str) -> None:
    folder, target = tmp_path / "study", tmp_path / "precious"
    path = folder / name
    path.parent.mkdir(parents=True)
    (folder / "lock").touch()
    if name == "models":
        target.mkdir()
        (target / "mine").write_text("mine")
    else:
        target.write_text("mine")
    path.unlink(missing_ok=True)
    path.symlink_to(target)

    def save(model: Any, path: Path) -> None:
        path.write_text("a model")

    with contextlib.suppress(ValueError):
        one = study(folder=folder, protocol="fixed:1")
        one.run(noisy, save=save, load=lambda path: path.read_text())
    if name == "models":
        assert [file.name for file in target.iterdir()] == ["mine"]
        target = target / "mine"
    assert target.read_text() == "mine"


def test_a_kept_study_returns_the_same_result_when_run_again(tmp_path: Path) -> None:
    first = study(folder=tmp_path / "kept", keep=True).run(noisy)
    again = study(folder=tmp_path / "kept", keep=True).run(noisy)
    assert (again.model, again.score) == (first.model, first.score)


@pytest.mark.parametrize("keep", [True, False])
def test_a_certificate_states_whether_the_key_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    monkeypatch.setattr(
        live.Certificate, "issue", lambda *given: given[5].key_kept
    )  # which takes seconds
    one = study(folder=tmp_path / "s", keep=keep)
    one.run(noisy)
    assert one.certificate is keep is (tmp_path / "s" / "state.json").exists()


def test_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    study(folder=tmp_path, keep=True).run(noisy)
    with pytest.raises(ValueError, match="folder must hold a study of these settings"):
        study(folder=tmp_path, delta=1e-6).run(noisy)
    with pytest.raises(ValueError, match=r"seed must be that of|of these settings"):
        study(folder=tmp_path, seed=4).run(noisy)


def test_default_folder_is_the_same_for_the_same_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    one, same, other = (study(folder="", delta=delta).folder for delta in (1e-5, 1e-5, 1e-6))
    assert one == same != other
    assert one.parent == tmp_path
    assert one.name.startswith(".tuning-study-")


def end_after(folder: Any, lines: Any) -> Any:
    """The end.json of a journal that has only the first lines."""
    rows = (folder / "runs.jsonl").read_text().splitlines()
    return _end(lines, json.loads(rows[lines - 1])["checksum"]) if lines else ""


def test_a_line_cut_off_by_a_kill_is_dropped(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.begin({"key": "0x1", "settings": "", "runs": 2})
    first, second = (Record(i, (0.5,), float(i), "digest", ("steps",)) for i in range(2))
    journal.add(first)
    journal.add(second)
    path, end = tmp_path / "runs.jsonl", tmp_path / "end.json"
    whole, before = path.read_bytes(), end_after(tmp_path, 1)
    for length in range(whole.index(b"\n") + 1, len(whole)):
        path.write_bytes(whole[:length])
        end.write_text(before)  # written only after the line
        assert journal.records() == [first]
        journal.add(second)
        assert journal.records() == [first, second]


def test_two_kills_before_the_count_lose_nothing(tmp_path: Any) -> None:
    journal = Journal(tmp_path)
    journal.begin({"key": "0x1", "settings": "", "runs": 3})
    records = [Record(i, (0.5,), float(i), "digest", ("steps",)) for i in range(3)]
    end = tmp_path / "end.json"
    for done in range(3):
        before = end.read_text() if end.exists() else ""
        journal.add(records[done])
        end.write_text(before)
        journal = Journal(tmp_path)
        assert journal.records() == records[: done + 1]


def edits(folder: Any) -> Any:
    """Ways to edit a journal by hand, by name."""
    runs, state = folder / "runs.jsonl", folder / "state.json"
    lines = runs.read_text().splitlines(keepends=True)
    kept = json.loads(state.read_text())
    first = json.loads(lines[0])
    end = (folder / "end.json").read_text()

    def shorten_both() -> None:
        runs.write_text("".join(lines[:-1]))
        (folder / "end.json").write_text(end.replace(str(len(lines)), str(len(lines) - 1), 1))

    return {
        "a run less in both files": shorten_both,
        "a run less": lambda: runs.write_text("".join(lines[:-1])),
        "no runs": lambda: runs.unlink(),
        "a run left out": lambda: runs.write_text("".join(lines[1:])),
        "another order": lambda: runs.write_text("".join(lines[::-1])),
        "twice": lambda: runs.write_text("".join([*lines, lines[-1]])),
        "another score": lambda: runs.write_text(
            json.dumps(first | {"score": 9.0}) + "\n" + "".join(lines[1:])
        ),
        "a score of another type": lambda: runs.write_text(
            json.dumps(first | {"score": "high"}) + "\n" + "".join(lines[1:])
        ),
        "no object": lambda: runs.write_text("3\n" + "".join(lines[1:])),
        "fewer runs drawn": lambda: state.write_text(json.dumps(kept | {"runs": 1})),
        "runs of another type": lambda: state.write_text(json.dumps(kept | {"runs": {"a": 1}})),
        "another key": lambda: state.write_text(json.dumps(kept | {"key": "0x1"})),
        "no key": lambda: state.write_text(json.dumps({"format": 2})),
        "a list": lambda: state.write_text("[1]"),
        "no number of lines": lambda: (folder / "end.json").write_text("many"),
        "no count": lambda: (folder / "end.json").unlink(),
        "a folder": lambda: replaced(folder / "end.json").mkdir(),
        "a pipe": lambda: os.mkfifo(replaced(folder / "state.json")),
        "a link to itself": lambda: replaced(folder / "state.json").symlink_to("state.json"),
        "an endless file": lambda: replaced(folder / "runs.jsonl").symlink_to("/dev/zero"),
    }


def replaced(path: Path) -> Path:
    """The path, at which nothing is left."""
    path.unlink()
    return path


EDITS = (
    "a run less in both files",
    "a run less", "no runs", "a run left out", "another order", "twice", "another score",
    "a score of another type", "no object", "fewer runs drawn", "runs of another type",
    "another key", "no key", "a list", "no number of lines", "no count",
    "a folder", "a pipe", "a link to itself", "an endless file",
)  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_a_journal_edited_by_hand_is_refused_in_one_line(tmp_path: Path, edit: str) -> None:
    settings = {"folder": tmp_path / "s", "keep": True, "protocol": "fixed:4"}
    study(**settings).run(noisy)
    assert set(edits(tmp_path / "s")) == set(EDITS)
    edits(tmp_path / "s")[edit]()
    with pytest.raises(ValueError, match="folder must hold a study") as caught:
        study(**settings).run(noisy)
    assert "\n" not in str(caught.value)


def test_a_folder_in_place_of_a_file_is_deleted_with_the_study(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "s")
    with journal.locked():
        journal.begin({"settings": "", "key": "", "runs": None})
        replaced(tmp_path / "s" / "READ_ME_PRIVATE.txt").mkdir()
        journal.end()
    assert not (tmp_path / "s").exists()


def test_a_file_that_does_not_belong_to_a_study_is_named(tmp_path: Path) -> None:
    study(folder=tmp_path / "s", keep=True).run(noisy)
    (tmp_path / "s" / ".DS_Store").write_bytes(b"\0")
    with pytest.raises(ValueError, match=r"which holds '\.DS_Store'"):
        study(folder=tmp_path / "s", keep=True).run(noisy)


def test_a_run_that_changes_the_working_directory_does_not_move_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    def train(trial: Any) -> Any:
        os.chdir(tmp_path / "elsewhere")
        return noisy(trial)

    study(folder="s", keep=True).run(train)
    assert (tmp_path / "s" / "runs.jsonl").exists()
    assert not (tmp_path / "elsewhere" / "s").exists()


class JournalMachine(stateful.RuleBasedStateMachine):
    """A study that is stopped, killed, edited and run twice at once, and whose disk is full.

    In every case, its journal is refused or read as it was written, and the result is the same.
    """

    SETTINGS = {"protocol": "fixed:8", "seed": 4}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.TemporaryDirectory()
        self.folder = Path(self.root.name) / "s"
        self.through: list[Any] = []
        self.best = study(**self.SETTINGS).run(
            lambda trial: self.through.append(trial) or noisy(trial)
        )

    def run(self, until: Any = 99, before: Any = lambda: None) -> Any:
        calls: list[Any] = []

        def train(trial: Any) -> Any:
            if len(calls) == until:
                raise KeyboardInterrupt
            calls.append(trial)
            assert trial.seed in {one.seed for one in self.through}
            before()
            return noisy(trial)

        return study(folder=self.folder, keep=True, **self.SETTINGS).run(train)

    def read(self) -> Any:
        journal = Journal(self.folder)
        return journal.state(), journal.records()

    def began(self) -> Any:
        return (self.folder / "state.json").exists()

    @stateful.rule(until=st.integers(0, 3))
    def stop(self, until: Any) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            assert self.run(until) == self.best

    @stateful.precondition(began)
    @stateful.rule(share=st.floats(0.0, 0.99))
    def kill_while_a_line_is_written(self, share: Any) -> None:
        _, records = self.read()
        with open(self.folder / "runs.jsonl", "a") as file:
            line = json.dumps({"index": 8, "point": [0.5], "score": 0.1, "checksum": 64 * "0"})
            file.write(line[: int(share * len(line))])
        assert self.read()[1] == records

    @stateful.precondition(began)
    @stateful.rule()
    def kill_before_the_count_is_written(self) -> None:
        _, records = self.read()
        lines = (self.folder / "runs.jsonl").read_bytes().count(b"\n") if records else 0
        if lines:
            (self.folder / "end.json").write_text(end_after(self.folder, lines - 1))
        assert self.read()[1] == records

    @stateful.rule(writes=st.integers(0, 12), partly=st.booleans())
    def run_out_of_disk(self, writes: Any, partly: Any) -> None:
        left = [writes]

        def fsync(descriptor: Any) -> None:
            left[0] -= 1
            if left[0] < 0:
                if partly and os.fstat(descriptor).st_size > 5:
                    with contextlib.suppress(OSError):
                        os.ftruncate(descriptor, os.fstat(descriptor).st_size - 5)
                raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            try:
                assert self.run() == self.best
            except ValueError as error:
                assert "No space left on device" in str(error)  # noqa: PT017
                assert "\n" not in str(error)  # noqa: PT017

    @stateful.precondition(began)
    @stateful.rule(
        name=st.sampled_from(["state.json", "runs.jsonl", "end.json"]),
        place=st.floats(0.0, 0.999),
        kind=st.sampled_from(["digit", "cut", "line", "gone"]),
    )
    def edit(self, name: Any, place: Any, kind: Any) -> None:
        path = self.folder / name
        if not path.exists():
            return
        before, whole = self.read(), path.read_bytes()
        if kind == "gone":
            path.unlink()
        elif kind == "cut":
            path.write_bytes(whole[: int(place * len(whole))])
        elif kind == "line":
            lines = whole.splitlines(keepends=True)
            if lines:
                del lines[int(place * len(lines))]
            path.write_bytes(b"".join(lines))
        else:
            digits = [i for i, byte in enumerate(whole) if chr(byte).isdigit()]
            if digits:
                i = digits[int(place * len(digits))]
                digit = str((int(chr(whole[i])) + 1) % 10).encode()
                path.write_bytes(whole[:i] + digit + whole[i + 1 :])
        try:
            # Asserted before the lines are read, whose checksums also depend on the state.
            state = Journal(self.folder).state()
            assert state in (before[0], None)
            # A run cut off before its line was counted is repeated; nothing else is accepted.
            records = self.read()[1]
            assert state is None or records in (before[1], before[1][:-1])
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
        path.write_bytes(whole)

    @stateful.rule(runs=st.integers(0, 3))
    def kill(self, runs: Any) -> None:
        left = [runs]

        def die() -> None:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        assert code_of(forked(lambda: self.run(before=die))) in (0, -signal.SIGKILL)

    @stateful.rule()
    def run_in_two_processes_at_once(self) -> None:
        def second() -> None:
            with pytest.raises(ValueError, match="not running elsewhere"):
                self.run()

        def compete() -> None:
            assert code_of(forked(second)) == 0

        assert self.run(before=compete) == self.best

    def teardown(self) -> None:
        assert self.run() == self.best
        self.root.cleanup()


JournalMachine.TestCase.settings = settings(
    max_examples=8, stateful_step_count=8, deadline=None, derandomize=True
)


test_a_journal_survives_whatever_happens = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="no os.fork"
)(JournalMachine.TestCase)
