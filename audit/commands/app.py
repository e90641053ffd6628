"""The command `dp-tuning-audit app`: a calculator of the cost of a tuning, in the browser.

The page is built with Panel and is served to this machine only.
"""

import argparse
import asyncio
import contextlib
import functools
import html
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from audit import checks, console
from audit.accounting import DeltaUnreachable, DpSgd, RandomAllocation
from audit.commands import calculator
from audit.errors import InvalidInput, require_modules
from audit.numerics import format_rounded
from audit.processes import end_with_parent

# The colours are readable on white and, with inverted lightness, on black.
_COLOURS = (
    *("#0173b2", "#c77c02", "#029e73", "#d55e00", "#cc78bc", "#6b6b6b", "#ca9161", "#7b3fa0"),
    *("#d64fa0", "#9a8f00"),
)
_WORKERS = 2  # one computes the answer while the other finishes a point of an earlier curve
_EXAMPLES = {
    "python -m audit.app": "opens the calculator in the browser",
    "python -m audit.app --port 8000 --no-browser": "serves it at http://127.0.0.1:8000",
}
# Without the viewport, a phone shows the page as if its screen had 980 pixels. Panel's widgets and
# figures have fixed light colours, so dark mode inverts their lightness and keeps their hues.
_TEMPLATE = """{% extends base %}
{% block postamble %}<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<style>
html, body { background: #fff; }
@media (prefers-color-scheme: dark) {
  html, body { background: #141414; }
  [data-root-id] > * { filter: invert(0.92) hue-rotate(180deg); color-scheme: light; }
}
</style>{% endblock %}
{% block contents %}{{ embed(roots.content) }}{% endblock %}"""


@functools.cache
def _workers() -> ProcessPoolExecutor:
    """The processes that compute smallest bounds. Threads would delay the first curve."""
    return ProcessPoolExecutor(_WORKERS, get_context("spawn"), end_with_parent)


async def _smallest_cost(run: calculator.Run, spec: str, delta: float) -> float:
    """The cost of a tuning from another process; it is remembered here, too."""
    if not calculator.is_known(run, spec, delta):
        loop = asyncio.get_running_loop()
        try:
            epsilon = await loop.run_in_executor(_workers(), calculator.cost, run, spec, delta)
        except BrokenProcessPool:  # it was killed; the next inputs start another one
            _workers.cache_clear()
            raise
        calculator.remember(run, spec, delta, epsilon)
    return calculator.cost(run, spec, delta)


class _Figure:
    """Cost over the number of runs, one line per protocol, and the user's point."""

    def __init__(self, show_legend: Callable[[str], None]) -> None:
        from bokeh.models import ColumnDataSource, FixedTicker, NumeralTickFormatter
        from bokeh.plotting import figure

        self._show_legend = show_legend
        self.plot = figure(
            x_axis_type="log", y_axis_type="log", height=420, sizing_mode="stretch_width",
            toolbar_location=None, tools="", x_axis_label="expected number of runs",
            y_axis_label="ε of the tuning", x_range=(1.8, 560), min_border_right=15,
        )  # fmt: skip
        self.plot.xaxis.ticker = FixedTicker(ticks=[2, 5, 10, 20, 50, 100, 200, 500])
        self.plot.yaxis.ticker = FixedTicker(
            ticks=[digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 5)]
        )
        self.plot.yaxis.formatter = NumeralTickFormatter(format="0.[000000]")
        self.plot.axis.major_tick_in = 0  # inside, a tick looks like a point of a curve
        self.colours = dict(
            zip(calculator.cases(calculator.RUNS[0]), itertools.cycle(_COLOURS), strict=False)
        )
        self.points: dict[str, dict[int, float]] = {title: {} for title in self.colours}
        self.lines: dict[str, Any] = {}
        for title, colour in self.colours.items():
            self.lines[title] = ColumnDataSource({"x": [], "y": []})
            style = "dashed" if title.startswith("grid") else "solid"  # it may cover another line
            self.plot.line(
                "x", "y", source=self.lines[title], color=colour, line_width=3, line_dash=style
            )
        self.point = ColumnDataSource({"x": [], "y": []})
        self.plot.scatter("x", "y", source=self.point, size=15, color="black")

    def clear(self) -> None:
        """Removes all lines and the point."""
        for title, source in self.lines.items():
            self.points[title] = {}
            source.data = {"x": [], "y": []}
        self.point.data = {"x": [], "y": []}
        self._show_legend("")

    def mark(self, runs: int, epsilon: float) -> None:
        """Moves the user's point."""
        self.point.data = {"x": [runs], "y": [epsilon]}

    def update(self, title: str, points: Mapping[int, float]) -> None:
        """Adds points to a line, or moves them, and names every line that is drawn."""
        before = self.points[title]
        before |= {runs: epsilon for runs, epsilon in points.items() if epsilon > 0.0}
        runs = sorted(before)
        self.lines[title].data = {"x": runs, "y": [before[count] for count in runs]}
        self._show_legend(
            "".join(
                f"<span style='white-space: nowrap; margin-right: 1.5em'><span style='display: "
                f"inline-block; width: 1.8em; vertical-align: middle; border-top: 3px "
                f"{'dashed' if name.startswith('grid') else 'solid'} {colour}'></span> "
                f"{html.escape(name)}</span> "
                for name, colour in self.colours.items()
                if self.points[name]
            )
        )


