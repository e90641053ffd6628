"""The wheel contains all packages, and the library needs only numpy and scipy."""

import ast
import contextlib
import functools
import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import audit
from audit import __main__ as commands
from audit import console, errors, run

ROOT = Path(__file__).parents[1]
HEAVY = ("joblib", "matplotlib", "opacus", "pandas", "seaborn", "sklearn", "statsmodels", "torch")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    patterns = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "*.so")

    def ignored(folder: Any, names: Any) -> Any:
        results = [name for name in names if Path(folder, name).is_dir()]
        return patterns(folder, names) | set(results if Path(folder).name == "runs" else [])

    shutil.copytree(ROOT, source, ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    with contextlib.suppress(metadata.PackageNotFoundError):
        # Without isolation, pip need not download setuptools, which would double the time.
        if int(metadata.version("setuptools").split(".")[0]) >= 77:
            command.append("--no-build-isolation")
    # The compiled modules are optional; without a compiler the build is faster.
    environment = {**os.environ, "CC": "false"}
    subprocess.run([*command, str(source)], check=True, capture_output=True, env=environment)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, wheel: Any) -> Any:
    """The interpreter of an environment with only numpy, scipy and the wheel."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in ("numpy", "scipy"):
        installed = Path(importlib.util.find_spec(name).origin).parents[1]
        for part in (name, f"{name}.libs"):
            if (installed / part).exists():
                (site / part).symlink_to(installed / part)
    zipfile.ZipFile(wheel).extractall(site)  # as `pip install --no-deps` does
    return folder / "bin" / "python"


def python(bare: Any, *arguments: Any) -> Any:
    command = [str(bare), "-I", *arguments]  # -I ignores this folder and PYTHONPATH
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_wheel_contains_every_module(wheel: Any) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    packages = ("audit", "canaries", "threat_models")
    modules = {
        path.relative_to(ROOT).as_posix()
        for name in packages
        for path in (ROOT / name).rglob("*.py")
    }
    assert modules <= inside
    assert {f"{name}/py.typed" for name in packages} <= inside
    presets = {f"audit/presets/{path.name}" for path in (ROOT / "runs").glob("*.toml")}
    assert presets == {name for name in inside if name.startswith("audit/presets/")}
    not_shipped = ("tests/", "benchmarks/", "notebooks/", "studies/")
    assert not any(name.startswith(not_shipped) for name in inside)
    assert any(name.endswith("licenses/LICENSE") for name in inside)
    assert wheel.name.startswith(f"dp_tuning_audit-{audit.__version__}-")


def relative(text: str) -> list[str]:
    return re.findall(r"\]\((?!https?:)([^)]+)\)", text)


def test_the_readme_on_an_index_has_no_relative_links(wheel: Any) -> None:
    (name,) = (one for one in zipfile.ZipFile(wheel).namelist() if one.endswith("/METADATA"))
    metadata_of_wheel = zipfile.ZipFile(wheel).read(name).decode()
    assert "Description-Content-Type: text/markdown" in metadata_of_wheel
    text = metadata_of_wheel.partition("\n\n")[2]
    assert text.startswith("# dp-tuning-audit\n")
    assert relative(text) == []
    # With the address of the repository, every link leads to a file of this version.
    setup = runpy.run_path(str(ROOT / "setup.py"))
    readme = (ROOT / "README.md").read_text()
    absolute = setup["long_description"](readme, "https://example.org/a/b", "1.2")
    assert "](https://example.org/a/b/blob/v1.2/docs/glossary.md)" in absolute
    assert "](https://example.org/a/b/raw/v1.2/docs/overview.png)" in absolute
    assert relative(absolute) == []
    assert all((ROOT / path.partition("#")[0]).exists() for path in relative(readme))


def test_the_lowest_versions_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tested = (ROOT / ".ci" / "lowest.txt").read_text().splitlines()[1:]
    assert [line.replace("==", ">=") for line in tested] == project["dependencies"]


def test_the_version_is_the_same_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [audit.__version__]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"[{audit.__version__}]" in changelog or f"To be {audit.__version__}." in changelog


def test_the_accountant_needs_only_numpy_and_scipy(bare: Any) -> None:
    out = python(bare, "-m", "audit.bounds", "--mu", "0.24721", "--delta", "1e-5", "--json")
    rows = {row["name"]: row["epsilon"] for row in json.loads(out)["bounds"]}
    assert rows["tight"] == pytest.approx(1.4488, abs=1e-4)


def test_the_library_needs_only_numpy_and_scipy(bare: Any) -> None:
    script = """
import importlib
import importlib.util
from audit import lower_bounds
from audit.integrations import opacus
assert not any(importlib.util.find_spec(name) for name in %r)
scores = list(range(1000))
print(lower_bounds.lower_bound(out_scores=scores, in_scores=[s + 900 for s in scores]).epsilon)
class Recorded:
    history = [(1.0, 0.01, 500)]
