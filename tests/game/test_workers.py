"""Processes, devices and clusters give the same bytes, and dead workers are replaced.

No GPU is needed: CUDA is simulated, or only named.
"""

import contextlib
import importlib.util
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import light_runs
import pytest
import torch
from fake_cuda import FakeCuda
from joblib.parallel import SequentialBackend

from audit import run
from audit.errors import InvalidInput, WorkerDied
from audit.game import setup, workers
from audit.game.play import Block
from audit.game.settings import AuditConfig, Place
from audit.processes import Devices

pytestmark = pytest.mark.usefixtures("quick_reports")

ROOT = Path(__file__).parents[2]
OPTIONS = ["--trials", "200", "--repeats", "2", "--epsilon", "4"]


def audit(out: Any, *options: Any) -> Any:
    command = [sys.executable, "-m", "audit.run", *OPTIONS, *options, "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("alone") / "audit"
    assert audit(out).returncode == 0
    return (out / "results.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--jobs", "2"),
        ("--devices", "cpu", "cpu"),
        pytest.param(
            ("--backend", "dask", "--jobs", "2"),
            marks=pytest.mark.skipif(
                not importlib.util.find_spec("distributed"), reason="extra dask is not installed"
            ),
        ),
        pytest.param(
            ("--backend", "ray", "--jobs", "2"),
            marks=pytest.mark.skipif(
                not importlib.util.find_spec("ray"), reason="extra ray is not installed"
            ),
        ),
    ],
    ids=["jobs", "devices", "dask", "ray"],
)
def test_any_workers_give_the_same_bytes(tmp_path: Path, expected: Any, options: Any) -> None:
    done = audit(tmp_path / "audit", *options)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "audit" / "results.csv").read_bytes() == expected


def test_an_audit_starts_the_processes_of_its_backend_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []

    class Counting(SequentialBackend):
        def configure(self, *args: Any, **settings: Any) -> Any:
            starts.append(1)
            return super().configure(*args, **settings)

    monkeypatch.setattr(workers, "_cluster", lambda place: contextlib.nullcontext())
    monkeypatch.setitem(joblib.parallel.BACKENDS, "counting", Counting)
    place = Place(tmp_path, 2, ("cpu",), "counting", "")
    blocks: Any = range(50)

    def play(block: Any, device: str) -> Any:
        return (block,)

    played = list(workers._played(place, play, "cpu", blocks))
    assert played == [(block, (block,)) for block in blocks]
    assert len(starts) == 1


class FakeRay:
    """Runs the calls of Ray in this process, each when its result is waited for."""

    def __init__(self, cpus: int = 1) -> None:
        self.cpus = cpus
        self.most = 0

    def remote(self, **options: Any) -> Any:
        assert options == {"max_retries": 0}
        return lambda function: SimpleNamespace(remote=lambda *given: partial(function, *given))

    def cluster_resources(self) -> Any:
        return {"CPU": self.cpus}

    def wait(self, calls: Any, num_returns: int) -> Any:
        self.most = max(self.most, len(calls))
        return calls[-num_returns:], calls[:-num_returns]

    def get(self, call: Any) -> Any:
        return call()


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    exceptions = pytest.importorskip("ray").exceptions
    fake: Any = FakeRay(2)
    fake.exceptions = exceptions
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(workers, "_cluster", lambda place: contextlib.nullcontext())
    return fake


@pytest.mark.parametrize("backend", ["ray", "counting"])
def test_an_interrupted_cluster_loses_no_finished_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_ray: FakeRay, backend: str
) -> None:
    monkeypatch.setitem(joblib.parallel.BACKENDS, "counting", SequentialBackend)
    place = Place(tmp_path, 2, ("cpu",), backend, "")
    blocks = [Block(0, 0, index, index, 1) for index in range(40)]
    saved = []

    class Folder:
        def load(self, block: Any) -> Any:
            raise FileNotFoundError

        def save(self, block: Any, trials: Any) -> None:
            saved.append(block)
            if len(saved) == 3:
                raise KeyboardInterrupt

    played = []

    def play(block: Any, device: str) -> Any:
        played.append(block)
        return ()

    with pytest.raises(KeyboardInterrupt):
        workers.play_all(place, play, Folder(), blocks)
    assert len(saved) == 3
    assert len(played) <= 4
    assert backend != "ray" or fake_ray.most == 8  # four for each processor


