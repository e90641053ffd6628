"""The certificate and its three renderings."""

import json
from pathlib import Path

from audit import checks
from audit.certificate import page, text
from audit.certificate.statement import Statement

__all__ = ["Certificate"]

ENDINGS = (".json", ".txt", ".html")


class Certificate(Statement):
    """Claim of a private tuning, with its reasons; see `Statement` for its fields.

    Example:
        >>> import inspect
        >>> list(inspect.signature(Certificate).parameters)[:4]
        ['base', 'training', 'protocol', 'delta']
    """

    def save(self, path: str | Path) -> None:
        """Writes it, as its name ends: .json, .txt or .html.

        Raises:
            ValueError: it ends otherwise.
        """
        path = Path(path)
        ending = checks.one_of("path's ending", path.suffix, ENDINGS)
        if ending == ".json":
            # ASCII, so that who reads the file sees letters that look like others.
            content = json.dumps(self.as_dict(), indent=2) + "\n"
        elif ending == ".txt":
            content = text.paragraph(self)
        else:
            content = page.html(self)
        path.write_text(content, encoding="utf-8")