class _Inputs:
    """The fields of the page."""

    def __init__(self) -> None:
        import panel  # in the extra `app`

        widgets = panel.widgets
        self.batches = widgets.Select(
            name="Which batches contain a record?", options=list(calculator.BATCHES)
        )
        self.noise = widgets.FloatInput(name="noise multiplier", value=1.1, start=1e-3, step=0.1)
        self.rate = widgets.FloatInput(
            name="sampling rate", value=0.01, start=1e-6, end=1.0, step=0.01
        )
        self.steps = widgets.IntInput(name="steps of one run", value=2000, start=1, end=10**6)
        self.batches_per_epoch = widgets.IntInput(
            name="batches of an epoch", value=100, start=1, end=10**6, visible=False
        )
        self.epochs = widgets.IntInput(
            name="epochs of one run", value=20, start=1, end=10**6, visible=False
        )
        self.delta = widgets.FloatInput(
            name="delta", value=1e-5, start=1e-15, end=0.5, step=1e-6, format="0.[000000000000000]"
        )
        self.title = widgets.Select(
            name="How did you choose the candidates?",
            groups=calculator.titles_by_choice(),
            value=calculator.START,
        )
        self.runs = widgets.DiscreteSlider(
            name="expected number of runs", options=list(calculator.RUNS), value=20
        )
        self.of_run = [
            self.batches, self.noise, self.rate, self.steps, self.batches_per_epoch, self.epochs,
            self.delta,
        ]  # fmt: skip
        self.all = [*self.of_run, self.title, self.runs]
        for widget in self.all:
            widget.sizing_mode = "stretch_width"

    def show_fields(self) -> None:
        """Shows the fields that describe batches of the chosen kind."""
        is_poisson = self.batches.value == calculator.POISSON
        for field in (self.rate, self.steps):
            field.visible = is_poisson
        for field in (self.batches_per_epoch, self.epochs):
            field.visible = not is_poisson

    def run(self) -> calculator.Run:
        """One run. With Poisson sampling, the number of records is public, as Opacus assumes."""
        noise = self.noise.value
        if self.batches.value == calculator.POISSON:
            return DpSgd(noise, self.steps.value, self.rate.value, "zero-out")
        is_fixed = self.batches.value == calculator.FIXED
        return RandomAllocation(
            noise, self.batches_per_epoch.value, self.epochs.value, fixed=is_fixed
        )


async def _improvements(
    run: calculator.Run, title: str, runs: int, delta: float
) -> AsyncIterator[tuple[str, dict[int, float]]]:
    """Points of curves by title: quick bounds, then the smallest; the chosen protocol first."""
    titles = sorted(calculator.cases(runs), key=lambda name: name != title)
    for name in titles:
        with contextlib.suppress(InvalidInput, DeltaUnreachable):
            yield name, await asyncio.to_thread(calculator.first_curve, run, name, runs, delta)
    for name in titles:
        for count in calculator.counts_of_curve(runs, refined=name == title):
            spec = calculator.protocol_of(name, count).spec
            with contextlib.suppress(InvalidInput, DeltaUnreachable):
                yield name, {count: await _smallest_cost(run, spec, delta)}


