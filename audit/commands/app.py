"""The command `dp-tuning-audit app`: a calculator of the cost of a tuning, in the browser.

The page is built with Panel and is served to this machine only.
"""

import argparse
import asyncio
import contextlib
import functools
import html
import itertools
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from audit import checks, console
from audit.accounting import DeltaUnreachable, DpSgd
from audit.commands.bounds_base import rounded_distribution
from audit.errors import InvalidInput
from audit.numerics import format_exact, format_rounded
from audit.processes import end_with_parent
from audit.protocols import Protocol, parse_protocol
from audit.upper_bounds import tuning_cost
from audit.upper_bounds.comparison import cases_with
from audit.upper_bounds.statement import statement_of_tuning

_COLOURS = (
    *("#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#949494", "#ca9161", "#56b4e9"),
    *("#fbafe4", "#ece133"),
)
RUNS = (2, 3, 5, 10, 20, 30, 50, 100, 200, 500)
_CURVE_RUNS = (2, 5, 20, 100, 500)
_EXAMPLES = {
    "python -m audit.app": "opens the calculator in the browser",
    "python -m audit.app --port 8000 --no-browser": "serves it at http://127.0.0.1:8000",
}
# Without the viewport, a phone shows the page as if its screen had 980 pixels.
_TEMPLATE = """{% extends base %}
{% block postamble %}<meta name="viewport" content="width=device-width">{% endblock %}
{% block contents %}{{ embed(roots.content) }}{% endblock %}"""


@dataclass(frozen=True)
class Answer:
    """The result that the page shows."""

    epsilon: float  # cost of the tuning
    one_run: float  # epsilon of one run
    # expected quantile of the best candidate, where candidates come from one prior
    quantile: float | None
    sentence: str  # the statement about the released model
    command: str  # the command line that computes the cost
    python: str  # the Python lines that compute it


_costs: dict[tuple[DpSgd, str, float], float] = {}


def _cost(run: DpSgd, spec: str, delta: float) -> float:
    if (run, spec, delta) not in _costs:
        _costs[run, spec, delta] = tuning_cost(run, spec, delta).epsilon
    return _costs[run, spec, delta]


@functools.cache
def _curve_process() -> ProcessPoolExecutor:
    """The process that computes curves. As a thread, it would delay the next answer."""
    return ProcessPoolExecutor(1, get_context("spawn"), end_with_parent)


async def _point_of_curve(run: DpSgd, spec: str, delta: float) -> float:
    loop = asyncio.get_running_loop()
    try:
        epsilon = await loop.run_in_executor(_curve_process(), _cost, run, spec, delta)
    except BrokenProcessPool:  # it was killed; the next inputs start another one
        _curve_process.cache_clear()
        raise
    _costs[run, spec, delta] = epsilon  # the answer is immediate if a slider moves to this point
    return epsilon


def cases(runs: int) -> dict[str, Protocol]:
    """The protocols of the calculator by title, with rounded parameters.

    Adaptive search is left out: its costs take seconds, and a curve needs many.
    """
    protocols: dict[str, Protocol] = {}
    for case in cases_with(runs):
        repetitions = case.protocol.search_repetitions
        if not case.protocol.is_adaptive:
            protocols[case.title] = (
                case.protocol
                if repetitions is None
                else parse_protocol(rounded_distribution(repetitions))
            )
    return protocols


def protocol_of(title: str, runs: int) -> Protocol:
    """The protocol of a title with an expected number of runs."""
    protocols = cases(runs)
    return protocols[checks.one_of("protocol", title, protocols)]


def compute(run: DpSgd, title: str, runs: int, delta: float) -> Answer:
    """The cost of a tuning, its quality, its statement and the lines that reproduce it.

    Args:
        run: one run.
        title: a key of `cases`.
        runs: expected number of runs.
        delta: of the whole tuning, in (0, 1).

    Raises:
        InvalidInput: an argument is out of its range.
        DeltaUnreachable: no bound reaches delta.
    """
    protocol = protocol_of(title, runs)
    spec = protocol.spec
    epsilon = _cost(run, spec, delta)
    sigma, rate, at = map(format_exact, (run.noise_multiplier, run.sampling_rate, delta))
    # Only the epsilon, which a curve may have computed in its process, takes long.
    sentence = str(statement_of_tuning(epsilon, delta, run, protocol))
    command = (
        f"dp-tuning-audit bounds --noise-multiplier {sigma} --sampling-rate {rate} "
        f"--steps {run.steps} --neighbours {run.neighbours} --protocol {spec} --delta {at}"
    )
    python = (
        "import audit\n\n"
        f"run = audit.DpSgd(noise_multiplier={sigma}, steps={run.steps}, sampling_rate={rate}, "
        f"neighbours={run.neighbours!r})\n"
        f'audit.tuning_cost(run, "{spec}", delta={at}).epsilon'
    )
    return Answer(
        epsilon, run.epsilon(delta), protocol.expected_quantile(), sentence, command, python
    )


