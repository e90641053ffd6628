"""Configuration of the site, built by `make docs`. Pages load nothing from other servers."""

import contextlib
import io
import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any
from unittest import mock

from docutils import nodes
from latex2mathml.converter import convert
from numpy.typing import ArrayLike
from sphinx.util.osutil import relative_uri
from sphinx.util.typing import stringify_annotation

import audit
from audit import console
from audit.__main__ import COMMANDS, main_of

sys.path.insert(0, str(Path(__file__).parent))
from formulas import find_formulas

project = "dp-tuning-audit"
author = "the dp-tuning-audit authors"
release = version = audit.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
templates_path = ["_templates"]
# `attacks.md` and `coverage_tables.md` show the pages of the studies of coverage and power.
exclude_patterns = ["_build", "_templates", "**/.ipynb_checkpoints"]
exclude_patterns += ["coverage.md", "coverage-more.md", "power.md"]
exclude_patterns += ["notebooks/README.md"]
suppress_warnings = ["ref.python"]  # a word of a docstring may be the name of two classes

# `make docs` gets MathJax where npm is installed, and the site contains it. Elsewhere, formulas are
# MathML, which browsers typeset themselves.
MATHJAX = Path(__file__).parents[1] / "build/npm/node_modules/mathjax/es5/tex-svg.js"
html_math_renderer = "mathjax" if MATHJAX.exists() else "mathml"
mathjax_path = MATHJAX.name
html_theme = "furo"
html_title = f"dp-tuning-audit {release}"
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_static_path = ["_static", *([str(MATHJAX)] if MATHJAX.exists() else [])]
html_search_scorer = str(Path(__file__).with_name("_static") / "scorer.js")
html_css_files = ["site.css"]
html_copy_source = False
html_extra_path = ["which_protocol.csv"]
highlight_language = "none"  # of blocks that name no language, such as commands
copybutton_exclude = ".linenos, .gp, .go"  # prompts and output of examples
html_show_copyright = False
html_theme_options: dict[str, Any] = {"navigation_with_keys": True}
# `DOCS_VERSIONS="0.4.0 0.3.0" make docs` links to sites of versions, in folders next to this one.
html_context = {"versions": os.environ.get("DOCS_VERSIONS", "").split()}
if html_context["versions"]:
    parts = ("brand", "search", "scroll-start", "navigation", "scroll-end")
    html_sidebars = {"**": [f"sidebar/{part}.html" for part in parts]}
    html_sidebars["**"].insert(-1, "versions.html")
PROJECT = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]
if "urls" in PROJECT:  # set before a release, see CONTRIBUTING.md
    html_theme_options["source_repository"] = PROJECT["urls"]["Repository"]
    html_theme_options |= {"source_branch": "main", "source_directory": "docs/"}
    html_baseurl = PROJECT["urls"].get("Documentation", "")

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the outputs are stored: docs/store_notebooks.py
nb_merge_streams = True
nb_output_stderr = "remove-warn"

# Docstrings are plain text with `names` in backquotes; their formulas are not markup.
default_role = "code"
add_module_names = False
toc_object_entries = False  # the menu would list hundreds of names
autodoc_member_order = "groupwise"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]
python_maximum_signature_line_length = 88

_CODE = re.compile(r"(``[^`]+``|`[^`]+`)")
_MARKUP = re.compile(r"([*|])|(?<=\w)(_)(?!\w)")


def _escape_formulas(
    app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]
) -> None:
    """Escapes characters that reStructuredText reads as emphasis, substitution or reference."""
    example = formula = False
    for index, line in enumerate(lines):
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        formula = line.startswith(".. math::") or (formula and line[:1] in ("", " "))
        if not example and not formula:
            parts = _CODE.split(line)
            parts[::2] = [_MARKUP.sub(r"\\\g<0>", part) for part in parts[::2]]
            lines[index] = "".join(parts)


_ARRAY = re.compile(
    r"~numpy\.ndarray\[(?:tuple\[[^\]]*\]|[~\w.]+), ~numpy\.dtype\[[~\w.]+(?:\[[^\]]*\])?\]\]"
)
_ARRAY_LIKE = stringify_annotation(ArrayLike, "smart")


def _short_types(
    app: Any, what: str, name: str, found: Any, options: Any, signature: str, returns: str
) -> tuple[str, str]:
    """Shortens the types of arrays in signatures to `Array` and `ArrayLike`."""
    shortened = [
        _ARRAY.sub("Array", part.replace(_ARRAY_LIKE, "ArrayLike")) if part else part
        for part in (signature, returns)
    ]
    return shortened[0], shortened[1]


