"""Tests of the calculator: its numbers, and the page in a real browser."""

import asyncio
import contextlib
import errno
import http.client
import itertools
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import psutil
import pytest

import audit
from audit.bounds import main as bounds
from audit.commands import app, calculator
from audit.errors import InvalidInput
from audit.numerics import format_rounded
from audit.upper_bounds.costs import TuningCosts

IN_USE = os.strerror(errno.EADDRINUSE)
RUN = audit.DpSgd(noise_multiplier=70.0, steps=300)
START = audit.DpSgd(noise_multiplier=1.1, steps=2000, sampling_rate=0.01, neighbours="zero-out")
ALLOCATIONS = [
    audit.accounting.RandomAllocation(1.1, batches=100, epochs=20, fixed=fixed)
    for fixed in (False, True)
]


@pytest.mark.slow
@pytest.mark.thin(4)
@pytest.mark.parametrize("title", calculator.cases(10))
def test_the_lines_reproduce_the_cost(title: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = calculator.compute(RUN, title, 10, 1e-5)
    *lines, last = answer.python.splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    assert eval(last, names) == answer.epsilon
    program, command, *options = answer.command.split()
    assert (program, command) == ("dp-tuning-audit", "bounds")
    assert bounds(options) == 0
    shown = f"epsilon = {format_rounded(answer.epsilon, up=True)} for the tuning"
    assert capsys.readouterr().out.startswith(shown)
    assert f"({format_rounded(answer.epsilon, up=True)}, 1e-05)" in answer.sentence
    assert answer.one_run == RUN.epsilon(1e-5) < answer.epsilon


@pytest.mark.parametrize("run", ALLOCATIONS, ids=["fresh", "fixed"])
@pytest.mark.parametrize("title", ["random search, geometric K", "grid, every point once"])
def test_random_allocation_costs_what_the_library_and_the_command_say(
    run: audit.accounting.RandomAllocation, title: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = calculator.compute(run, title, 20, 1e-5)
    spec = calculator.protocol_of(title, 20).spec
    assert answer.epsilon == audit.tuning_cost(run, spec, delta=1e-5).epsilon
    assert answer.epsilon <= calculator.first_curve(run, title, 20, 1e-5)[20] * (1.0 + 1e-9)
    assert answer.one_run == run.epsilon(1e-5) < answer.epsilon
    *lines, last = answer.python.splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    assert names["run"] == run
    assert eval(last, names) == answer.epsilon
    assert bounds(answer.command.split()[2:]) == 0
    shown = f"epsilon = {format_rounded(answer.epsilon, up=True)} for the tuning"
    assert capsys.readouterr().out.startswith(shown)
    assert "random allocation" in answer.sentence


# Panel 1.9 announces the end of the argument `name`; the extra `app` allows older versions, too.
@pytest.mark.filterwarnings("ignore:Widget.name is deprecated:PendingDeprecationWarning")
def test_fields_describe_the_chosen_kind_of_batches() -> None:
    pytest.importorskip("panel")
    inputs = app._Inputs()
    poisson_fields, allocation_fields = (
        (inputs.rate, inputs.steps), (inputs.batches_per_epoch, inputs.epochs)
    )  # fmt: skip
    for batches, run in zip(calculator.BATCHES, (START, *ALLOCATIONS), strict=True):
        inputs.batches.value = batches
        inputs.show_fields()
        is_poisson = batches == calculator.POISSON
        assert {field.visible for field in poisson_fields} == {is_poisson}
        assert {field.visible for field in allocation_fields} == {not is_poisson}
        assert inputs.run() == run


# Panel 1.9 announces the end of the argument `name`; the extra `app` allows older versions, too.
@pytest.mark.filterwarnings("ignore:Widget.name is deprecated:PendingDeprecationWarning")
def test_an_empty_field_of_random_allocation_is_refused() -> None:
    pytest.importorskip("panel")
    inputs = app._Inputs()
    inputs.batches.value = calculator.FRESH
    for field, parameter in ((inputs.batches_per_epoch, "batches"), (inputs.epochs, "epochs")):
        before = field.value
        field.value = None
        with pytest.raises(InvalidInput, match=f"^{parameter} must be a whole number"):
            inputs.run()
        field.value = before


def test_protocols_have_the_expected_number_of_runs() -> None:
    for runs, title in itertools.product(calculator.RUNS, calculator.cases(10)):
        mean = calculator.protocol_of(title, runs).mean_runs
        assert mean is None or mean == pytest.approx(runs, rel=0.02)


@pytest.mark.slow
def test_costs_continue_after_their_process_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calculator, "_costs", {})

    def cost() -> float:
        return asyncio.run(app._smallest_cost(RUN, "fixed:2", 1e-5))

    expected = audit.tuning_cost(RUN, "fixed:2", 1e-5).epsilon
    assert cost() == expected
    monkeypatch.setattr(calculator, "costs_of", None)  # a cost of another process is remembered
    assert calculator.cost(RUN, "fixed:2", 1e-5) == expected
    monkeypatch.setattr(calculator, "_costs", {})
    for pid in app._workers()._processes:
        psutil.Process(pid).kill()
    with pytest.raises(BrokenProcessPool):
        cost()
    assert cost() == expected
    app._workers().shutdown()
    app._workers.cache_clear()


def test_every_way_of_choosing_has_a_case() -> None:
    ways = calculator.titles_by_choice()
    assert list(ways) == ["at random", "with earlier results", "from a list fixed beforehand"]
    kinds = {
        way: {type(calculator.protocol_of(title, 20)).name for title in titles}
        for way, titles in ways.items()
    }
    assert kinds == {
        "at random": {"search", "until"},
        "with earlier results": {"adaptive", "sequential"},
        "from a list fixed beforehand": {"grid"},
    }


@pytest.mark.slow
@pytest.mark.thin(3)
@pytest.mark.parametrize("title", calculator.cases(10))
def test_first_curves_take_a_second_and_are_refined_downwards(title: str) -> None:
    sigma = 1.1 + 1e-4 * list(calculator.cases(10)).index(title)  # nothing is remembered
    run = audit.DpSgd(sigma, 2000, 0.01, "zero-out")
    before = time.process_time()
    curve = calculator.first_curve(run, title, 20, 1e-5)
    # Measured: .3 to .7; two seconds leave room for a busy machine.
    assert time.process_time() - before < 2.0
    assert set(curve) == {2, 5, 20, 100, 500}
    assert next(iter(curve)) == 20
    assert list(dict(sorted(curve.items())).values()) == sorted(curve.values())
    costs = TuningCosts(run, calculator.protocol_of(title, 20), 1e-5)
    attained = max((row.epsilon for row in costs.attained), default=run.epsilon(1e-5))
    assert attained <= curve[20]


@pytest.mark.parametrize("run", ALLOCATIONS, ids=["fresh", "fixed"])
def test_first_curves_of_random_allocation_are_at_least_the_smallest_bounds(
    run: audit.accounting.RandomAllocation,
) -> None:
    # They are computed on coarse grids, which take a ninth of the time.
    for title in ("random search, logarithmic K", "grid, every point once"):
        curve = calculator.first_curve(run, title, 20, 1e-5)
        for runs in (2, 20):
            spec = calculator.protocol_of(title, runs).spec
            smallest = calculator.cost(run, spec, 1e-5)
            assert smallest < curve[runs] < 1.3 * smallest + 0.8


@pytest.mark.slow
@pytest.mark.parametrize("title", calculator.cases(10))
def test_first_curves_are_at_least_the_smallest_bounds(title: str) -> None:
    for run, delta in itertools.product((RUN, START), (1e-5, 1e-2)):
        for runs in (2, 20):
            spec = calculator.protocol_of(title, runs).spec
            smallest = calculator.cost(run, spec, delta)
            assert smallest <= calculator.quick_cost(run, spec, delta) * (1.0 + 1e-9)
            assert calculator.quick_cost(run, spec, delta) <= 1.3 * smallest + 0.8


def test_quantiles_are_those_of_the_best_of_independent_draws() -> None:
    for title in ("random search, fixed K", "grid, every point once"):
        assert calculator.compute(RUN, title, 20, 1e-5).quantile == pytest.approx(20 / 21)
    assert (
        calculator.compute(RUN, "repeat until one is accepted", 20, 1e-5).quantile == 1 - 0.05 / 2
    )


@pytest.mark.slow
def test_a_port_in_use_is_one_line() -> None:
    pytest.importorskip("panel")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = [sys.executable, "-m", "audit.app", "--port", str(port), "--no-browser"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (
        2,
        f"error: port must be free, got {port}: {IN_USE}\n",
    )


def test_an_unknown_protocol_and_a_wrong_port_are_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(InvalidInput, match="protocol must be one of"):
        calculator.compute(RUN, "guess", 20, 1e-5)
    assert app.main(["--port", "70000"]) == 2
    assert capsys.readouterr().err.startswith("error: port must be")


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    """Host and port of a calculator that is served."""
    pytest.importorskip("panel")
    command = [sys.executable, "-m", "audit.app", "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        stderr=subprocess.STDOUT,
    ) as server:  # fmt: skip
        try:
            assert server.stdout is not None
            host, _, port = (
                next(line for line in server.stdout if "http" in line)
                .split()[-1]
                .removeprefix("http://")
                .partition(":")
            )
            yield host, int(port.rstrip("/"))
        finally:
            server.terminate()


def answer(address: tuple[str, int], path: str, **headers: str) -> tuple[int, dict[str, str]]:
    """The status and the headers with which the calculator answers."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    with contextlib.closing(connection):
        connection.putrequest("GET", path, skip_host=True)
        given = {"Host": f"127.0.0.1:{address[1]}"}
        for name, value in (given | {n.replace("_", "-"): v for n, v in headers.items()}).items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        response.read()
        return response.status, dict(response.getheaders())


UPGRADE = {
    "Upgrade": "websocket", "Connection": "Upgrade", "Sec_WebSocket_Version": "13",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
}  # fmt: skip


@pytest.mark.thin(4)
@pytest.mark.parametrize("path", ["/", "/ws", "/static/js/bokeh.min.js", "/favicon.ico"])
@pytest.mark.parametrize("host", ["rebound.example", "rebound.example:{port}", "127.0.0.1:1", ""])
def test_requests_to_another_host_are_refused(
    address: tuple[str, int], path: str, host: str
) -> None:
    host = host.format(port=address[1])
    more = UPGRADE if path == "/ws" else {}
    status, headers = answer(address, path, Host=host, Origin=f"http://{host}", **more)
    assert status == 403
    assert headers["X-Frame-Options"] == "DENY"


def test_the_calculator_listens_on_the_loopback_only(address: tuple[str, int]) -> None:
    listening = {
        connection.laddr.ip
        for connection in psutil.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == address[1]
    }
    assert listening == {"127.0.0.1"}


def test_the_page_needs_no_component(address: tuple[str, int]) -> None:
    """The handler of components is not served."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        assert b"components/" not in connection.getresponse().read()


@pytest.mark.thorough
def test_the_page_is_not_shown_in_frames(address: tuple[str, int]) -> None:
    for host in ("127.0.0.1", "localhost"):
        status, headers = answer(address, "/", Host=f"{host}:{address[1]}")
        assert status == 200
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    ["/components/../../etc/passwd", "/components/os/system/_css/x", "/components", "/none/../.."],
)
def test_a_path_does_not_reach_an_import(address: tuple[str, int], path: str) -> None:
    assert answer(address, path)[0] == 404


@pytest.fixture
def page() -> Iterator[Any]:
    """The calculator, opened in chromium."""
    pytest.importorskip("panel")
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs chromium and chromedriver")
    command = [sys.executable, "-m", "audit.app", "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        stderr=subprocess.STDOUT,
    ) as server:  # fmt: skip
        try:
            assert server.stdout is not None
            address = next(line for line in server.stdout if "http" in line).split()[-1]
            assert address.startswith("http://127.0.0.1:")
            options = webdriver.ChromeOptions()
            options.binary_location = chromium
            for option in ("--headless=new", "--no-sandbox", "--disable-gpu"):
                options.add_argument(option)
            options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
            with webdriver.Chrome(
                options=options, service=webdriver.ChromeService(driver)
            ) as chrome:
                phone = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
                chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
                chrome.get(address)
                yield chrome
            curves = psutil.Process(server.pid).children()[-1]
        finally:
            server.terminate()
        curves.wait(30.0)  # it ends with the server


# Widgets live in shadow roots, which selectors of the document do not see.
FIND = """
const found = [];
function search(root) {
  for (const one of root.querySelectorAll('*')) {
    if (one.matches(arguments_[0])) found.push(one);
    if (one.shadowRoot) search(one.shadowRoot);
  }
}
const arguments_ = arguments;
search(document);
"""


def shown(page: Any, name: str) -> str | None:
    text: str | None = page.execute_script(
        FIND + "return found[0]?.textContent ?? null", f"#{name}"
    )
    return text


def wait_for(page: Any, name: str, expected: str) -> float:
    """Seconds until an element has a text."""
    start = time.perf_counter()
    while shown(page, name) != expected:
        assert time.perf_counter() - start < 120.0, shown(page, name)
        time.sleep(0.02)
    return time.perf_counter() - start


def background(page: Any, scheme: str) -> Any:
    """The colour behind the page if the visitor prefers a scheme."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    return page.execute_script("return getComputedStyle(document.body).backgroundColor")


@pytest.mark.slow
def test_the_page_shows_the_cost_in_a_browser(page: Any) -> None:
    def rounded(run: calculator.Run, protocol: str) -> str:
        return format_rounded(audit.tuning_cost(run, protocol, delta=1e-5).epsilon, up=True)

    wait_for(page, "cost", rounded(START, "grid:20"))
    # Old numbers are dimmed until the new ones are there.
    page.execute_script(
        FIND + "const host = found[0].getRootNode().host; window.opacities = [];"
        "setInterval(() => window.opacities.push(getComputedStyle(host).opacity), 10)", "#cost",
    )  # fmt: skip
    # A new noise multiplier, then another protocol, then another number of runs by the slider.
    inputs = page.execute_script(FIND + "return found", "input[type=text]")
    replace_all = "\ue009a\ue009"  # control and a, then control is released
    inputs[0].send_keys(replace_all, "2\n")
    run = audit.DpSgd(2.0, 2000, 0.01, "zero-out")
    wait_for(page, "cost", rounded(run, "grid:20"))
    time.sleep(0.1)
    opacities = page.execute_script("return window.opacities")
    assert [value for value, _ in itertools.groupby(opacities)][-2:] == ["0.3", "1"]
    light, dark = (background(page, scheme) for scheme in ("light", "dark"))
    assert light != dark
    assert shown(page, "run") == format_rounded(run.epsilon(1e-5), up=True)
    assert shown(page, "quantile") == f"{20 / 21:.3f}"
    batches, protocol = page.execute_script(FIND + "return found", "select")
    select = pytest.importorskip("selenium.webdriver.support.ui").Select
    select(protocol).select_by_value("random search, fixed K")
    wait_for(page, "cost", rounded(run, "fixed:20"))
    (runs,) = page.execute_script(FIND + "return found", ".noUi-handle")
    runs.send_keys("\ue014")  # the right arrow: 30 runs
    wait_for(page, "cost", rounded(run, "fixed:30"))
    assert "--protocol fixed:30" in (shown(page, "command") or "")
    select(batches).select_by_value(calculator.FRESH)
    allocation = audit.accounting.RandomAllocation(2.0, batches=100, epochs=20)
    wait_for(page, "cost", rounded(allocation, "fixed:30"))
    assert "--base allocation:2,100,20" in (shown(page, "command") or "")
    inputs[0].send_keys(replace_all, "\ue017\n")  # an empty field
    wait_for(page, "error", "Error: noise_multiplier must be in (0, inf), got None")
    # Nothing is wider than a phone, and nothing was fetched from another machine.
    assert page.execute_script("return document.documentElement.scrollWidth") == 390
    log = "".join(entry["message"] for entry in page.get_log("performance"))
    assert '"url":"http://127.0.0.1:' in log
    assert '"url":"https://' not in log