class _Page:
    """The page of one visitor."""

    def __init__(self) -> None:
        import panel

        self.inputs = _Inputs()
        texts = [panel.pane.HTML("", sizing_mode="stretch_width") for _ in range(5)]
        self.cost, self.sentence, self.command, self.python, self.legend = texts
        self.figure = _Figure(lambda text: setattr(self.legend, "object", text))
        self._latest: object = None
        self._document = panel.state.curdoc
        panel.bind(self.update, *self.inputs.all, watch=True)
        panel.state.onload(self.update)
        panel.state.on_session_destroyed(lambda _: self._stop())

    def _stop(self) -> None:
        """Stops computing: the visitor left."""
        self._latest = None

    def _draw(self, change: Callable[[], None]) -> None:
        """Changes the figure as soon as no other event holds the lock of the document."""
        if self._latest is not None:
            self._document.add_next_tick_callback(change)

    def _set_opacity(self, opacity: float) -> None:
        for text in (self.cost, self.sentence, self.command, self.python):
            text.styles = {"opacity": f"{opacity}"}

    def _show_error(self, error: Exception) -> None:
        for text in (self.cost, self.command, self.python):
            text.object = ""
        self.sentence.object = f"<p id='error'>Error: {html.escape(str(error))}</p>"
        self._set_opacity(1.0)

    def _show_answer(self, answer: calculator.Answer) -> None:
        quantile = "-" if answer.quantile is None else f"{answer.quantile:.3f}"
        self.cost.object = (
            "<p style='font-size: 18px'>Cost of the tuning: ε = "
            f"<b id='cost'>{format_rounded(answer.epsilon, up=True)}</b><br>Cost of one run: ε = "
            f"<span id='run'>{format_rounded(answer.one_run, up=True)}</span><br>Expected quantile "
            f"of the best candidate: <span id='quantile'>{quantile}</span></p>"
        )
        self.sentence.object = f"<p id='sentence' style='font-size: 14px'>{answer.sentence}</p>"
        wrap = "style='white-space: pre-wrap; overflow-wrap: anywhere'"
        self.command.object = f"<pre id='command' {wrap}>{answer.command}</pre>"
        self.python.object = f"<pre id='python' {wrap}>{html.escape(answer.python)}</pre>"
        self._set_opacity(1.0)

    def _show_quick(self, epsilon: float) -> None:
        self.cost.object = (
            "<p style='font-size: 18px'>Cost of the tuning: ε ≤ "
            f"<span id='quick'>{format_rounded(epsilon, up=True)}</span><br>"
            "A smaller bound is being computed.</p>"
        )
        self.cost.styles = {"opacity": "1.0"}

    async def _answer(self, token: object) -> None:
        """Shows the answer as soon as another process has computed its epsilon."""
        inputs = self.inputs
        run, title, runs, delta = (
            inputs.run(), inputs.title.value, inputs.runs.value, inputs.delta.value
        )  # fmt: skip
        spec = calculator.protocol_of(title, runs).spec
        try:
            epsilon = await _smallest_cost(run, spec, delta)
            answer = await asyncio.to_thread(calculator.compute, run, title, runs, delta)
        except (InvalidInput, DeltaUnreachable) as error:
            if self._latest is token:
                self._show_error(error)
            return
        if self._latest is token:
            self._show_answer(answer)
            self._draw(lambda: self.figure.mark(runs, epsilon))

    async def update(self, *_: Any) -> None:
        """Computes everything again: a quick bound, the answer, and the curves."""
        self._latest = token = object()
        self._set_opacity(0.3)  # the answer is that of earlier inputs
        inputs = self.inputs
        inputs.show_fields()
        title, runs, delta = inputs.title.value, inputs.runs.value, inputs.delta.value
        try:
            run = inputs.run()
            spec = calculator.protocol_of(title, runs).spec
            quick = await asyncio.to_thread(calculator.quick_cost, run, spec, delta)
        except (InvalidInput, DeltaUnreachable) as error:
            self._show_error(error)
            return
        if self._latest is not token:
            return
        self._draw(self.figure.clear)
        self._draw(lambda: self.figure.mark(runs, quick))
        if not calculator.is_known(run, spec, delta):
            self._show_quick(quick)
        answering = asyncio.create_task(self._answer(token))
        async for name, points in _improvements(run, title, runs, delta):
            if self._latest is not token:
                break
            self._draw(functools.partial(self.figure.update, name, points))
        await answering

    @property
    def content(self) -> Any:
        """The page for Panel."""
        import panel

        inputs = self.inputs
        return panel.Column(
            "# The privacy cost of tuning",
            "The cost of training several models with DP-SGD and releasing the best one. A loader "
            "that shuffles the records and cuts the list into batches is none of the three kinds "
            "of batches: compute it with sampling rate 1 and one step per epoch.",
            panel.FlexBox(*(panel.Column(*column, min_width=300, max_width=420, margin=(0, 10))
                            for column in (inputs.of_run, (inputs.title, inputs.runs, self.cost)))),
            panel.pane.Bokeh(self.figure.plot, sizing_mode="stretch_width"),
            self.legend,
            "Curves are drawn from quick upper bounds first and then refined in place.",
            "### Privacy statement", self.sentence,
            "### On the command line", self.command,
            "### In Python", self.python,
            max_width=900, sizing_mode="stretch_width", styles={"margin": "auto"},
        )  # fmt: skip


def _page() -> Any:
    """The page of one visitor, as Panel serves it."""
    import panel

    page = panel.Template(_TEMPLATE)
    page.add_panel("content", _Page().content)
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
    require_modules("app", "panel")
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
    _workers().submit(calculator.cases, calculator.RUNS[0])  # the process imports its modules now
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
