"""The certificate: what it says, and its three renderings."""

import json
from pathlib import Path

from audit import checks
from audit.certificate import page, text
from audit.certificate.statement import Statement

__all__ = ["Certificate"]

ENDINGS = (".json", ".txt", ".html")


class Certificate(Statement):
    """What a tuning keeps, why, and what would make it void; see `Statement` for its fields.

    Example:
        >>> import inspect
        >>> list(inspect.signature(Certificate).parameters)[:4]
        ['base', 'protocol', 'delta', 'numbers']
    """

    def save(self, path: str | Path) -> None:
        """Writes it, as its name ends: .json, .txt or .html.

        Raises:
            ValueError: it ends otherwise.
        """
        path = Path(path)
        ending = checks.one_of("path's ending", path.suffix, ENDINGS)
        if ending == ".json":
            content = json.dumps(self.as_dict(), indent=2, ensure_ascii=False) + "\n"
        elif ending == ".txt":
            content = text.paragraph(self)
        else:
            content = page.html(self)
        path.write_text(content, encoding="utf-8")