def _write_help_texts(app: Any) -> None:
    """Writes the help of every command, for the page of commands."""
    folder = Path(__file__).with_name("_help")
    folder.mkdir(exist_ok=True)
    commands = {name: (name, []) for name in COMMANDS} | {"train": ("run", ["--train", "x"])}
    for title, (name, words) in commands.items():
        option = "--help-all" if title in ("bounds", "run") else "--help"
        with (
            contextlib.suppress(SystemExit),
            contextlib.redirect_stdout(io.StringIO()) as output,
            mock.patch.dict(os.environ, COLUMNS=str(console.WIDTH)),
        ):
            main_of(name)([*words, option])
        (folder / f"{title}.txt").write_text(output.getvalue())


_FILE = re.compile(
    r'<!-- site: (\S+)(?: after "([^"]*)")?(?: before "([^"]*)")? -->.*?<!-- /site -->', re.DOTALL
)


def _text_of_files(app: Any, name: str, source: list[str]) -> None:
    """Replaces what code hosts show instead of a file's text, a link to it, by that text."""

    def text_of(block: re.Match[str]) -> str:
        text = Path(__file__).parent.joinpath(block[1]).read_text()
        text = text.partition(block[2])[2] if block[2] else text
        return text.partition(block[3])[0] if block[3] else text

    source[0] = _FILE.sub(text_of, source[0])


def _embed_attachments(app: Any, name: str, source: list[str]) -> None:
    """Replaces the attached pictures of a notebook, which Sphinx cannot read, by their bytes."""
    if not name.startswith("notebooks/") or '"attachments"' not in source[0]:
        return
    notebook = json.loads(source[0])
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        for file, picture in cell.get("attachments", {}).items():
            data = "".join(picture["image/png"]).replace("\n", "")
            text = text.replace(f"(attachment:{file})", f"(data:image/png;base64,{data})")
        cell["source"] = text
    source[0] = json.dumps(notebook)


def _interleave(app: Any, env: Any, names: list[str]) -> None:
    """Distributes neighbouring pages over processes, as notebooks and long pages are neighbours."""
    names[:] = [name for first in range(app.parallel) for name in names[first :: app.parallel]]