def test_a_lost_worker_of_ray_is_replaced(
    tmp_path: Path, fake_ray: FakeRay, capsys: pytest.CaptureFixture[str]
) -> None:
    exceptions = sys.modules["ray"].exceptions
    place = Place(tmp_path, 2, ("cpu",), "ray", "")
    lost: list[Any] = [
        exceptions.WorkerCrashedError(),
        exceptions.NodeDiedError("the node died"),
        None,
        exceptions.OutOfMemoryError("memory"),
    ]
    blocks: Any = list(range(20))

    def play(block: Any, device: str) -> Any:
        if lost and (error := lost.pop(0)) is not None:
            raise error
        return (block,)

    assert dict(workers._played(place, play, "cpu", blocks)) == {b: (b,) for b in blocks}
    assert capsys.readouterr().err.count("a worker died; its blocks will be repeated") == 3

    def die(block: Any, device: str) -> Any:
        raise exceptions.WorkerCrashedError()

    with pytest.raises(WorkerDied, match="workers died 3 times without finishing a block"):
        list(workers._played(place, die, "cpu", blocks))


def test_an_error_of_a_block_on_ray_is_that_of_the_block(tmp_path: Path, fake_ray: FakeRay) -> None:
    exceptions = sys.modules["ray"].exceptions
    cause = InvalidInput("score must be a number")

    def play(block: Any, device: str) -> Any:
        raise exceptions.RayTaskError(
            "_play", "traceback\nin lines", cause, proctitle="ray", pid=1, ip="127.0.0.1"
        )

    place = Place(tmp_path, 2, ("cpu",), "ray", "")
    blocks: Any = [1, 2]
    with pytest.raises(InvalidInput, match=r"\Ascore must be a number\Z"):
        list(workers._played(place, play, "cpu", blocks))


def test_no_more_processes_than_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def played(place: Place, play: Any, devices: Any, blocks: Any) -> Any:
        started.append(place.workers)
        if len(started) == 1:
            raise BrokenProcessPool("killed")
        return [(block, ()) for block in blocks]

    folder: Any = SimpleNamespace(save=lambda *_: None, load=lambda block: missing())

    def missing() -> None:
        raise FileNotFoundError

    monkeypatch.setattr(workers, "_played", played)
    for jobs, count, expected in ((16, 1, [1, 2]), (1024, 3, [3, 3]), (2, 50, [2, 2])):
        started.clear()
        blocks = [Block(0, 0, index, index, 1) for index in range(count)]
        place = Place(tmp_path, jobs, ("cpu",), "loky", "")
        workers.play_all(place, lambda block, device: (), folder, blocks)
        assert started == expected