class _Figure:
    """Cost over the number of runs, one line per protocol, and the user's point."""

    def __init__(self) -> None:
        from bokeh.models import ColumnDataSource, FixedTicker, Legend, LegendItem
        from bokeh.plotting import figure

        self.plot = figure(
            x_axis_type="log", height=500, sizing_mode="stretch_width", toolbar_location=None,
            tools="", x_axis_label="expected number of runs", y_axis_label="ε of the tuning",
            x_range=(1.8, 560), min_border_right=15,
        )  # fmt: skip
        self.plot.y_range.start = 0.0
        self.plot.xaxis.ticker = FixedTicker(ticks=[2, 5, 10, 20, 50, 100, 200, 500])
        self.lines = {}
        items = []
        for title, colour in zip(cases(RUNS[0]), itertools.cycle(_COLOURS), strict=False):
            self.lines[title] = ColumnDataSource({"x": [], "y": []})
            style = "dashed" if title.startswith("grid") else "solid"  # it may cover another line
            line = self.plot.line(
                "x", "y", source=self.lines[title], color=colour, line_width=3, line_dash=style
            )
            items.append(LegendItem(label=title, renderers=[line]))
        self.point = ColumnDataSource({"x": [], "y": []})
        point = self.plot.scatter("x", "y", source=self.point, size=15, color="black")
        items.insert(0, LegendItem(label="yours", renderers=[point]))
        legend = Legend(items=items, location="bottom_left", border_line_alpha=0, padding=0)
        self.plot.add_layout(legend, "below")


def _page() -> Any:
    """The page of one visitor."""
    import panel  # in the extra `app`

    run_inputs = [
        panel.widgets.FloatInput(name="noise multiplier", value=1.1, start=1e-3, step=0.1),
        panel.widgets.FloatInput(name="sampling rate", value=0.01, start=1e-6, end=1.0, step=0.01),
        panel.widgets.IntInput(name="steps of one run", value=2000, start=1, end=10**6),
        panel.widgets.FloatInput(name="delta", value=1e-5, start=1e-15, end=0.5, step=1e-6,
                                 format="0.[000000000000000]"),
    ]  # fmt: skip
    protocol = panel.widgets.Select(
        name="How did you choose the candidates?",
        options=[*cases(RUNS[0])],
        value="grid, every point once",
    )
    runs = panel.widgets.DiscreteSlider(
        name="expected number of runs", options=list(RUNS), value=20
    )
    inputs = [*run_inputs, protocol, runs]
    for one in inputs:
        one.sizing_mode = "stretch_width"
    texts = [panel.pane.HTML("", sizing_mode="stretch_width") for _ in range(4)]
    cost, sentence, command, python = texts
    figure = _Figure()
    latest: list[object] = [None]
    document = panel.state.curdoc

    def draw(source: Any, x: list[float], y: list[float]) -> None:
        # Another event may hold the lock of the document now.
        document.add_next_tick_callback(lambda: setattr(source, "data", {"x": x, "y": y}))

    def show(opacity: float) -> None:
        for text in texts:
            text.styles = {"opacity": f"{opacity}"}

    async def update(*_: Any) -> None:
        latest[0] = mine = object()
        show(0.3)  # the answer is that of earlier inputs
        try:
            noise, rate, steps = (part.value for part in run_inputs[:3])
            run = DpSgd(noise, steps, rate, "zero-out")
            delta, title, mean = run_inputs[3].value, protocol.value, runs.value
            answer = await asyncio.to_thread(compute, run, title, mean, delta)
        except (InvalidInput, DeltaUnreachable) as error:
            for text in texts:
                text.object = ""
            sentence.object = f"<p id='error'>Error: {html.escape(str(error))}</p>"
            show(1.0)
            return
        if latest[0] is not mine:
            return
        quantile = "-" if answer.quantile is None else f"{answer.quantile:.3f}"
        cost.object = (
            "<p style='font-size: 18px'>Cost of the tuning: ε = "
            f"<b id='cost'>{format_rounded(answer.epsilon, up=True)}</b><br>Cost of one run: ε = "
            f"<span id='run'>{format_rounded(answer.one_run, up=True)}</span><br>Expected quantile "
            f"of the best candidate: <span id='quantile'>{quantile}</span></p>"
        )
        sentence.object = f"<p id='sentence' style='font-size: 14px'>{answer.sentence}</p>"
        wrap = "style='white-space: pre-wrap; overflow-wrap: anywhere'"
        command.object = f"<pre id='command' {wrap}>{answer.command}</pre>"
        python.object = f"<pre id='python' {wrap}>{html.escape(answer.python)}</pre>"
        show(1.0)
        draw(figure.point, [mean], [answer.epsilon])
        for line in figure.lines.values():
            draw(line, [], [])
        # The curves take longer, so they appear after the answer: the chosen protocol and the
        # points near the answer first.
        for name in sorted(cases(RUNS[0]), key=lambda name: name != title):
            points: dict[float, float] = {}
            counts = RUNS if name == title else {*_CURVE_RUNS, mean}
            for count in sorted(counts, key=lambda count: abs(math.log(count / mean))):
                try:
                    epsilon = await _point_of_curve(run, protocol_of(name, count).spec, delta)
                except (InvalidInput, DeltaUnreachable):
                    continue
                if latest[0] is not mine:
                    return
                points[count] = epsilon
                draw(figure.lines[name], sorted(points), [points[x] for x in sorted(points)])

    panel.bind(update, *inputs, watch=True)
    panel.state.onload(update)
    content = panel.Column(
        "# The privacy cost of tuning",
        "The cost of training several models with DP-SGD and releasing the best one.",
        panel.FlexBox(*(panel.Column(*part, min_width=300, max_width=420, margin=(0, 10))
                        for part in (run_inputs, (protocol, runs, cost)))),
        panel.pane.Bokeh(figure.plot, sizing_mode="stretch_width"),
        "### Privacy statement", sentence,
        "### On the command line", command,
        "### In Python", python,
        max_width=900, sizing_mode="stretch_width", styles={"margin": "auto"},
    )  # fmt: skip
    page = panel.Template(_TEMPLATE)
    page.add_panel("content", content)
    return page


