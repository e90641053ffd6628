"""Scripts that cannot be tested: a line that says what to do, exit code 2, no changed file."""

import re
from pathlib import Path

import pytest
from scripts_to_check import PLAIN

from audit.commands import check_script
from audit.loop.sources import script as script_module
from audit.loop.sources.script import script

_CALL = PLAIN[PLAIN.index("model, optimizer, private_loader") : PLAIN.index("# after make_private")]
_LOADER = (
    "loader = DataLoader(TensorDataset(features[50:], labels[50:]), batch_size=32, shuffle=True)"
)
_STEP = """        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
"""


def _first(line: str) -> str:
    """The plain script with another line before its data."""
    return PLAIN.replace("torch.manual_seed(0)", line, 1)


def _with(old: str, new: str) -> str:
    assert old in PLAIN
    return PLAIN.replace(old, new, 1)


_BY_HAND = """from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
model = GradSampleModule(model)
optimizer = DPOptimizer(
    optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=32
)
private_loader = loader
"""
_STREAM = """class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(zip(features, labels))
    def __len__(self):
        return 200
loader = DataLoader(Stream(), batch_size=32)"""
_DISTRIBUTED = """import tempfile
import torch.distributed as dist
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
dist.init_process_group(
    "gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1
)
model = DifferentiallyPrivateDistributedDataParallel(model)
optimizer = torch"""
_SHARDED = """class FSDPLinear(nn.Sequential):
    pass
model = FSDPLinear(model)
optimizer = torch"""
_SPAWN = """import torch
def main(rank):
    pass
torch.multiprocessing.spawn(main, nprocs=2)
"""
_COPIES = "import multiprocessing\ndef main():\n{}\n{}"
_START = """processes = [multiprocessing.get_context("fork").Process(target=main) for _ in range(2)]
for process in processes:
    process.start()
for process in processes:
    process.join()
"""
_SECOND_CALL = """other = nn.Linear(6, 3)
other, _, _ = PrivacyEngine().make_private(
    module=other,
    optimizer=torch.optim.SGD(other.parameters(), lr=0.1),
    data_loader=test_loader,
    noise_multiplier=1.0,
    max_grad_norm=1.0,
)
"""
_INDENTED = "\n".join(f"    {line}" for line in PLAIN.splitlines()[2:])

# By name: the script, its arguments, and words of the line.
UNFIT: dict[str, tuple[str, tuple[str, ...], str]] = {
    "no engine": ("print('no engine')", (), "put the loop into a function and pass it to audit"),
    "optimizer by hand": (PLAIN.replace(_CALL, _BY_HAND), (), "built by hand: put the loop into"),
    "no loader": (_with("data_loader=loader", "data_loader=None"), (), "pass the loop to audit"),
    "cannot be indexed": (_with(_LOADER, _STREAM), (), "load a part of it into a list"),
    "CUDA": (_with("optimizer = torch", "model.cuda()\noptimizer = torch"), (), "use the CPU"),
    "no launcher": (_first("import os\nos.environ['LOCAL_RANK']"), (), "loop in one process"),
    "no rendezvous": (
        _first("import torch.distributed\ntorch.distributed.init_process_group('gloo')"),
        (),
        "a distributed script: run the same loop in one process",
    ),
    "DDP": (_with("optimizer = torch", _DISTRIBUTED), (), "distributed module: run the same loop"),
    "FSDP": (_with("optimizer = torch", _SHARDED), (), "distributed module: run the same loop"),
    "error": (_first("1 / 0"), (), "must run up to make_private, got ZeroDivisionError"),
    "syntax": ("def f(:", (), "SyntaxError: invalid syntax"),
    "no noise": (_with("    noise_multiplier=1.0,\n", ""), (), "TypeError: .*noise_multiplier"),
    "exit code": (_first("print('no data')\nraise SystemExit(3)"), (), "exit with code 3: no data"),
    "exit message": (_first("import sys\nsys.exit('give a\\nfile')"), (), "message 'give a file'"),
    "early exit": (_first("import sys\nsys.exit()"), (), "got none before its end by sys.exit"),
    "killed": (_first("import os\nos._exit(0)"), (), "exit code 0: leave out os._exit"),
    "crash": (_first("import ctypes\nctypes.string_at(0)"), (), "signal SIGSEGV"),
    "wrong arguments": (PLAIN, ("--epoch", "x"), "code 2: train.py: error: argument --epochs"),
    "missing file": (_first("open('data.csv')"), (), r"'data.csv' \(the script runs in the folder"),
    "question": (_first("input('Which data? ')"), (), "let the script take it as an argument"),
    "starts training": (_SPAWN, (), "must train in one process, got processes that it starts"),
    "trains in copies": (_COPIES.format(_INDENTED, _START), (), "in its first process, got"),
    "works in copies": (_COPIES.format("    pass", _START), (), "got none, and processes that it"),
    "leaves a process": ("import os, time\nif os.fork() == 0:\n    time.sleep(99)", (), "got none"),
    "two engines": (
        _with("# after make_private", _SECOND_CALL),
        (),
        "second call before the first step: leave one of them out",
    ),
    "catches everything": (
        _with("args.epochs)", "10**4)").replace(
            _STEP,
            "        try:\n"
            + "".join(f"    {line}\n" for line in _STEP.splitlines())
            + "        except:\n            pass\n",
        ),
        (),
        "write except Exception in place of except",
    ),
}
_OVERWRITES = "with open('notes.txt', 'w') as file:\n    file.write('overwritten')\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    return tmp_path