def test_an_audit_says_for_what_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workers, "_SECONDS_WITHOUT_BLOCK", 0.02)
    with workers._waiting_reported(Place(tmp_path, 2, ("cpu",), "ray", "")):
        deadline = time.monotonic() + 60
        words = ""
        while "waiting for the workers on the ray cluster" not in words:
            assert time.monotonic() < deadline
            time.sleep(0.01)
            words += capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_local_clusters_listen_on_the_loopback_only(tmp_path: Path, backend: str) -> None:
    psutil = pytest.importorskip("psutil")
    pytest.importorskip("distributed" if backend == "dask" else "ray")
    options = ["--backend", backend, "--jobs", "2", "--out", str(tmp_path / "audit")]
    command = [sys.executable, "-m", "audit.run", *OPTIONS, *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    addresses = set()
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            family = [psutil.Process(process.pid)]
            family += family[0].children(recursive=True)
            for member in family:
                with contextlib.suppress(psutil.Error):
                    for connection in member.net_connections(kind="inet"):
                        if connection.status == psutil.CONN_LISTEN:
                            addresses.add(connection.laddr.ip.removeprefix("::ffff:"))
        time.sleep(0.05)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert addresses == {"127.0.0.1"}


@pytest.mark.slow
def test_a_dead_worker_of_ray_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    assert run.main([*OPTIONS, "--out", str(tmp_path / "alone")]) == 0
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "tests"), str(ROOT)]))

    def play_or_die(*given: Any) -> Any:
        return light_runs.play_or_die(tmp_path, 1, *given)

    monkeypatch.setattr(workers, "_play", play_or_die)
    options = ["--backend", "ray", "--jobs", "2", "--out", str(tmp_path / "audit")]
    assert run.main([*OPTIONS, *options]) == 0
    assert "a worker died; its blocks will be repeated" in capsys.readouterr().err
    files = [tmp_path / name / "results.csv" for name in ("alone", "audit")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
def test_a_lost_node_of_ray_is_replaced(tmp_path: Path) -> None:
    # A local cluster of two nodes, of which the one without the head goes away.
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    # Many blocks, so that the node is lost in the middle.
    command = [sys.executable, "-m", "audit.run", *OPTIONS, "--trials", "2000"]
    alone = [*command, "--out", str(tmp_path / "alone")]
    subprocess.run(alone, cwd=ROOT, check=True, capture_output=True)
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        node = cluster.add_node(num_cpus=1)
        place = ["--backend", "ray", "--scheduler", cluster.address, "--jobs", "2"]
        shards = tmp_path / "audit" / "shards"
        process = subprocess.Popen(
            [*command, *place, "--out", str(tmp_path / "audit")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while process.poll() is None and not (shards.exists() and any(shards.iterdir())):
            time.sleep(0.05)
        cluster.remove_node(node, allow_graceful=False)
        output, _ = process.communicate(timeout=300)
    finally:
        cluster.shutdown()
    assert process.returncode == 0, output
    files = [tmp_path / name / "results.csv" for name in ("alone", "audit")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.thorough
def test_dead_workers_are_replaced_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main([*OPTIONS, "--out", str(tmp_path / "alone")]) == 0
    monkeypatch.setattr(workers, "_play", partial(light_runs.play_or_die, tmp_path, 1))
    capsys.readouterr()
    assert run.main([*OPTIONS, "--jobs", "2", "--out", str(tmp_path / "audit")]) == 0
    assert "a worker died; its blocks will be repeated" in capsys.readouterr().err
    files = [tmp_path / name / "results.csv" for name in ("alone", "audit")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
def test_workers_that_keep_dying_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workers, "_play", partial(light_runs.play_or_die, tmp_path, 10_000))
    assert run.main([*OPTIONS, "--jobs", "2", "--out", str(tmp_path / "audit")]) == 2
    assert "workers died 3 times without finishing a block" in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["dask", "ray"])
@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999999", "x"])
def test_a_missing_cluster_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    backend: str,
    address: str,
) -> None:
    pytest.importorskip("distributed" if backend == "dask" else "ray")
    monkeypatch.setattr(workers, "_PATIENCE", 0.2)
    begin = time.monotonic()
    options = ["--backend", backend, "--scheduler", address, "--out", str(tmp_path / "audit")]
    assert run.main([*OPTIONS, *options]) == 2
    assert time.monotonic() - begin < 30
    error_line = capsys.readouterr().err
    assert error_line.startswith(
        f"error: scheduler must be the address of a running {backend} cluster, such as "
    )
    assert f"HOST:{8786 if backend == 'dask' else 6379}, got '{address}': " in error_line
    assert error_line.count("\n") == 1


def test_an_address_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(address: tuple[str, int], timeout: float | None = None) -> None:
        assert timeout is not None
        assert timeout <= 10.0
        raise TimeoutError("timed out")

    monkeypatch.setattr(workers, "_PATIENCE", 0.1)
    monkeypatch.setattr(socket, "create_connection", connect)
    for backend in ("dask", "ray"):
        place = AuditConfig(backend=backend, scheduler="10.255.255.1:8786").place
        with pytest.raises(ValueError, match=r"scheduler must be .*: timed out"):
            workers._check_answers(place)


def test_a_ray_cluster_that_asks_for_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(command: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout, stderr=b"RPC error: InvalidAuthToken: ..")

    monkeypatch.setattr(subprocess, "run", refused)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ValueError, match="authentication token: set RAY_AUTH_MODE=token"):
            workers._check_answers(AuditConfig(backend="ray", scheduler=address).place)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["dask", "ray"])
