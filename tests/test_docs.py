"""The site's own tools; `make docs` builds the site with warnings as errors."""

import ast
import csv
import importlib
import importlib.util
import inspect
import math
import re
import statistics
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import audit
from audit import accounting, attacks, finished, upper_bounds
from audit.repetitions import TruncatedNegativeBinomial
from benchmarks import studies

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def module(name: Any) -> Any:
    specification = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    found = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(found)
    return found


@pytest.mark.parametrize(
    ("link", "wrong"),
    [
        ('<a href="two.html#here">', []),
        ('<a href="#top">', []),
        ('<a href="../0.2.0/index.html">', []),
        ('<a href="../other/index.html">', ["one.html: no file for ../other/index.html"]),
        ('<a href="https://example.org/">', []),
        ('<a href="three.html">', ["one.html: no file for three.html"]),
        ('<a href="two.html#there">', ["one.html: no anchor for two.html#there"]),
        ('<script src="https://example.org/x.js">', ["one.html: loads https://example.org/x.js"]),
        ('<img src="gone.png">', ["one.html: no file for gone.png"]),
    ],
)
def test_dead_links_are_found(link: str, wrong: list[str], tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text(f'<p id="top">{link}')
    (tmp_path / "two.html").write_text('<p id="here"><a href="one.html">')
    assert module("check_links").problems(tmp_path) == wrong


def test_a_folder_without_pages_is_refused(tmp_path: Path) -> None:
    assert module("check_links").problems(tmp_path) == [f"{tmp_path}: no pages"]


@pytest.mark.slow
def test_pictures_of_protocols(tmp_path: Path) -> None:
    pictures = module("pictures")
    base = accounting.GaussianMechanism(0.25)
    pictures.PROTOCOLS = {
        title: make
        for title, make in pictures.PROTOCOLS.items()
        if title.startswith(("grid", "un"))
    }
    found = pictures.points(base, 1e-5, (2, 10))
    # Of m uniform candidates the best is m/(m+1) on average; of those accepted the mean is 1 - a/2.
    assert {(p.title, p.runs): p.quantile for p in found}["grid, every point once", 10] == (
        pytest.approx(10 / 11)
    )
    assert found[-1].quantile == 0.95
    assert all(base.epsilon(1e-5) < point.epsilon for point in found)
    pictures.draw(found, base.epsilon(1e-5), tmp_path)
    assert len(list(tmp_path.glob("which_protocol-*.png"))) == 3
    assert pictures.table(found).count("\n") == 1 + len(pictures.PROTOCOLS)


def test_every_figure_has_a_caption_and_its_data() -> None:
    figures = 0
    pages = set(DOCS.glob("*.md")) - {DOCS / "examples.md"}  # its pictures have their code
    for page in pages:
        for caption in re.findall(
            r"^!\[[^\n]*\]\([^\n]+\.png\)\n\n(.*?)(?:\n\n|\n\Z)", page.read_text(), re.M | re.S
        ):
            figures += 1
            assert caption.startswith("*"), page
            assert caption.endswith("*"), page
            files = re.findall(r"\]\(([\w.-]+\.csv)\)", caption)
            assert files, caption
            assert all(len((DOCS / file).read_text().splitlines()) > 2 for file in files)
    assert figures == sum(page.read_text().count(".png)") for page in pages)


def test_the_data_of_published_figures_are_the_numbers_of_the_page() -> None:
    for path, page in [
        (path, "reproductions_training.md") for path in DOCS.glob("training-*.csv")
    ] + [(DOCS / "attacks.csv", "attacks.md")]:
        text = (DOCS / page).read_text()
        numbers = set(re.findall(r"\d+(?:\.\d+)?", text)) | {"1e-05"}
        for row in csv.DictReader(path.read_text().splitlines()):
            for value in row.values():
                assert value in numbers or (not value[:1].isdigit() and value in text), row


def test_the_numbers_of_the_controls_agree() -> None:
    page = (DOCS / "controls.md").read_text()
    apart, correct, _, _, _, kinds = (
        [
            [cell.strip() for cell in row.split(" | ")]
            for row in re.findall(r"^\| (.*) \|$", part, re.M)
        ]
        for part in re.split(
            r"^## (?:Loops written|Correct|Loops of arrays|Scripts|Public|Every)", page, flags=re.M
        )[1:]
    )
    with (DOCS / "controls.csv").open() as file:
        mistakes = list(csv.DictReader(file))
    times: dict[str, list[float]] = {}
    for row in mistakes:
        times.setdefault(row["found_by"], []).append(float(row["cpu_seconds"]))
    assert {kind.strip("*"): (int(size), cpu) for kind, size, cpu, _ in kinds[1:]} == {
        kind: (len(cpu), f"{statistics.median(cpu) + 1e-9:.1f}, {max(cpu):.1f}")
        for kind, cpu in times.items()
    }
    reported = sum(bool(row["public_report"]) for row in mistakes)
    assert f"[All {len(mistakes)} mistakes](controls.csv)" in page
    assert f"for {reported} of them, the address" in page
    seconds = [cpu for kind, several in times.items() if kind != "not found" for cpu in several]
    count, total = len(seconds), len(mistakes)
    result = " ".join(page.split())
    assert f"**Result.** {count} of the {total} loops of the [last table](#every-mistake)" in result
    assert f"in at most {math.ceil(max(seconds))} seconds" in result
    assert f"(median {statistics.median(seconds) + 1e-9:.1f};" in result
    assert sum(int(row[-1].split(" of ")[0]) for row in apart[1:]) == 12
    assert "Of the twelve correct loops that were accused" in page
    for _, checks, _, accused, limit in correct[1:]:
        upper = 1 - 0.05 ** (1 / int(checks.replace(",", "")))
        assert accused == "0"
        assert upper <= float(limit) < 1.1 * upper
    guide = " ".join((DOCS / "audit_your_training.md").read_text().split())
    _, written, at_first, wrongly = apart[-1]
    assert f"{at_first} of {written} were found at first" in page
    assert f"finds {count} of {total} training loops with a known mistake" in guide
    assert f"of the latest {written} mistakes, it found {at_first} at first" in guide
    assert f"it accused {wrongly} correct loops" in guide


PUBLISHED = {"profile", "renyi", "lemma-7", "corollary-4", "liu-talwar", "approximate"}
PUBLISHED |= {"hypo", "koskela-kulkarni", "proposition-15"}


def rounded_up(value: float, digits: int = 3) -> str:
    return f"{math.ceil(value * 10**digits) / 10**digits:.{digits}f}"


@pytest.mark.slow
def test_the_page_on_protocols_states_their_costs() -> None:
    page = (DOCS / "which_protocol.md").read_text()
    base = accounting.GaussianMechanism(0.24721)
    logarithmic = TruncatedNegativeBinomial(0.0, 0.5).with_mean(10).spec
    rows = {
        "| random search: ": [logarithmic, "geometric:0.1", "poisson:10", "fixed:10"],
        "| `grid:20,0.5`": ["grid:20,0.5"],
        "| `grid:10`": ["grid:10"],
        "| `adaptive:0.75,1.33`": [f"adaptive:0.75,1.33/{logarithmic}"],
        "| `subset:0.1`": [f"subset:0.1/{logarithmic}"],
        "| `until:0.1`": ["until:0.1"],
        "| `stopping:0.1`": ["stopping:0.1"],
    }
    for start, protocols in rows.items():
        (row,) = (line for line in page.splitlines() if line.startswith(start))
        *_, ours, published, _ = (cell.strip() for cell in row.split("|"))
        found = [upper_bounds.all_upper_bounds(base, one, 1e-5) for one in protocols]
        costs = [upper_bounds.smallest(one).epsilon for one in found]
        assert ours == ", ".join(map(rounded_up, costs))
        papers = [[b.epsilon for b in one if b.name in PUBLISHED and b.applies] for one in found]
        smallest = [rounded_up(min(one)) if one else "-" for one in papers]
        assert published == ", ".join(smallest)


def test_the_first_numbers_of_the_documentation() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    run = accounting.DpSgd(noise_multiplier=1.1, steps=2000, sampling_rate=0.01)
    one_run = rounded_up(run.epsilon(1e-5), 2)
    costs = {}
    for chosen in ("grid", "random", "sequential"):
        epsilon = finished.cost_of_trials([run] * 20, chosen, delta=1e-5).best_only
        costs[chosen] = rounded_up(epsilon, 2)
        assert f"| {costs[chosen]} | `--chosen {chosen}` |" in readme
    secret = rounded_up(upper_bounds.tuning_cost(run, "geometric:0.05", 1e-5).epsilon, 2)
    assert f"2,000 steps) costs {one_run}." in readme
    assert f"runs of the figure, each of which costs {one_run}." in readme
    assert f"(geometric, twenty on average), the tuning would cost {secret} (" in readme
    for page in ("index.md", "what_did_my_tuning_cost.md"):
        text = (DOCS / page).read_text()
        assert f"where one run has epsilon {one_run} at delta 1e-5 (all rounded up):" in text
        rows = dict(re.findall(r"\| `(\w+:20)` \| ([\d.]+) \|", text))
        assert rows == {
            "grid:20": costs["grid"], "fixed:20": costs["random"], "tpe:20": costs["sequential"]
        }  # fmt: skip


def test_the_first_figure_shows_the_costs_of_its_protocols() -> None:
    run = module("pictures").BASE_OF_OVERVIEW
    with (DOCS / "overview.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows[::33]:
        epsilon = upper_bounds.tuning_cost(run, row["specification"], 1e-5).epsilon
        assert float(row["epsilon"]) == pytest.approx(epsilon, abs=1e-4)
    costs = {
        (row["protocol"], row["expected_runs"]): rounded_up(float(row["epsilon"]), 2)
        for row in rows
    }
    index = " ".join((DOCS / "index.md").read_text().split())
    fixed, geometric = "grid, every point once", "random, geometric K"
    assert (
        f"the cost rises from {costs[fixed, '5']} to {costs[fixed, '100']} if their number is "
        f"fixed, and from {costs[geometric, '5']} to {costs[geometric, '100']} if it is secret"
    ) in index


def test_the_readme_is_short() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.split()) <= 700
    assert readme.count("![") == 1
    programs = re.findall(r"^```python\n(.*?)\n", readme, re.M)
    assert programs == ["import audit"] * 2  # each runs alone
    setup = re.findall(r"^make \w+", readme, re.M)
    assert setup == ["make audit", "make test"]


@pytest.mark.slow
def test_the_costs_of_groups_in_what_to_report() -> None:
    page = (DOCS / "what_to_report.md").read_text()
    for records in (1, 2):
        run = accounting.DpSgd(2.0, 1000, 0.01, group_size=records)
        costs = [
            upper_bounds.tuning_cost(run, one, 1e-5).epsilon for one in ("tnb:0,0.02", "grid:12")
        ]
        cells = [str(records), *map(rounded_up, (run.epsilon(1e-5), *costs))]
        assert f"| {' | '.join(cells)} |\n" in page


@pytest.mark.slow
def test_the_split_orders_of_the_theory() -> None:
    page = (DOCS / "proofs.md").read_text()
    words = " ".join(page.split())
    assert "*Split* is the best order that puts outputs above a threshold first" in words
    rows = re.findall(r"^\| (\S+) \| ([a-z]\S+)((?: \| [\d.]+){5}) \|$", page, re.M)
    assert len(rows) == 11
    for mu, distribution, cells in rows[::5]:
        _, epsilon = attacks.worst_case_split_order(float(mu), distribution, 1e-5)
        assert float(cells.split(" | ")[2]) == pytest.approx(epsilon, rel=4e-5)


@pytest.mark.slow
def test_the_certified_costs_of_complete_studies() -> None:
    rows = re.findall(r"^\| `(.*)\| \w+ \|$", (DOCS / "attacks.md").read_text(), re.M)
    found = [*studies.honest(5000), *studies.broken(2000)]
    assert len(rows) == len(found)
    for row, one in zip(rows, found, strict=True):
        protocol, claimed, name, _, certified = (cell.strip(" `") for cell in row.split(" | "))
        assert (protocol, name) == (one.protocol, one.name)
        assert claimed == (one.claimed or one.protocol)
        assert certified == rounded_up(one.cost)


def test_the_values_that_trials_cannot_prove() -> None:
    page = " ".join((DOCS / "theory.md").read_text().split())
    exact = [accounting.GaussianMechanism(mu).epsilon(1e-5) for mu in (0.5, 1.5)]
    assert f"do not prove the exact values {exact[0]:.3f}, {exact[1]:.3f} and 1.000." in page


def test_a_grid_of_two_costs_less_by_its_exact_bound() -> None:
    base = accounting.GaussianMechanism(1.0)
    costs = {
        one.name: one.epsilon for one in upper_bounds.all_upper_bounds(base, "grid:2,0.5", 0.01)
    }
    exact, product = f"{costs['grid-tight']:.3f}", f"{costs['grid']:.3f}"
    page = " ".join((DOCS / "theory.md").read_text().split())
    assert f"`grid:2,0.5` costs {exact} at $\\delta = 0.01$ ({product} by proposition 3)" in page
    changes = " ".join((ROOT / "CHANGELOG.md").read_text().split())
    assert f"({exact} instead of {product} for grid:2,0.5 at mu 1 and delta 0.01)" in changes


def test_lower_bounds_of_complete_studies_are_rounded_down() -> None:
    one = SimpleNamespace(protocol="fixed:3", claimed="", name="order", cost=2.0001)
    one.leaked = lambda count: 1.2349
    *_, row = studies.table([one], 10)  # type: ignore[list-item]
    assert row == "| `fixed:3` | `fixed:3` | order | 1.234 | 2.001 | consistent |"


@pytest.mark.slow
def test_the_page_on_bounds_names_every_row() -> None:
    page = (DOCS / "glossary.md").read_text()
    upper = page[page.index("### Upper bounds") : page.index("### Lower bounds")]
    rows = re.findall(r"^\| (`.*?) \|", upper, re.M)
    protocols = ["tnb:0,0.1@20", "grid:2", "subset:0.1/fixed:2", "until:0.5", "schedule:2,1"]
    protocols += ["adaptive:0.5,2/fixed:2", "adaptive:1,2/fixed:2", "noisy-max:2"]
    protocols += ["best:2/fixed:3", "pareto:2/fixed:3", "distinct:3/fixed:2"]
    cases = [(accounting.GaussianMechanism(0.25), protocol) for protocol in protocols]
    cases += [(accounting.DpSgd(2.0, 20, 0.1), protocol) for protocol in ("fixed:2", "grid:3")]
    found = [upper_bounds.all_upper_bounds(base, protocol, 1e-5) for base, protocol in cases]
    names = {bound.name for bounds in found for bound in bounds} | {"base"}
    assert set(re.findall(r"`([\w-]+)`", " ".join(rows))) == names


def test_code_in_pages_is_python() -> None:
    pages = [*DOCS.glob("*.md"), ROOT / "README.md"]
    blocks = [
        (page.name, block)
        for page in pages
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    ]
    assert len(blocks) > 10
    for _, block in blocks:
        ast.parse(block)


PUBLIC = {
    **{f"audit.{name}": name for name in ("accounting", "protocols", "repetitions", "claims")},
    **{f"audit.{name}": name for name in ("upper_bounds", "lower_bounds", "orders", "dpsgd")},
    **{f"audit.{name}": name for name in ("tuning", "certificate")},
    **{f"audit.integrations.{name}": name for name in ("opacus", "optuna")},
    "audit.attacks": "attacks",
    "audit.loop": "loop",
    **{f"audit.{name}": name for name in ("finished", "simulation")},
    "audit.upper_bounds.published": "upper_bounds",
    "canaries": "canaries",
    "threat_models": "threat_models",
}


def public(package: Any) -> Any:
    """The public names of a package, and the objects."""
    found = importlib.import_module(package)
    names = getattr(found, "__all__", None) or [
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == package
    ]
    return {name: getattr(found, name) for name in names}


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_has_an_example_that_runs(package: str) -> None:
    without = []
    for name, value in public(package).items():
        if inspect.isclass(value) or inspect.isfunction(value):
            of_members = vars(value).values() if inspect.isclass(value) else []
            docs = [getattr(one, "__doc__", None) or "" for one in (value, *of_members)]
            if not any(">>>" in doc for doc in docs):  # `pytest --doctest-modules` runs them
                without.append(name)
    assert without == []


def test_the_fields_of_named_tuples_are_documented() -> None:
    # Otherwise, their pages describe a field as "Alias for field number 0".
    pycode = pytest.importorskip("sphinx.pycode")
    fields = {
        (value, field)
        for package in PUBLIC
        for value in public(package).values()
        for field in getattr(value, "_fields", ())
    }
    assert fields
    for value, field in fields:
        documented = pycode.ModuleAnalyzer.for_module(value.__module__).find_attr_docs()
        assert (value.__name__, field) in documented


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_in_the_reference(package: str) -> None:
    text = (DOCS / "reference" / f"{PUBLIC[package]}.md").read_text()
    tables = re.findall(r":nosignatures:\n\n((?:   [\w.]+\n)+)", text)
    listed = [name for table in tables for name in table.split()]
    listed += re.findall(r"^\.\. (?:autodata|py:data):: ([\w.]+)$", text, re.M)
    assert len(listed) == len(set(listed))
    assert set(public(package)) <= set(listed)


def test_the_first_page_of_the_reference_lists_the_names_of_the_package() -> None:
    text = (DOCS / "reference" / "index.md").read_text()
    assert set(re.findall(r"\{py:obj\}`(\w+) <", text)) == set(audit.__all__)


def test_every_page_is_in_the_menu() -> None:
    index = (DOCS / "index.md").read_text()
    included = {"coverage", "coverage-more", "power"}
    details = {
        "proofs": "theory",
        "reproductions_training": "reproductions",
        "table3": "reproductions",
    }
    details |= {"coverage_tables": "attacks", "certificate_format": "certificate"}
    details |= {"audit_files": "audit_a_tuning", "public_loops": "controls"}
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"} - included
    assert pages - set(details) == pages & set(index.split())
    for name, result in details.items():  # reached from the page that states the result
        assert f"]({name}.md)" in (DOCS / f"{result}.md").read_text()
    for name in ("coverage.md", "coverage-more.md", "power.md"):
        assert f"<!-- site: {name}" in (DOCS / "coverage_tables.md").read_text()


def test_code_hosts_show_a_link_where_the_site_shows_a_file() -> None:
    """A directive would be shown unchanged."""
    expected = {
        "attacks": ["largest share in combinations"],
        "changes": ["## [Unreleased]", "## [0.1.0]"],
        "coverage_tables": [
            "| estimator | pure noise |",
            "### More audits of some mechanisms",
            "| jax_privacy, split, one",
        ],
    }
    for path in DOCS.glob("*.md"):
        text = path.read_text()
        assert "{include}" not in text, path
        shown = [text]
        module("conf")._text_of_files(None, path.stem, shown)
        assert "<!-- site" not in shown[0]
        assert (shown[0] != text) == (path.stem in expected), path
        for words in expected.get(path.stem, []):
            assert words in shown[0]
            assert words not in text
        assert text.count("<!-- site: ") == len(re.findall(r"(?s)<!-- site: .*?\]\(.*?/site", text))


PROPOSITION = r"\*\*Proposition(?: (\d+)|)(?: \([^)]*\)|)\.\*\* \*"


def test_every_proposition_is_proved_in_the_order_of_the_theory() -> None:
    theory, proofs = ((DOCS / f"{name}.md").read_text() for name in ("theory", "proofs"))
    numbers = re.findall(PROPOSITION, theory)
    assert len(numbers) == 31
    assert numbers.count("") == 2
    after = re.split(PROPOSITION, theory)[2::2]
    links = [
        re.search(r"\[((?:statement\s+and\s+)?proof)\]\(proofs\.md#([\w-]+)\)", part)
        for part in after
    ]
    headings = r"^### (Proposition \d+|Repeated steps|Best of a stopped study)\n\n"
    sections = re.split(headings, proofs, flags=re.M)[1:]
    assert len(sections) == 2 * len(numbers)
    for number, link, heading, section in zip(
        numbers, links, sections[::2], sections[1::2], strict=True
    ):
        assert link is not None
        assert link[2] == heading.lower().replace(" ", "-")
        assert not number or heading == f"Proposition {number}"
        assert "\n\n*Proof.* " in section
        assert r"$\square$" in section
        name = f"proposition {number}"
        if link[1] == "proof":  # the theory has the formal statement
            _, text = theory.split(f"<!-- {name} -->\n\n")
            statement, after = text.split(f"\n<!-- end of {name} -->\n", 1)
            assert re.match(PROPOSITION, statement)
            assert section.startswith(f"{statement}\n*Proof.*")
            assert "[proof]" in after.split("<!--")[0]
        else:
            assert re.search(PROPOSITION, section.split("*Proof.*")[0])


def test_the_code_cites_only_propositions_that_are_stated() -> None:
    stated = set(re.findall(PROPOSITION, (DOCS / "theory.md").read_text()))
    pages = [*ROOT.glob("audit/**/*.py"), *ROOT.glob("studies/**/*.py"), *DOCS.glob("*.md")]
    cited = {
        number
        for page in pages
        for number in re.findall(
            r"propositions? (\d+) of\s+docs/theory", " ".join(page.read_text().split())
        )
    }
    assert len(cited) > 15
    assert cited <= stated


def test_the_pages_of_the_menu_are_short() -> None:
    pages = re.findall(r"^([a-z_]+(?:/index)?)$", (DOCS / "index.md").read_text(), re.M)
    assert len(pages) == 22
    words = {page: len((DOCS / f"{page}.md").read_text().split()) for page in ["index", *pages]}
    reference = {path.stem: len(path.read_text().split()) for path in DOCS.glob("reference/*.md")}
    included = (DOCS / "coverage.md").read_text().split("The tables show")[0]
    total = sum(words.values()) + sum(reference.values()) - reference["index"]
    assert total + len(included.split()) <= 42_000
    assert words["theory"] <= 6_000


@pytest.mark.thorough
def test_the_paper_names_its_title_and_its_authors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pypandoc")
    typst = pytest.importorskip("typst")
    compiled = mock.Mock(wraps=typst.compile)
    monkeypatch.setattr(typst, "compile", compiled)
    module("theory_pdf").main(str(tmp_path / "theory.pdf"))
    source = compiled.call_args.args[0].decode()
    assert "abs(x + 1.25)" in source
    assert source.count("#strong[Proposition") == 32 + 20  # of 20, a summary and the statement
    assert source.count("#emph[Proof") == 32
    assert source.index("=== Proposition 1\n") < source.index("=== Proposition 16\n")
    assert "{include}" not in source
    assert "The page" not in source
    assert "three labels attains 2.300 where the bound is 2.385." in " ".join(source.split())
    assert "square.stroked.tiny" not in source
    paper = (tmp_path / "theory.pdf").read_bytes()
    assert b"/Title(The privacy cost of tuning: bounds and attacks)" in paper
    assert b"/Author(The dp-tuning-audit contributors)" in paper


def test_the_project_of_a_release_links_to_the_repository() -> None:
    tools = module("set_repository")
    project = (ROOT / "pyproject.toml").read_text()
    found = tools.project_urls(project, "https://example.org/a/b")
    assert tomllib.loads(found)["project"]["urls"]["Repository"] == "https://example.org/a/b"
    with pytest.raises(SystemExit, match="must not have"):
        tools.project_urls(found, "https://example.org/a/b")
    found = tools.project_urls(project, "https://example.org/a/b", "https://example.org/site")
    urls = tomllib.loads(found)["project"]["urls"]
    assert urls["Documentation"] == "https://example.org/site"


def test_formulas_on_lines_of_their_own_are_not_escaped() -> None:
    pytest.importorskip("sphinx")
    lines = [".. math::", r"    D_\alpha(A \,\|\, B),", "", "a_ | b", "", ">>> a_ | b", "", "a*"]
    module("conf")._escape_formulas(None, "function", "f", None, None, lines)
    assert lines[1] == r"    D_\alpha(A \,\|\, B),"
    assert lines[3:] == [r"a\_ \| b", "", ">>> a_ | b", "", r"a\*"]


@pytest.mark.parametrize(
    ("site", "expected"), [("", ""), ("https://example.org/site", "https://example.org/site/")]
)
def test_the_picture_of_a_social_card_has_a_full_address(site: str, expected: str) -> None:
    pytest.importorskip("sphinx")
    context = {"metatags": '<meta content="_images/overview.png" property="og:image" />'}
    app = SimpleNamespace(config=SimpleNamespace(html_baseurl=site))
    add_address = module("conf")._full_address_of_card
    add_address(app, "index", "", context, None)
    add_address(app, "genindex", "", {}, None)
    assert f'content="{expected}_images/overview.png"' in context["metatags"]


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("An (epsilon_0, delta_0)-DP base is a base.", [r"(\varepsilon_{0}, \delta_{0})"]),
        ("P[K = 0] = phi(0)", [r"P[K = 0] = \varphi(0)"]),
        ("for 1 - phi(1 - s) <= y.", [r"1 - \varphi(1 - s) \le y"]),
        ("x_i = <p_i^z, p_i> / C^2", [r"x_{i} = \langle p_{i}^{z}, p_{i}\rangle / C^{2}"]),
        ("log(e^(alpha-1) / sqrt(N))", [r"\log(e^{\alpha-1} / \sqrt{N})"]),
        ("the mean of e^-loss", [r"e^{-\mathrm{loss}}"]),
        ("a run, mu or A (see [1], noise_std^2) at most 1e-5", []),
        ("epsilon_hat - D_alpha(P || P')", [r"\hat{\varepsilon} - D_{\alpha}(P \,\|\, P')"]),
    ],
)  # fmt: skip
def test_formulas_of_docstrings_become_latex(text: str, formulas: list[str]) -> None:
    found = module("formulas").find_formulas(text)
    assert [latex for _, _, latex in found] == formulas
    assert all(text[start:end].strip() == text[start:end] for start, end, _ in found)