def refusal(folder: Path, text: str, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The line that the command prints for a script which overwrites a file."""
    (folder / "train.py").write_text(_OVERWRITES + text)
    code = check_script.main([*words])
    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert (folder / "notes.txt").read_text() == "mine"
    assert sorted(path.name for path in folder.iterdir()) == ["notes.txt", "train.py"]
    return printed.err


@pytest.mark.thorough
@pytest.mark.thin(26)
@pytest.mark.parametrize("name", UNFIT)
def test_one_line_says_what_to_do(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text, arguments, words = UNFIT[name]
    line = refusal(folder, text, capsys, "train.py", *arguments)
    assert re.search(words, line), line
    assert "train.py must" in line


@pytest.mark.thorough
def test_a_script_has_one_thread(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # With more, a copy of the process waited for threads that it does not have.
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    shown = "raise ValueError(f'threads: {torch.get_num_threads()}')"
    line = refusal(folder, _first(f"torch.set_num_threads(4)\n{shown}"), capsys, "train.py")
    assert "threads: 1" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        _first("while True:\n    pass"),
        _first("while True:\n    try:\n        pass\n    except:\n        pass"),
        _with("    for x, y in private_loader:", "    while True:\n        continue"),
    ],
    ids=["before make_private", "caught", "before the first step"],
)
def test_a_script_that_runs_forever_is_ended(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    line = refusal(folder, text, capsys, "--cpu-seconds", "60", "train.py")
    assert "its first private step within 10 CPU seconds" in line
    assert "--cpu-seconds" in line


@pytest.mark.slow
def test_a_script_that_waits_is_ended(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_module, "IDLE_SECONDS", 3.0)
    line = refusal(folder, _first("import time\ntime.sleep(10**6)"), capsys, "train.py")
    assert "must go on, got a script that waits" in line


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rerun", "fork"])
def test_megabytes_of_output_are_not_printed(
    folder: Path, capfd: pytest.CaptureFixture[str], mode: str
) -> None:
    loud = _with("        # after step", "        print('x' * 2_000_000)")
    (folder / "train.py").write_text(loud)
    assert script("train.py", mode=mode).exit_code == 0
    printed = capfd.readouterr()
    assert printed.out + printed.err == ""


@pytest.mark.slow
def test_steps_before_an_error_are_tested(folder: Path) -> None:
    # Without a recorded step, some versions of the accountant cannot compute an epsilon.
    text = _with("optimizer.step()", "optimizer.original_optimizer.step()")
    text = text.replace("    print(epoch", "    raise ValueError('no epsilon')\n    print(epoch")
    (folder / "train.py").write_text(text)
    result = script("train.py")
    assert result.exit_code == 1
    assert result.report.steps == 4
    assert "the script then fails: ValueError: no epsilon" in str(result)