@pytest.mark.parametrize("answer", [b"HTTP/1.1 404 Not Found\r\n\r\n", b""], ids=["web", "silent"])
def test_another_server_is_no_cluster(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    backend: str,
    answer: bytes,
) -> None:
    pytest.importorskip("distributed" if backend == "dask" else "ray")
    answers_to_dask = backend == "dask" and bool(answer)
    if not answers_to_dask:
        monkeypatch.setattr(workers, "_SECONDS_TO_CONNECT", 1.5)
    connections = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connections.append(server.accept()[0])
                    if answer:
                        connections[-1].sendall(answer)
                        connections[-1].close()

        threading.Thread(target=serve, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        options = ["--backend", backend, "--scheduler", address, "--out", str(tmp_path / "audit")]
        begin = time.monotonic()
        assert run.main([*OPTIONS, *options]) == 2
        assert time.monotonic() - begin < 20
    for connection in connections:  # an open one would be a warning in another test
        connection.close()
    error_line = capsys.readouterr().err
    assert error_line.startswith(f"error: scheduler must be the address of a running {backend}")
    assert error_line.count("\n") == 1
    assert f"got '{address}'" in error_line
    assert ("another kind of server, such as a web server" in error_line) == answers_to_dask


def test_an_audit_waits_for_the_workers_of_a_dask_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "_SECONDS_WITHOUT_WORKERS", 0.2)
    note, waited = workers.console.note, []
    with distributed.LocalCluster(
        n_workers=0, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster:

        def arrive(words: str) -> None:
            note(words)
            if "no workers" in words:
                waited.append(words)
                cluster.scale(1)

        monkeypatch.setattr(workers.console, "note", arrive)
        options = ["--trials", "200", "--repeats", "1", "--epsilon", "4", "--backend", "dask"]
        options += ["--scheduler", cluster.scheduler_address, "--out", str(tmp_path / "audit")]
        assert run.main(options) == 0
    assert len(waited) == 1
    assert logging.getLogger("distributed.client").level != logging.CRITICAL
    assert (tmp_path / "audit" / "results.csv").exists()


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_the_address_of_a_cluster_in_the_environment(
    backend: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    @contextlib.contextmanager
    def connect(place: Place) -> Iterator[None]:
        seen.append(place.scheduler)
        yield

    monkeypatch.setattr(workers, f"_{backend}", connect)
    variable = {"dask": "DASK_SCHEDULER_ADDRESS", "ray": "RAY_ADDRESS"}[backend]
    monkeypatch.setenv(variable, "127.0.0.1:1")
    for scheduler in ("", "host:2", "auto"):
        with workers._cluster(AuditConfig(backend=backend, scheduler=scheduler).place):
            pass
    assert seen == ["", "host:2", {"dask": "auto", "ray": "127.0.0.1:1"}[backend]]
    assert capsys.readouterr().out == (
        f"{variable} is not used, and the audit starts a local {backend} cluster; "
        "--scheduler 127.0.0.1:1 uses that cluster\n"
    )


@pytest.mark.slow
def test_a_local_dask_cluster_ignores_the_address_of_another(tmp_path: Path) -> None:
    config = pytest.importorskip("dask").config
    options = ["--trials", "20", "--repeats", "1", "--epsilon", "4", "--backend", "dask"]
    with config.set(scheduler_address="tcp://127.0.0.1:1"):  # as DASK_SCHEDULER_ADDRESS sets it
        assert run.main([*options, "--out", str(tmp_path / "audit")]) == 0


@pytest.mark.parametrize(
    ("backend", "error"),
    [
        *[("dask", "of Dask"), ("dask", "raised by Dask")],
        *[("ray", "of Ray"), ("ray", "raised by Ray")],
    ],
)
def test_a_lost_cluster_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    backend: str,
    error: str,
) -> None:
    library = pytest.importorskip("distributed" if backend == "dask" else "ray")
    lost: Exception
    if error == "raised by Dask":
        lost = OSError("Timed out trying to connect")
    elif error == "of Dask":
        lost = library.client.FutureCancelledError("key", "lost dependencies")
    elif error == "of Ray":
        lost = library.exceptions.NodeDiedError("the node died")
    else:  # as Ray does when the only node is lost
        lost = KeyError("CPU")

    @contextlib.contextmanager
    def connected(place: Place) -> Iterator[None]:
        yield

    def die(*arguments: str, **named: int) -> None:
        raise lost

    raising = die
    if error.startswith("raised by"):
        module = "ray._private.state" if backend == "ray" else "distributed.comm.core"
        names = {"__name__": module, "lost": lost}
        exec("def fail(*_, **__):\n    raise lost", names)
        raising = names["fail"]
    monkeypatch.setattr(workers, f"_{backend}", connected)
    if backend == "ray":
        monkeypatch.setattr(library, "cluster_resources", raising)
    else:
        monkeypatch.setattr(workers.joblib, "parallel_config", raising)
    options = ["--backend", backend, "--out", str(tmp_path / "audit")]
    assert run.main([*OPTIONS, *options]) == 2
    error_line = capsys.readouterr().err
    assert error_line.startswith(f"error: the {backend} cluster stopped working (")
    assert error_line.endswith("run the same command again to resume from the finished blocks\n")
    assert error_line.count("\n") == 1


@pytest.mark.parametrize("lost", [True, False])
def test_a_lost_head_node_of_ray_ends_the_process_with_one_line(lost: bool) -> None:
    code = f"""
import socket, sys, time, types
from audit import processes
server = socket.create_server(("127.0.0.1", 0))
address = f"127.0.0.1:{{server.getsockname()[1]}}"
context = types.SimpleNamespace(gcs_address=address)
sys.modules["ray"] = types.SimpleNamespace(
    is_initialized=lambda: True, get_runtime_context=lambda: context
)
processes._SECONDS_BETWEEN_CONNECTIONS = 0.05
with processes.watch_ray("resume"):
    if {lost}:
        server.close()
    time.sleep(10.0 if {lost} else 1.0)
server.close()
time.sleep(1.0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    line = r"error: no answer from the ray cluster 127.0.0.1:\d+; resume\n"
    assert re.fullmatch(line if lost else "", done.stderr)
    assert done.returncode == (2 if lost else 0)


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`, by /proc."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            lines = dict(
                line.split(":\t", 1) for line in status.read_text().splitlines() if "\t" in line
            )
            if lines.get("PPid") == str(pid) and not lines["State"].startswith("Z"):
                found.append(int(status.parent.name))
    return found


def ended(pid: int) -> bool:
    """Whether a process is gone; a zombie is."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_parent(tmp_path: Path, number: Any) -> None:
    options = ["--repetitions", "fixed:20", "--trials", "1000000", "--jobs", "2"]
    command = [sys.executable, "-m", "audit.run", *options, "--out", str(tmp_path / "audit")]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "audit" / "shards").glob("*.npz")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        workers_of_it = children(process.pid)
        assert len(workers_of_it) >= 2
        process.send_signal(number)
        code = process.wait(60)
        assert code == (-number if number == signal.SIGKILL else 128 + number)
        deadline = time.monotonic() + 30
        while not all(map(ended, workers_of_it)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()


SMALL = ["--engine", "batched", "--model", "logistic", "--steps", "2", "--trials", "20"]
SMALL += ["--repeats", "1", "--epsilon", "4"]


def test_only_playing_needs_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*SMALL, "--devices", "cuda", "--out", str(tmp_path / "audit")]
    with FakeCuda(monkeypatch) as gpu:
        assert run.main(options) == 0
    assert gpu.counts["launches"] > 0
    monkeypatch.undo()
    setup._set_up.cache_clear()
    # The second audit does not print the line on the detectable epsilon.
    _, expected = capsys.readouterr().out.split("\n", 1)

    def started() -> None:
        raise AssertionError("CUDA was started")

    monkeypatch.setattr(torch.cuda, "_lazy_init", started)
    assert run.main(options) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("devices", [["cuda"], ["cuda:0", "cuda:1"]])