print(opacus.tuning_epsilon(Recorded(), "tnb:0,0.01", 1e-5))
"""
    low, cost = map(float, python(bare, "-c", script % (HEAVY,)).split())
    assert low > 3.0
    assert cost == pytest.approx(2.01, abs=2e-3)


@pytest.mark.thorough
def test_the_library_imports_no_heavy_package() -> None:
    # Even if everything is installed, slow imports happen only where they are used.
    script = (
        "import sys; from audit import repetitions, accounting, upper_bounds, lower_bounds; "
        "import audit.bounds, audit.run, audit.compare, audit.dpsgd, audit.integrations.opacus; "
        "import threat_models, canaries; "
        f"print(*({HEAVY} & sys.modules.keys()))"
    ).replace(str(HEAVY), str(set(HEAVY)))
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == []


def test_checks_import_only_the_standard_library() -> None:
    # Every package imports the checks, so another import here could be circular.
    script = (
        "import sys; before = set(sys.modules); import audit.checks; "
        "new = set(sys.modules) - before; "
        "print(*(name for name in new if name.split('.')[0] not in sys.stdlib_module_names))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    expected = {"audit", "audit.checks", "audit.errors", "audit.numbers_from_text", "audit.version"}
    assert set(done.stdout.split()) == expected


def _imports() -> dict[str, tuple[set[str], set[str]]]:
    """For every module, the project's modules that it imports: all, and those at its own import.

    `from package import name` counts as an import of the package, or of the submodule of this name.
    Imports for type checkers alone do not count.
    """
    packages = ("audit", "canaries", "threat_models")
    paths = [path for name in packages for path in (ROOT / name).rglob("*.py")]
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }

    def of_statement(statement: ast.AST) -> set[str]:
        if isinstance(statement, ast.Import):
            return {alias.name for alias in statement.names}
        if not isinstance(statement, ast.ImportFrom):
            return set()
        names = [f"{statement.module}.{alias.name}" for alias in statement.names]
        return {name if name in modules else str(statement.module) for name in names}

    def of_tree(statement: ast.AST) -> set[str]:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            return set()
        inner = [of_tree(part) for part in ast.iter_child_nodes(statement)]
        return of_statement(statement).union(*inner)

    imports = {}
    for name, path in modules.items():
        tree = ast.parse(path.read_text())
        at_import = set().union(*(of_statement(statement) for statement in tree.body))
        names = modules.keys() - {name}
        imports[name] = (of_tree(tree) & names, at_import & names)
    return imports


def test_one_concept_needs_few_modules() -> None:
    # The limits on files and imports are the values of today, with 25 files of packages. Merging
    # small modules removes imports but changes their mean less: 358 files had 1,924 imports, 5.37
    # each, 295 had 1,648, 5.59 each, and 247 have 1,345, 5.45 each. So the total is limited.
    imports = _imports()
    total = sum(len(imported) for imported, _ in imports.values())
    assert len(imports) <= 247
    assert total <= 1_345

    @functools.cache
    def depth(name: str) -> int:
        return 1 + max((depth(imported) for imported in imports[name][1]), default=0)

    # A circle would be a RecursionError.
    assert max(map(depth, imports)) <= 20


_WITHOUT_MODULE = {"check", "protocols", "solve"}


def test_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main([]) == 0
    listed = capsys.readouterr().out
    for name in commands.COMMANDS:
        assert f"\n  {name} " in listed
    # The list contains every module of the package that runs as a command.
    modules = {
        path.stem
        for path in (ROOT / "audit").glob("[!_]*.py")
        if "console.run(main)" in path.read_text()
    }
    packages = {path.parent.name for path in (ROOT / "audit").glob("*/__main__.py")}
    # Modules of these names would hide the function audit.check and the package audit.protocols.
    assert set(commands.COMMANDS) == modules | packages | _WITHOUT_MODULE


@pytest.mark.slow
def test_the_console_script_runs_the_same_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["bounds", "--mu", "0.1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cost"]["epsilon"] > 0.0
    assert commands.main(["bound"]) == 2
    assert "did you mean 'bounds'?" in capsys.readouterr().err


def test_completion_lists_the_options_of_every_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        commands.main(["--print-completion", "bash"])
    script = capsys.readouterr().out
    (tmp_path / "completion").write_text(
        script
        + "COMP_WORDS=(dp-tuning-audit bounds --targ); COMP_CWORD=2\n"
        + "_shtab_dp_tuning_audit; echo ${COMPREPLY[@]}\n"
    )
    command = ["bash", str(tmp_path / "completion")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "--target-epsilon\n"
    assert commands.main(["--print-completion", "zhs"]) == 2
    assert "did you mean 'zsh'?" in capsys.readouterr().err


def test_canaries_and_threat_models_are_attributes_of_the_package() -> None:
    import canaries
    import threat_models

    assert audit.canaries is canaries
    assert audit.threat_models is threat_models


@pytest.mark.parametrize("name", ["audit/data.csv", "audit/__init__.py"])
def test_a_folder_that_hides_the_package_is_one_line(tmp_path: Path, name: str) -> None:
    """As an editable installation does, the search continues in the package's own folder.

    Without PYTHONPATH and site-packages, which would find an installed wheel first.
    """
    (tmp_path / "audit").mkdir()
    (tmp_path / name).touch()
    script = (
        f"import audit, runpy; audit.__path__.append({str(ROOT / 'audit')!r}); "
        "runpy.run_module('audit.bounds', run_name='__main__')"
    )
    command = [sys.executable, "-E", "-S", "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch("(?s)error: the current folder must not contain .*\n", done.stderr)


def test_an_invalid_build_date_is_one_line() -> None:
    command = [sys.executable, "-m", "audit.bounds", "--mu", "1"]
    given = os.environ | {"SOURCE_DATE_EPOCH": "x", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=given)
    assert done.returncode == 2
    assert done.stderr == "error: SOURCE_DATE_EPOCH must be a whole number, got 'x'\n"


def test_presets_are_found_by_name_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (config,) = run.parse(["--preset", "small-etcv"])
    assert Path(config.out) == Path("runs/small-etcv")
    with pytest.raises(ValueError, match="did you mean 'small-etcv'"):
        run.parse(["--preset", "smal-etcv"])
    assert run.main(["--list-presets"]) == 0
    listed = capsys.readouterr().out.splitlines()
    # Each line ends with the run time, in brackets.
    assert all(line.rstrip(".").endswith(")") for line in listed)
    assert not any(line.startswith("reproduce-") for line in listed)
    for other in (["--epsilon", "1"], ["--preset", "small-etcv"], ["--json"], ["--trials", "9"]):
        for argv in (["--list-presets", *other], [*other, "--list-presets"]):
            with pytest.raises(SystemExit) as ended:
                run.main(argv)
            assert ended.value.code == 2
            named = f"--list-presets must be given alone, got {other[0]} ("
            assert named in capsys.readouterr().err


def test_every_command_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    expected = f"dp-tuning-audit {audit.__version__}\n"
    command = [sys.executable, "-m", "audit", "--version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == expected
    for name in commands.COMMANDS:
        with pytest.raises(SystemExit):
            commands.main_of(name)(["--version"])
        assert capsys.readouterr().out == expected


@pytest.mark.parametrize("command", [*commands.COMMANDS, "run --train x.y"])
def test_help_fits_a_screen_and_shows_examples(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(console.WIDTH))
    name, *options = command.split()
    with pytest.raises(SystemExit):
        commands.main_of(name)([*options, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 52
    assert max(map(len, lines)) <= console.WIDTH
    program = f"python -m audit{' ' if name in _WITHOUT_MODULE else '.'}{name}"
    assert lines[0] == f"usage: {program}{' --train' * bool(options)} [options]"
    assert "examples:" in lines


@pytest.mark.parametrize(
    ("started", "words"),
    [
        ("/usr/bin/dp-tuning-audit", "dp-tuning-audit "),
        ("dp-tuning-audit.exe", "dp-tuning-audit "),
        (str(ROOT / "audit" / "__main__.py"), "python -m audit "),
        (str(ROOT / "audit" / "run.py"), "python -m audit."),
        (str(ROOT / "audit" / "report" / "__main__.py"), "python -m audit."),
    ],
)
def test_help_and_errors_name_the_command_as_it_was_started(
    started: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [started])
    for command in (*commands.COMMANDS, "run --train x.y"):
        name, *options = command.split()
        with pytest.raises(SystemExit):
            commands.main_of(name)([*options, "--help"])
        text = capsys.readouterr().out
        own = words.replace("audit.", "audit ") if name in _WITHOUT_MODULE else words
        title = f"{own}{name}{' --train' * bool(options)}"
        assert text.startswith(f"usage: {title} [options]\n")
        (example, *_) = text.partition("examples:\n")[2].splitlines()
        assert f"{example} ".startswith(f"  {own}{name} ")
        with pytest.raises(SystemExit):
            commands.main_of(name)([*options, "--unknown"])
        assert f"(see {title} --help)" in capsys.readouterr().err
    assert commands.main([]) == 0
    program = words.rstrip(" .")
    listed = capsys.readouterr().out
    assert listed.startswith(f"usage: {program} [options]\n")
    assert f"\n{program} NAME --help shows" in listed


@pytest.mark.slow
def test_a_script_is_not_started_without_the_packages_of_its_test(
    bare: Any, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')\nimport opacus\n")
    command = [str(bare), "-I", "-m", "audit", "check", "train.py"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    missing = errors.missing_extra(["joblib", "opacus", "torch"], "game")
    assert " ".join(done.stderr.split()) == f"error: {missing}"
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("command", "packages", "extra"),
    [
        ("bounds --mu 1 --plot x.png", "matplotlib, seaborn, tqdm", "game"),
        ("run", "joblib, matplotlib, pandas, seaborn, torch, tqdm", "game"),
        (
            "run --backend dask",
            "joblib, matplotlib, pandas, seaborn, torch, tqdm, distributed",
            "game,dask",
        ),
        ("compare x", "matplotlib, pandas, seaborn", "game"),
        ("app", "panel", "app"),
        ("cost x.parquet", "pandas, pyarrow", "trackers"),
        ("cost sqlite:///x.db", "optuna", "optuna"),
        ("--print-completion bash", "shtab", "completion"),
    ],
)
def test_all_missing_packages_are_named_at_once_before_any_work(
    bare: Any, tmp_path: Path, command: str, packages: str, extra: str
) -> None:
    (tmp_path / "x.parquet").touch()
    words = [str(bare), "-I", "-m", "audit", *command.split()]
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    expected = f"error: {packages} must be installed: pip install 'dp-tuning-audit[{extra}]'"
    assert " ".join(done.stderr.split()) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]


@pytest.mark.parametrize("name", ["reproduce", "coverage_study"])
def test_studies_need_a_checkout(bare: Path, name: str) -> None:
    command = [str(bare), "-I", "-m", "audit", name]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "run this command from a source checkout" in " ".join(done.stderr.split())
    listed = subprocess.run([*command[:-1]], check=False, capture_output=True, text=True).stdout
    assert "\n  bounds " in listed
    assert name not in listed


def test_every_module_has_a_layer() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (floors,) = (c for c in project["tool"]["importlinter"]["contracts"] if c["name"] == "floors")
    named = {module.strip() for layer in floors["layers"] for module in layer.split(":")}
    there = {
        f"audit.{path.stem}"
        for path in (ROOT / "audit").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert named - {"canaries", "studies", "threat_models"} == there - {"audit.__init__"}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "bounds", "verify", "compare", "app"])
def test_ctrl_c_while_a_command_is_loading_is_one_word(command: str) -> None:
    """At whatever import: the command is stopped where it imports one of these modules."""
    for module in ("argparse", "audit.console", "audit.checks", "numpy", "scipy"):
        code = (
            "import os, runpy, signal, sys\n"
            "class Finder:\n"
            "    def find_spec(self, name, *_):\n"
            f"        if name == {module!r}:\n"
            "            os.kill(os.getpid(), signal.SIGINT)\n"
            "sys.meta_path.insert(0, Finder())\n"
            f"sys.argv = [{command!r}, '--help']\n"
            "[sys.modules.pop(name) for name in ('argparse',) if name in sys.modules]\n"
            f"runpy.run_module('audit.{command}', run_name='__main__')\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        if module in ("argparse", "audit.console", "audit.checks"):
            assert (done.returncode, done.stderr) == (130, "stopped\n"), module
        else:
            assert done.returncode in (0, 130)
            assert done.stderr in ("", "stopped\n")


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("JOBLIB_START_METHOD", "one of fork, spawn, forkserver, loky, loky_init_main"),
        ("LOKY_MAX_CPU_COUNT", "a whole number"),
    ],
)
def test_an_invalid_variable_of_the_environment_is_named(variable: str, words: str) -> None:
    given = os.environ | {variable: "junk", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "audit.run", "--list-presets"]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert " ".join(done.stderr.split()) == f"error: {variable} must be {words}, got 'junk'"


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("arguments", ["bounds --help", "run --help-all", "run --list-presets", ""])
def test_output_that_cannot_be_written_is_an_error(arguments: str) -> None:
    command = [sys.executable, "-m", "audit", *arguments.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"error: (output must be writable: )?.*No space left.*\n", done.stderr)


def test_the_files_for_a_code_host_say_that_they_were_not_tried() -> None:
    folder = ROOT / ".github"
    files = [*folder.rglob("*.md"), *folder.rglob("*.yml")]
    assert len(files) == 5
    for path in (*files, ROOT / "SECURITY.md", ROOT / "CODE_OF_CONDUCT.md"):
        text = path.read_text()
        assert re.search("could not be (tried here|run)", text), path
        assert "://" not in text, path
    tests = (folder / "workflows" / "tests.yml").read_text()
    assert "run: .ci/run" in tests
    assert all(f"{system}-latest" in tests for system in ("ubuntu", "macos", "windows"))
