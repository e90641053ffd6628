"""The digest that binds stored trials to the code that played them."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from audit.game import binding
from audit.game.binding import digest_of_code
from audit.game.reachable_code import ReachableCode
from audit.game.sources import Sources

ROOT = Path(__file__).parents[2]
PACKAGES = ("audit", "canaries", "threat_models")

# Changes of code that a trial can reach: file, text, replacement.
REACHED = [
    (
        "audit/upper_bounds/reduced.py",
        "return repetitions.log_phi",
        "return 3 * repetitions.log_phi",
    ),
    ("audit/upper_bounds/reduced.py", "_LOG_ROOT_TWO_PI = ", "_LOG_ROOT_TWO_PI = 1 + "),
    ("audit/simulation.py", "if on_all:", "if not on_all:"),
    ("audit/simulation.py", "better = highest >", "better = highest >="),
    (
        "audit/simulation.py",
        'sampler: str = "gaussian-process"',
        'sampler: str = "other"',
    ),
    ("audit/simulation.py", "views: int = 1,", "views: int = 2,"),
    ("audit/simulation.py", "_MAX_AHEAD = 16", "_MAX_AHEAD = 8"),
    ("audit/protocols/adaptive.py", "SHARPNESS = 2.0", "SHARPNESS = 2.5"),
    ("audit/dpsgd/layers.py", "return [MaxPool(kernel,", "return [MaxPool(stride,"),
    ("audit/dpsgd/layers.py", "return x.view(runs, -1,", "return 2 * x.view(runs, -1,"),
    ("audit/dpsgd/gradients.py", "    @torch.no_grad()\n    def _floats_of", "    def _floats_of"),
    ("audit/dpsgd/noise.py", "_GROUP = 16", "_GROUP = 32"),
    ("audit/dpsgd/_noise.c", "round < 10", "round < 9"),
    ("audit/dpsgd/_exponential.h", "1.0f / 720", "1.0f / 721"),
    ("audit/dpsgd/streams.py", "0x9E3779B97F4A7C15", "0x9E3779B97F4A7C17"),
    ("audit/dpsgd/reference.py", "outcomes = RunOutcomes.empty(len(batch))", "outcomes = None"),
    (
        "audit/repetitions/truncated.py",
        "return rng.choice(self.most + 1,",
        "return rng.choice(self.most,",
    ),
    ("audit/repetitions/truncated_negative_binomial.py", "(1.0 - uniform)", "uniform"),
    ("audit/game/setup.py", "_MIN_ACCEPTED = 200, 60.0", "_MIN_ACCEPTED = 200, 70.0"),
    ("audit/game/play.py", "_WORK_OF_A_BLOCK = 1 << 22", "_WORK_OF_A_BLOCK = 1 << 21"),
    ("audit/accounting/calibration.py", "return used - epsilon", "return used - 2 * epsilon"),
    (
        "threat_models/scores.py",
        "return -observation.loss(self.canary",
        "return observation.loss(self.canary",
    ),
    ("threat_models/datasets/loading.py", '">u4", count=dimensions)', '"<u4", count=dimensions)'),
]

# Changes that no trial depends on.
ELSEWHERE = [
    ("audit/tuning/study.py", "class Study:\n", "# A comment.\nclass Study:\n"),
    ("audit/tuning/study.py", '_PUBLIC = "public"', '_PUBLIC = "secret"'),
    (
        "audit/simulation.py",
        "simulated tunings in every view; ",
        "tunings in all views; ",
    ),
    (
        "audit/simulation.py",
        "score must be a number for every run",
        "all scores must be numbers",
    ),
    (
        "audit/simulation.py",
        "index of the best run; -1 if",
        "the best run's index; -1 if",
    ),
    (
        "audit/simulation.py",
        "@dataclass(frozen=True)\nclass Winners:",
        "class Unused:\n    x = 1\n\n\n@dataclass(frozen=True)\nclass Winners:",
    ),
    (
        "audit/simulation.py",
        "    for places in index_batches(total):\n        tuning =",
        "    for places in index_batches(\n        total\n    ):\n        # Why.\n        tuning =",
    ),
    (
        "audit/dpsgd/noise.py",
        "# The extension receives addresses only",
        "# Only addresses are passed",
    ),
    ("audit/dpsgd/_convolutional.c", "/* Floats per vector,", "/* How many floats,"),
    ("audit/dpsgd/_noise.c", "INLINE void philox(", "INLINE void  philox("),
    ("audit/game/play.py", 'device: str = "cpu"', 'device: "str | None" = "cpu"'),
    ("audit/game/settings.py", "names = [each.name for each in fields(cls)]", "names = []"),
    ("audit/game/play.py", "_SECONDS_OF_BOUNDS = 15.0", "_SECONDS_OF_BOUNDS = 16.0"),
    (
        "audit/game/play.py",
        "be at least the {runs:.3g} runs that",
        "exceed the {runs:.3g} runs that",
    ),
    (
        "audit/game/store.py",
        '_CONFIG, _SHARDS, _LOCK = "config.json"',
        '_CONFIG, _SHARDS, _LOCK = "c.json"',
    ),
    ("audit/game/workers.py", "        return played\n", "        return dict(played)\n"),
    ("audit/upper_bounds/reduced.py", "_delta, delta), about=", "_delta, 2 * delta), about="),
    ("audit/upper_bounds/tight.py", "return sides[0], sides[1]", "return sides[1], sides[0]"),
    ("audit/report/text.py", "up=False, places=places", "up=True, places=places"),
    ("audit/lower_bounds/estimators.py", "return function(*args, **kwargs)", "return None"),
    ("audit/certificate/numbers.py", "up=True, digits=digits", "up=False, digits=digits"),
    ("audit/commands/run.py", "return 128 + number", "return 127 + number"),
    ("audit/console.py", "import ", "import  "),
]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sources")
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package,
            root / package,
            ignore=lambda folder, names: [
                name
                for name in names
                if not (name.endswith((".py", ".c", ".h")) or Path(folder, name).is_dir())
                or name == "__pycache__"
            ],
        )
    return root


@pytest.fixture(scope="module")
def unchanged(copied: Path) -> str:
    return digest_of_code(copied)


def digest_after(root: Path, file: str, text: str, replacement: str) -> str:
    path = root / file
    before = path.read_text()
    assert text in before
    try:
        path.write_text(before.replace(text, replacement, 1))
        return digest_of_code(root)
    finally:
        path.write_text(before)


def ids(changes: list[tuple[str, str, str]]) -> list[str]:
    return [f"{file}-{text[:20].strip()}" for file, text, _ in changes]


@pytest.mark.thorough
@pytest.mark.thin(4)
@pytest.mark.parametrize("change", REACHED, ids=ids(REACHED))
def test_a_change_of_code_that_a_trial_reaches_changes_the_digest(
    copied: Path, unchanged: str, change: tuple[str, str, str]
) -> None:
    assert digest_after(copied, *change) != unchanged


@pytest.mark.slow
@pytest.mark.thin(4)
@pytest.mark.parametrize("change", ELSEWHERE, ids=ids(ELSEWHERE))
def test_another_change_does_not_change_the_digest(
    copied: Path, unchanged: str, change: tuple[str, str, str]
) -> None:
    assert digest_after(copied, *change) == unchanged


def reached(root: Path, files: dict[str, str], start: str = "play") -> set[str]:
    """The definitions that `start` in the module `p.start` reaches in a small package."""
    for name, text in files.items():
        path = root / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    (root / "p" / "__init__.py").touch()
    code = ReachableCode(Sources(root, ["p"]))
    code.add("p.start", start)
    return {name.removeprefix("p.") for name in code.digests}


def test_names_are_followed_through_imports(tmp_path: Path) -> None:
    files = {
        "start.py": """
            from p import middle
            from p.middle import again as other, Unused
            def play():
                from p.local import here
                middle.direct()
                other()
                here()
            """,
        "middle.py": """
            from p.end import again
            from p.stars import *
            def direct(): return starred()
            def indirect(): pass
            """,
        "end.py": """
            def again(): return LIMIT
            LIMIT, OTHER = 1, 2
            UNUSED = 3
            """,
        "stars.py": "def starred(): pass",
        "local.py": "def here(): pass\ndef there(): pass",
    }
    assert reached(tmp_path, files) == {
        *("start:play", "middle:direct", "end:again", "end:LIMIT, OTHER"),
        *("stars:starred", "local:here"),
    }


def test_methods_are_found_by_name_in_the_classes_that_code_names(tmp_path: Path) -> None:
    files = {
        "start.py": """
            from p.kinds import First, Second
            def play(name):
                make = {"a": First, "b": Second}[name]
                thing = make()
                getattr(thing, "quoted")()
                return thing.run()
            """,
        "kinds.py": """
            import lib
            from abc import ABC
            class Base(ABC):
                def inherited(self): pass
                def run(self): return self.inherited()
            class First(Base):
                def quoted(self): pass
                def unused(self): pass
            class Second(Base):
                def __len__(self): return 0
                def run(self): return Foreign
            class Third(Base):
                def run(self): pass
            class Foreign(lib.Base):
                def called_by_the_library(self): pass
            """,
    }
    assert reached(tmp_path, files) == {
        *("start:play", "kinds:Base", "kinds:Base.inherited", "kinds:Base.run", "kinds:First"),
        *("kinds:First.quoted", "kinds:Second", "kinds:Second.__len__", "kinds:Second.run"),
        *("kinds:Foreign", "kinds:Foreign.called_by_the_library"),
    }


def test_a_local_variable_with_the_name_of_an_import_may_be_any_object(tmp_path: Path) -> None:
    files = {
        "start.py": """
            import numpy as np
            from p.kinds import Kind
            def play(np):
                return Kind, np.run()
            """,
        "kinds.py": "class Kind:\n    def run(self): pass",
    }
    assert "kinds:Kind.run" in reached(tmp_path, files)


@pytest.mark.parametrize(
    ("registry", "use"),
    [
        ("_KNOWN = {}\ndef register(f):\n    _KNOWN[f.__name__] = f\n    return f", "@register"),
        ("_KNOWN = {}\ndef register(n):\n    return _KNOWN.setdefault(n, n)", "@register('x')"),
        ("_KNOWN = []\ndef _add(f): _KNOWN.append(f)\ndef register(f): _add(f)", "@register"),
        ("class Table:\n    def add(self, f): pass\n_KNOWN = register = Table()", "@register.add"),
        ("_KNOWN = None\ndef register(f):\n    global _KNOWN\n    _KNOWN = f", "@register"),
    ],
)
def test_registered_functions_are_reached_with_their_registry(
    tmp_path: Path, registry: str, use: str
) -> None:
    files = {
        "start.py": "from p.table import find\ndef play(): return find()",
        "table.py": f"{registry}\ndef find():\n    return _KNOWN",
        "entry.py": f"from p.table import register\n{use}\ndef entry(): return helper()\n"
        "def helper(): pass\n@other\ndef unrelated(): pass",
    }
    names = reached(tmp_path, files)
    assert {"entry:entry", "entry:helper"} <= names
    assert "entry:unrelated" not in names
    files["table.py"] = f"{registry}\ndef find(): pass"
    assert "entry:entry" not in reached(tmp_path, files)


@pytest.mark.parametrize("look", ["Base.__subclasses__()", "Base"])
def test_a_class_that_sees_its_subclasses_brings_them(tmp_path: Path, look: str) -> None:
    hook = "def __init_subclass__(cls): pass" if look == "Base" else "pass"
    files = {
        "start.py": f"from p.base import Base\ndef play(): return {look}",
        "base.py": f"class Base:\n    {hook}",
        "sub.py": "from p.base import Base\nclass Sub(Base): pass\nclass Other: pass",
        "subsub.py": "from p import sub\nclass SubSub(sub.Sub): pass",
    }
    names = reached(tmp_path, files)
    assert {"sub:Sub", "subsub:SubSub"} <= names
    assert "sub:Other" not in names


def test_what_a_module_executes_belongs_to_its_functions(tmp_path: Path) -> None:
    files = {
        "start.py": """
            import lib
            lib.configure()
            if True:
                OPTION = value()
            def play(): pass
            def value(): return 1
            """
    }
    assert reached(tmp_path, files) == {"start:play", "start:executed at import", "start:value"}


@pytest.mark.thorough
def test_code_of_trials_does_not_compose_names_of_attributes() -> None:
    """The digest finds names in quotes only."""
    sources = Sources(ROOT, PACKAGES)
    code = ReachableCode(sources)
    code.add("audit.game.play", "play")
    modules = [sources.find(name) for name in {name.partition(":")[0] for name in code.digests}]
    for text in [module.text for module in modules if module is not None]:
        for node in ast.walk(ast.parse(text)) if b"getattr(" in text else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
                assert not isinstance(node.args[1], ast.JoinedStr | ast.BinOp), ast.unparse(node)


@pytest.mark.slow
def test_the_digest_is_the_same_in_every_process() -> None:
    command = "from audit.game.binding import digest_of_code; print(digest_of_code())"
    digests = {
        subprocess.run(
            [sys.executable, "-c", command],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert digests == {digest_of_code() + "\n"}


def test_most_of_the_package_is_not_reached() -> None:
    sources = Sources(ROOT, PACKAGES)
    code = ReachableCode(sources)
    code.add("audit.game.play", "play")
    modules = {name.partition(":")[0] for name in code.digests}
    assert len(modules) < sum(1 for _ in sources.all_of_project()) / 2
    assert not any("report" in name or "tuning" in name for name in modules)


@pytest.mark.thorough
def test_a_plug_in_is_bound_with_the_functions_that_it_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = "from my_helpers import half\ndef score(x):\n    {}return half(x)\ndef other(): pass\n"
    helpers = "def half(x): return x / {}\ndef unused(): return {}\n"
    (tmp_path / "my_helpers.py").write_text(helpers.format(2, 0))
    (tmp_path / "my_score.py").write_text(score.format(""))
    monkeypatch.syspath_prepend(tmp_path)

    def digests() -> tuple[str, str]:
        binding._digests_of_code.cache_clear()
        code, of_plug_ins = binding._digests_of_code(("my_score.score",))
        return code, of_plug_ins["my_score.score"]

    before = digests()
    (tmp_path / "my_score.py").write_text(score.format('"""Words."""\n    # More.\n    '))
    (tmp_path / "my_helpers.py").write_text(helpers.format(2, 1))
    assert digests() == before
    (tmp_path / "my_helpers.py").write_text(helpers.format(3, 1))
    after = digests()
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_a_plug_in_from_an_installed_library_is_bound_to_its_source() -> None:
    _, digests = binding._digests_of_code(("torch.nn.Linear", "statistics.mean"))
    assert len(set(digests.values())) == 2


@pytest.mark.slow
def test_a_stored_audit_is_resumed_after_a_comment_and_refused_after_a_change(
    copied: Path, tmp_path: Path
) -> None:
    out = tmp_path / "audit"
    options = ["--protocol", "subset:0.5", "--trials", "400", "--repeats", "2", "--epsilon", "1"]
    command = [sys.executable, "-m", "audit.run", *options, "--out", str(out)]

    def run(*change: str) -> subprocess.CompletedProcess[str]:
        file, text, replacement = change
        path = copied / file
        before = path.read_text()
        try:
            path.write_text(before.replace(text, replacement, 1))
            env = {**os.environ, "PYTHONPATH": str(copied)}
            return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
        finally:
            path.write_text(before)

    assert run("audit/run.py", "", "").returncode == 0
    shards = {path: path.read_bytes() for path in sorted((out / "shards").iterdir())}
    lost = next(path for path in shards if "repeat1" in path.name)
    lost.unlink()
    refused = run(*REACHED[0])
    assert refused.returncode == 2
    assert "another version of the code" in refused.stderr
    assert not lost.exists()
    assert run(*ELSEWHERE[0]).returncode == 0
    assert {path: path.read_bytes() for path in shards} == shards
