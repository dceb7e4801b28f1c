"""A page as one document without anything from elsewhere, which runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files

__all__ = ["Document"]

STYLE, SCRIPT, TITLE, FIRST = "@style@", "@script@", "@title@", "@first@"


class Document:
    """``package``: whose folder ``assets`` has ``page.html``, ``page.css`` and ``page.js``.

    ``base.css`` and ``base.js`` of this layer come before the last two. In the HTML stand ``@title@``, ``@style@``,
    ``@script@`` and, in an element of type ``application/json``, ``@first@``.
    """

    def __init__(self, package: str) -> None:
        style = _read(__package__, "base.css") + _read(package, "page.css")
        script = _read(__package__, "base.js") + _read(package, "page.js")
        self._template = _read(package, "page.html").replace(STYLE, style).replace(SCRIPT, script)
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


def _read(package: str, name: str) -> str:
    return (files(package) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