def make_parser() -> console.Parser:
    """The options of the command."""
    parser = console.Parser(
        prog="python -m audit.app",
        description="A calculator of the cost of a tuning, in the browser, on this machine only.",
        examples=_EXAMPLES,
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: a free port")
    parser.add_imports()
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Serves the calculator until it is interrupted, and returns the exit code."""
    try:
        arguments: argparse.Namespace = make_parser().parse_args(argv)
        port = checks.integer("port", arguments.port, 0, 65535)
    except ValueError as error:
        return console.report_error(error)
    import panel

    panel.extension(throttled=True)
    try:
        server = panel.serve(
            _page, port=port, address="127.0.0.1", show=not arguments.no_browser, start=False,
            title="The privacy cost of tuning",
        )  # fmt: skip
    except OSError as error:  # another program uses the port
        return console.report_error(f"port must be free, got {port}: {checks.reason_of(error)}")
    _protect(server._tornado, server.port)
    server.start()
    with contextlib.suppress(RuntimeError):  # the loop of a notebook is running already
        server.io_loop.start()
    return console.OK


def _protect(application: Any, port: int) -> None:
    """Answers only requests to this machine by its name, and only those that the page makes.

    A page of another host can make the browser connect here by changing its own address, but its
    requests then carry the name of that host. Panel's handler of components would import modules
    that the path names; this page has none. No other page may show this one in a frame.
    """
    from tornado.web import ErrorHandler, OutputTransform

    hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
    find_handler = application.find_handler

    def find_allowed(request: Any, **named: Any) -> Any:
        status = None
        if request.host not in hosts:
            status = 403
        elif request.path.startswith("/components"):
            status = 404
        if status is None:
            return find_handler(request, **named)
        return application.get_handler_delegate(request, ErrorHandler, {"status_code": status})

    class NoFrames(OutputTransform):  # type: ignore[misc, unused-ignore]
        """Adds headers that forbid to show the page in a frame, and to guess types of content."""

        def transform_first_chunk(
            self, status_code: int, headers: Any, chunk: bytes, finishing: bool
        ) -> tuple[int, Any, bytes]:
            headers["X-Frame-Options"] = "DENY"
            headers["Content-Security-Policy"] = "frame-ancestors 'none'"
            headers["X-Content-Type-Options"] = "nosniff"
            headers["Referrer-Policy"] = "no-referrer"
            return status_code, headers, chunk

    application.find_handler = find_allowed
    application.add_transform(NoFrames)
