"""Writes the theory and its proofs as a paper: `python docs/theory_pdf.py FILE.pdf`."""

import re
import sys
from pathlib import Path

import pypandoc
import typst

import audit

DOCS = Path(__file__).parent
# Two margins, numbered pages, and tables that fit between them.
STYLE = r"""
#set page(paper: "a4", margin: 2.2cm, numbering: "1")
#set text(font: "New Computer Modern", size: 9.5pt)
#set par(justify: true)
#set heading(numbering: "1.1")
#show table: set text(size: 8pt)
#show table: set par(justify: false)
#show figure: set block(breakable: true)
"""


def main(out: str) -> None:
    """Converts `theory.md`, followed by the proofs, by pandoc to Typst, and that to PDF."""
    text = (DOCS / "theory.md").read_text().replace("# Theory\n", "", 1)
    text = re.sub(r"\[Proofs\]\(proofs\.md\) has", "The last section has", text)
    text = re.sub(r"\s+Both pages are available\s+\[as\s+a\s+PDF\]\(theory\.pdf\)\.", "", text)
    _, proofs = (DOCS / "proofs.md").read_text().split("\n## ", 1)
    # The sections before have the statements that both pages print.
    for statement in re.findall(r"<!-- proposition \d+ -->\n\n(.*?)<!-- end", text, re.DOTALL):
        proofs = proofs.replace(statement, "")
    text += "\n## Proofs\n" + re.sub(r"^#", "##", "\n## " + proofs, flags=re.MULTILINE)
    # References to pages of the site and to headings, which have no labels in the paper.
    text = re.sub(r"\s+\(\[[^\]]+\]\((?!http)[^)]*\)\)", "", text)
    text = re.sub(r"\[([^\]]+)\]\((?!http)[^)]*(?:\.md|#)[^)]*\)", r"\1", text)
    # Typst sets pandoc's translation of these three differently from TeX.
    text = text.replace(r"\big\|", r"\parallel").replace(r"\!", "").replace(r"\;", r"\quad")
    text = text.replace("his page", "his paper").replace("The page", "The paper")
    text = re.sub(r"^(#+)#", r"\1", text, flags=re.MULTILINE)
    body = pypandoc.convert_text(text, "typst", format="markdown-smart-auto_identifiers")
    # Absolute values would be set as two relations, and the end of a proof as a dot.
    body = re.sub(r"\\\| ((?:[^|$\\]|\\[(),/])+) \\\|", r"abs(\1)", body)
    body = body.replace("square.stroked.tiny", "square.stroked")
    title = f"""
#set document(
  title: "The privacy cost of tuning: bounds and attacks",
  author: "The dp-tuning-audit contributors",
)
#align(center)[
  #text(size: 17pt)[#context document.title]

  #context document.author.first() \\
  dp-tuning-audit {audit.__version__}
]
"""
    # pandoc writes rules for tables and terms only into complete documents.
    rule = "#let horizontalrule = line(start: (25%,0%), end: (75%,0%))\n"
    typst.compile((STYLE + rule + title + body).encode(), output=out, root=str(DOCS))


if __name__ == "__main__":
    main(*sys.argv[1:])
