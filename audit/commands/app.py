"""The command `dp-tuning-audit app`: a calculator of the cost of a tuning, in the browser.

The page is built with Panel and is served to this machine only.
"""

import argparse
import asyncio
import functools
import html
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from audit import checks, console
from audit.accounting import DeltaUnreachable, DpSgd
from audit.errors import InvalidInput
from audit.numerics import format_exact, format_rounded
from audit.processes import end_with_parent
from audit.protocols import Grid, RandomSearch, Sequential, UntilAccepted, parse_protocol
from audit.repetitions import Fixed, TruncatedNegativeBinomial
from audit.upper_bounds import tuning_cost
from audit.upper_bounds.statement import premises_of


def _logarithmic(runs: int) -> str:
    found = TruncatedNegativeBinomial(0.0, 0.5).with_mean(runs)
    assert isinstance(found, TruncatedNegativeBinomial)
    return f"tnb:0,{found.gamma:.3g}"


_DRAWN = (
    "each run trains a candidate drawn independently from a prior that does not depend on the "
    "records"
)
# Name, text of the protocol with about that many runs, the condition on the tuning, and a colour.
PROTOCOLS = {
    "random search, logarithmic K": (
        _logarithmic, f"the number of runs is drawn from {{spec}} and stays secret, and {_DRAWN}",
        "#0173b2",
    ),
    "random search, geometric K": (
        lambda runs: f"geometric:{1 / runs:.3g}",
        f"the number of runs is drawn from {{spec}} and stays secret, and {_DRAWN}", "#de8f05",
    ),
    "random search, Poisson K": (
        lambda runs: f"poisson:{runs}",
        f"the number of runs is drawn from {{spec}} and stays secret, and {_DRAWN}", "#029e73",
    ),
    "random search, fixed K": (
        lambda runs: f"fixed:{runs}", f"there are {{runs}} runs, and {_DRAWN}", "#d55e00",
    ),
    "grid, every point once": (
        lambda runs: f"grid:{runs}",
        "each of {runs} candidates that were fixed in advance is trained once", "#cc78bc",
    ),
    "chosen by results: an optimiser (TPE, Bayesian) or by hand": (
        lambda runs: f"sequential:{runs}",
        "there are {runs} runs, whose number and budgets were fixed in advance, and candidates may "
        "depend on earlier results", "#56b4e9",
    ),
    "repeat until one is accepted": (
        lambda runs: f"until:{1 / runs:.3g}",
        "candidates are trained until one is accepted, each run is accepted with probability "
        "{chance} on any data set, and no one observes the number of runs", "#949494",
    ),
}  # fmt: skip
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
    # expected quantile of the best candidate, where candidates come from one prior; else None
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


def compute(run: DpSgd, title: str, runs: int, delta: float) -> Answer:
    """The cost of a tuning, its quality, its statement and the lines that reproduce it.

    Args:
        run: one run.
        title: a key of `PROTOCOLS`.
        runs: expected number of runs.
        delta: of the whole tuning, in (0, 1).

    Raises:
        InvalidInput: an argument is out of its range.
        DeltaUnreachable: no bound reaches delta.
    """
    make, condition, _ = PROTOCOLS[checks.one_of("protocol", title, PROTOCOLS)]
    spec = make(runs)
    protocol = parse_protocol(spec)
    epsilon = _cost(run, spec, delta)
    quantile: float | None
    if isinstance(protocol, Sequential):  # its candidates come from no prior
        quantile = None
    elif isinstance(protocol, UntilAccepted):  # the released run is uniform among the accepted
        quantile = 1.0 - protocol.acceptance / 2.0
    elif isinstance(protocol, Grid):
        quantile = Fixed(protocol.candidates).expected_quantile()
    else:
        assert isinstance(protocol, RandomSearch)
        quantile = protocol.repetitions.expected_quantile()
    sigma, rate, at = map(format_exact, (run.noise_multiplier, run.sampling_rate, delta))
    batches = (
        "all records"
        if run.sampling_rate == 1
        else f"batches by Poisson sampling at rate {rate} (assumed)"
    )
    released = "the runs" if isinstance(protocol, Sequential) else "the best model"
    sentence = (
        f"The released model is ({format_rounded(epsilon, up=True, digits=4)}, {at})-differentially"
        f" private for {premises_of([run]).neighbours}, whatever the score, if "
        + condition.format(spec=spec, runs=runs, chance=spec.rpartition(":")[2])
        + f"; if each run makes at most {run.steps} steps of DP-SGD with {batches}, noise "
        f"multiplier {sigma} and a divisor that may depend on the number of records, which is "
        f"public; if scores are made from outputs and public records alone; and if nothing but "
        f"{released} is released."
    )
    option = "protocol" if not isinstance(protocol, RandomSearch) else "repetitions"
    command = (
        f"dp-tuning-audit bounds --noise-multiplier {sigma} --sampling-rate {rate} "
        f"--steps {run.steps} --neighbours {run.neighbours} --{option} {spec} --delta {at}"
    )
    python = (
        "import audit\n\n"
        f"run = audit.DpSgd({sigma}, {run.steps}, {rate}, neighbours={run.neighbours!r})\n"
        f'audit.tuning_cost(run, "{spec}", delta={at}).epsilon'
    )
    return Answer(epsilon, run.epsilon(delta), quantile, sentence, command, python)


def _shown(quantile: float | None) -> str:
    return "-" if quantile is None else f"{quantile:.3f}"


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
        for title, (_, _, colour) in PROTOCOLS.items():
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
        panel.widgets.FloatInput(name="noise multiplier", value=70.0, start=1e-3, step=0.1),
        panel.widgets.FloatInput(name="sampling rate", value=1.0, start=1e-6, end=1.0, step=0.01),
        panel.widgets.IntInput(name="steps of one run", value=300, start=1, end=10**6),
        panel.widgets.FloatInput(name="delta", value=1e-5, start=1e-15, end=0.5, step=1e-6,
                                 format="0.[000000000000000]"),
    ]  # fmt: skip
    protocol = panel.widgets.Select(
        name="How did you choose the candidates?",
        options=list(PROTOCOLS),
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
            run = DpSgd(run_inputs[0].value, run_inputs[2].value, run_inputs[1].value, "zero-out")
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
        cost.object = (
            "<p style='font-size: 18px'>Cost of the tuning: ε = "
            f"<b id='cost'>{format_rounded(answer.epsilon, up=True)}</b><br>Cost of one run: ε = "
            f"<span id='run'>{format_rounded(answer.one_run, up=True)}</span><br>Expected quantile "
            f"of the best candidate: <span id='quantile'>{_shown(answer.quantile)}</span></p>"
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
        for name in sorted(PROTOCOLS, key=lambda one: one != title):
            points: dict[float, float] = {}
            counts = RUNS if name == title else {*_CURVE_RUNS, mean}
            for count in sorted(counts, key=lambda count: abs(math.log(count / mean))):
                try:
                    epsilon = await _point_of_curve(run, PROTOCOLS[name][0](count), delta)
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
        panel.serve(
            _page, port=port, address="127.0.0.1", show=not arguments.no_browser,
            title="The privacy cost of tuning",
        )  # fmt: skip
    except OSError as error:  # another program uses the port
        return console.report_error(f"port must be free, got {port}: {checks.reason_of(error)}")
    return console.OK
