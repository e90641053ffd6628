"""A stateful test of stored audits: interrupted, damaged, and resumed with changed code."""

import os
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
from forks import code_of, forked
from hypothesis import settings, stateful
from hypothesis import strategies as st

from audit.commands import run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")

_MODULE = "score_of_a_stored_audit"
_HELPER = "helper_of_a_stored_audit"
_SCORE = f'''{{comment}}
from {_HELPER} import factor


def score(observation):
    """Words {{comment!r}}."""
    return {{sign}} * factor() * observation.first_displacement
'''
_OPTIONS = ["--score", f"{_MODULE}.score", "--engine", "batched", "--steps", "1", "--trials", "8"]
_OPTIONS += ["--repeats", "3", "--epsilon", "1", "--repetitions", "fixed:2"]

# Sign in the score, and factor in the module that it imports.
VERSIONS = ((1, 1.0), (-1, 1.0), (1, 2.0))


def _write(folder: Path, version: int, comment: str = "") -> None:
    sign, factor = VERSIONS[version]
    (folder / f"{_MODULE}.py").write_text(_SCORE.format(sign=sign, comment=comment))
    unused = f"def unused():\n    {comment or 'pass'}\n    return 0\n"
    factor_code = f"def factor():\n    return {factor}\n"
    (folder / f"{_HELPER}.py").write_text(f"{comment}\n{factor_code}\n\n{unused}")


def _run(sources: Path, out: Path) -> int:
    """The exit code of the audit in a process that has loaded none of the user's modules."""

    def play() -> None:
        sys.path.insert(0, str(sources))
        sys.stdout = sys.stderr = open(out.with_suffix(".log"), "w")  # noqa: SIM115
        code = run.main([*_OPTIONS, "--out", str(out)])
        sys.stdout.flush()
        os._exit(code)

    return code_of(forked(play))


def _shards(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "shards").glob("*.npz"))}


@cache
def _shards_of(version: int) -> dict[str, bytes]:
    """The trials of an audit whose code is one version from beginning to end."""
    with tempfile.TemporaryDirectory() as root:
        _write(Path(root), version)
        assert _run(Path(root), Path(root) / "audit") == 0
        return _shards(Path(root) / "audit")


class StoredAudit(stateful.RuleBasedStateMachine):
    """The trials of a folder are those of one version of the code, whatever happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.TemporaryDirectory()
        self.sources, self.out = Path(self.root.name), Path(self.root.name) / "audit"
        self.version = 0
        self.stored: int | None = None  # the version of the first trials
        _write(self.sources, 0)

    def has_shards(self) -> bool:
        return bool(_shards(self.out))

    @stateful.rule(version=st.sampled_from(range(len(VERSIONS))))
    def change_the_code(self, version: int) -> None:
        self.version = version
        _write(self.sources, version)

    @stateful.rule(comment=st.sampled_from(["# One.", "# Two words."]))
    def change_a_comment(self, comment: str) -> None:
        _write(self.sources, self.version, comment)

    @stateful.precondition(has_shards)
    @stateful.rule(place=st.floats(0.0, 0.999))
    def lose_a_block(self, place: float) -> None:
        paths = sorted((self.out / "shards").glob("*.npz"))
        paths[int(place * len(paths))].unlink()

    @stateful.precondition(has_shards)
    @stateful.rule(place=st.floats(0.0, 0.999))
    def damage_a_block(self, place: float) -> None:
        paths = sorted((self.out / "shards").glob("*.npz"))
        path = paths[int(place * len(paths))]
        path.write_bytes(path.read_bytes()[:-20])

    @stateful.rule()
    def resume(self) -> None:
        before = _shards(self.out)
        code = _run(self.sources, self.out)
        if self.stored in (None, self.version):
            assert code == 0, self.out.with_suffix(".log").read_text()
            self.stored = self.version
            assert _shards(self.out) == _shards_of(self.version)
        else:
            assert code == 2
            assert "another" in self.out.with_suffix(".log").read_text()
            assert _shards(self.out) == before

    def teardown(self) -> None:
        self.root.cleanup()


@pytest.mark.slow
def test_versions_differ() -> None:
    shards = [_shards_of(version) for version in range(len(VERSIONS))]
    assert len(shards[0]) >= 3
    assert len({tuple(parts.items()) for parts in shards}) == len(VERSIONS)


@pytest.mark.slow
def test_a_stored_audit_is_that_of_one_version() -> None:
    stateful.run_state_machine_as_test(
        StoredAudit,
        settings=settings(
            max_examples=4, stateful_step_count=8, deadline=None, derandomize=True, database=None
        ),
    )