def test_a_missing_device_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    devices: list[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    out = tmp_path / "audit"
    assert run.main([*SMALL, "--devices", *devices, "--out", str(out)]) == 2
    error_line = f"error: device must be one of this machine's: cpu, got {devices[0]!r}\n"
    assert capsys.readouterr().err == error_line
    assert not out.exists()  # the folder is not created


def test_the_second_of_two_gpus_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    workers.check_devices(AuditConfig(devices=("cuda:0",)).place)
    with pytest.raises(ValueError, match="machine's: cpu, cuda, cuda:0, got 'cuda:1'"):
        workers.check_devices(AuditConfig(devices=("cuda:0", "cuda:1")).place)
    workers.check_devices(AuditConfig(devices=("cuda:0", "cuda:1"), backend="dask").place)


def test_one_process_per_gpu() -> None:
    with pytest.raises(ValueError, match="jobs must be at most one per GPU, got 3 for cuda:0"):
        AuditConfig(devices=("cuda:0", "cuda:1"), jobs=3)


@pytest.mark.thorough
def test_workers_claim_devices_and_end_after_the_blocks(tmp_path: Path) -> None:
    place = AuditConfig(devices=("cuda:0", "cuda:1"), out=str(tmp_path)).place
    blocks: Any = range(8)

    def play(block: Any, device: str) -> Any:
        assert (tmp_path / "locks" / device[-1]).exists()
        return device, os.getpid()

    devices = Devices(place.devices, tmp_path / "locks")
    found = dict(workers._played(place, play, devices, blocks))
    assert sorted(found) == [*blocks]
    assert {device for device, _ in found.values()} <= {*place.devices}
    # Otherwise their memory on the GPUs would not be free for the next audit.
    for pid in {pid for _, pid in found.values()}:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("devices", [["tpu"], ["gpu"], ["cuda:x"], ["cuda:"], ["cpu:1"], [""]])
@pytest.mark.parametrize("backend", ["loky", "dask"])
def test_a_device_of_another_kind_is_refused_with_the_settings(
    devices: list[str], backend: str
) -> None:
    with pytest.raises(InvalidInput, match="devices must be cpu, cuda or cuda:N, got "):
        AuditConfig(devices=tuple(devices), backend=backend)
