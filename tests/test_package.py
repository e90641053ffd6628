"""The wheel holds the packages, and the library floor imports without torch."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_wheel_holds_every_module(tmp_path):
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".*", "runs", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path)]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    packages = ("audit", "canaries", "threat_models")
    modules = {
        path.relative_to(ROOT).as_posix()
        for name in packages
        for path in (ROOT / name).rglob("*.py")
    }
    assert modules <= inside
    assert {f"{name}/py.typed" for name in packages} <= inside
    assert not any(name.startswith(("tests/", "benchmarks/", "notebooks/")) for name in inside)


def test_library_floor_needs_no_torch():
    script = (
        "import sys; from audit import repetitions, accounting, upper_bounds, lower_bounds; "
        "import audit.config, audit.dpsgd, threat_models, canaries; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_checks_import_nothing_but_the_standard_library():
    # They lie below every package: an import of ours here would close a circle.
    script = (
        "import sys; before = set(sys.modules); import audit.checks; "
        "new = set(sys.modules) - before; "
        "print(*(name for name in new if name.split('.')[0] not in sys.stdlib_module_names))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert set(done.stdout.split()) == {"audit", "audit.checks"}
