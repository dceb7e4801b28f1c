"""A page as one document without anything from elsewhere, which runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files

TITLE, FIRST = "@title@", "@first@"


class Document:
    """``package``: whose folder ``assets`` has ``page.html`` (the body), ``page.css`` and ``page.js``.

    ``base.css`` and ``base.js`` of this layer come before the last two. A live page, which follows its server, has a
    header, a banner and, at ``@detail@``, the panel of one process besides (``live.html``, ``live.css``, ``live.js``).
    """

    def __init__(self, package: str, *, is_live: bool = False) -> None:
        layers = [(__package__, "base"), *([(__package__, "live")] if is_live else []), (package, "page")]
        style, script = ("".join(_read(*layer, kind) for layer in layers) for kind in ("css", "js"))
        body = _read(package, "page", "html")
        if is_live:
            body = _filled(_read(__package__, "live", "html"), page=body, detail=_read(__package__, "detail", "html"))
        self._template = _filled(_read(__package__, "shell", "html"), body=body, style=style, script=script)
        self.policy = (
            f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        """The content security policy: neither inline handlers nor styles, and nothing from elsewhere."""

    def page(self, title: str, first: object) -> str:
        """Return the page as it is now. ``first``: JSON, what it shows before the first event comes."""
        before, title_end, after = self._template.partition(TITLE)
        data = json.dumps(first, separators=(",", ":")).replace("<", "\\u003c")  # no name or traceback ends the element
        return before + (escape(title) if title_end else "") + after.replace(FIRST, data)


def _filled(template: str, **parts: str) -> str:
    for name, part in parts.items():
        template = template.replace(f"@{name}@", part)
    return template


def _read(package: str, name: str, kind: str) -> str:
    return (files(package) / "assets" / f"{name}.{kind}").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