def _inline_formula(translator: Any, node: nodes.math) -> None:
    """Writes a formula of a sentence as MathML."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _displayed_formula(translator: Any, node: nodes.math_block) -> None:
    """Writes a formula on lines of its own as MathML."""
    translator.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


# Terms that are also everyday words.
_EVERYDAY = {"run", "score", "K", "study", "cost", "mu", "order", "region", "tight", "trial"}
_EVERYDAY |= {"audit", "attained"}
_NOT_TEXT = (nodes.reference, nodes.literal, nodes.math, nodes.image)


_SYMBOLS = {
    r"\varepsilon": "ε", r"\delta": "δ", r"\lambda": "λ", r"\mu": "μ",
    r"\sigma": "\N{GREEK SMALL LETTER SIGMA}", r"\sqrt ": "√", r"\dots": "…",
}  # fmt: skip


def _plain_text(node: nodes.Element) -> str:
    """The text of a node, with formulas in Unicode, for a hover text."""
    text = node.astext()
    for name, symbol in _SYMBOLS.items():
        text = text.replace(name, symbol)
    return text


def _link_terms(app: Any, tree: nodes.document, name: str) -> None:
    """Links the first use of each term on a page to the glossary; its meaning is the hover text."""
    if name == "glossary" or name.startswith("reference/"):
        return
    terms = {}
    for item in app.env.get_doctree("glossary").findall(nodes.definition_list_item):
        meaning = _plain_text(next(item.findall(nodes.definition)))
        for term in item.findall(nodes.term):
            terms[term.astext()] = (term["ids"][0], meaning)
    left = set(terms) - _EVERYDAY
    page = app.builder.get_relative_uri(name, "glossary")
    for paragraph in tree.findall(nodes.paragraph):
        for text in list(paragraph.findall(nodes.Text)):
            if not left or isinstance(text.parent, _NOT_TEXT):
                continue
            words = "|".join(sorted(map(re.escape, left), key=len, reverse=True))
            found = re.search(rf"(?<![\w-])({words})(?![\w-])", text)
            if found is None:
                continue
            anchor, meaning = terms[found[1]]
            left.remove(found[1])
            link = nodes.reference(
                "", found[1], internal=True, refuri=f"{page}#{anchor}", reftitle=meaning
            )
            link["classes"].append("term")
            parts = [nodes.Text(text[: found.start()]), link, nodes.Text(text[found.end() :])]
            text.parent.replace(text, parts)


_BEFORE = re.compile(r"[^ \n]{1,12}\Z")
_AFTER = re.compile(r"[^ \n]{1,12}(?=[ \n]|\Z)")


def _keep_together(app: Any, tree: nodes.document, name: str) -> None:
    """Keeps a formula and its brackets, punctuation or ending on one line, and numbers and %."""
    for text in list(tree.findall(nodes.Text)):
        if not isinstance(text.parent, nodes.literal | nodes.literal_block | nodes.math):
            kept = re.sub(r"(?<=\d) (?=[%±])|(?<=±) (?=\d)| (?=□)", "\N{NO-BREAK SPACE}", text)
            if kept != text:
                text.parent.replace(text, nodes.Text(kept))
    for formula in list(tree.findall(nodes.math)):
        parent = formula.parent
        index = parent.index(formula)
        around = parent[index - 1] if index else None, parent[index + 1 : index + 2]
        before = _BEFORE.search(around[0]) if isinstance(around[0], nodes.Text) else None
        after = next((_AFTER.match(one) for one in around[1] if isinstance(one, nodes.Text)), None)
        if before is None and after is None:
            continue
        line = nodes.inline("", "", classes=["one-line"])
        parent.replace(formula, line)
        if after is not None:
            parent[index + 1] = nodes.Text(parent[index + 1][after.end() :])
        if before is not None:
            parent[index - 1] = nodes.Text(parent[index - 1][: before.start()])
            line += nodes.Text(before[0])
        line += formula
        if after is not None:
            line += nodes.Text(after[0])


def _link_figures(app: Any, tree: nodes.document, name: str) -> None:
    """Links each figure to its file, which a phone can enlarge."""
    for image in list(tree.findall(nodes.image)):
        if image["uri"] in app.env.images and not isinstance(image.parent, nodes.reference):
            file = f"_images/{app.env.images[image['uri']][1]}"
            page = app.builder.get_target_uri(name)
            link = nodes.reference("", "", internal=True, refuri=relative_uri(page, file))
            link["classes"].append("figure-link")
            image.parent.replace(image, link)
            link.append(image)


def _typeset_docstrings(app: Any, tree: nodes.document) -> None:
    """Typesets the formulas of docstrings, which are plain text."""
    if not app.env.docname.startswith("reference/"):
        return
    for text in list(tree.findall(nodes.Text)):
        if type(text.parent) in (nodes.paragraph, nodes.inline, nodes.emphasis):
            sentence = text.replace("\0", "")  # Sphinx marks escaped characters
            parts, done = [], 0
            for start, end, latex in find_formulas(sentence):
                parts += [nodes.Text(sentence[done:start]), nodes.math(latex, latex)]
                done = end
            text.parent.replace(text, [*parts, nodes.Text(sentence[done:])])


def _shorten_diffs(app: Any, tree: nodes.document) -> None:
    """Removes the names of the compared files, which are paths of this machine, from diffs."""
    for block in tree.findall(nodes.literal_block):
        if block.get("language") == "udiff":
            shortened = "\n".join(block.astext().splitlines()[2:])
            block.rawsource = shortened
            block.children = [nodes.Text(shortened)]


def _full_address_of_card(app: Any, page: str, template: str, context: Any, tree: Any) -> None:
    """Gives the picture of a social card its full address, without which no one loads it."""
    if app.config.html_baseurl and "metatags" in context:  # an index has none
        full = f'content="{app.config.html_baseurl}/_images/'
        context["metatags"] = context["metatags"].replace('content="_images/', full)


def _fold_sidebar(app: Any, page: str, template: str, context: Any, tree: Any) -> None:
    """Shows only the own branch of the sidebar on pages of single names.

    There are three hundred such pages. The whole tree on each took two thirds of a build.
    """
    if page.startswith("reference/generated/") and "toctree" in context:
        whole_tree = context["toctree"]
        context["toctree"] = lambda **options: whole_tree(**options | {"collapse": True})


def setup(app: Any) -> None:
    """Connects the functions above to Sphinx."""
    app.connect("source-read", _text_of_files)
    app.connect("source-read", _embed_attachments)
    app.add_html_math_renderer(
        "mathml",
        inline_renderers=(_inline_formula, None),
        block_renderers=(_displayed_formula, None),
    )
    app.connect("builder-inited", _write_help_texts)
    app.connect("html-page-context", _full_address_of_card)
    app.connect("html-page-context", _fold_sidebar, priority=400)  # before the theme reads it
    app.connect("env-before-read-docs", _interleave)
    app.connect("doctree-read", _shorten_diffs)
    app.connect("doctree-read", _typeset_docstrings)
    app.connect("doctree-resolved", _link_terms)
    app.connect("doctree-resolved", _link_figures)
    app.connect("doctree-resolved", _keep_together)
    app.connect("autodoc-process-docstring", _escape_formulas, priority=400)
    app.connect("autodoc-process-signature", _short_types)
