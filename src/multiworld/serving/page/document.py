"""The page itself: one document without anything from elsewhere, which runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

__all__ = ["POLICY", "document"]

ASSETS = files(__package__) / "assets"
STYLE, SCRIPT = ((ASSETS / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
FIRST = "@first@"
DOCUMENT = (ASSETS / "page.html").read_text(encoding="utf-8").replace("@style@", STYLE).replace("@script@", SCRIPT)


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


POLICY = (
    f"default-src 'none'; script-src {_hash(SCRIPT)}; style-src {_hash(STYLE)}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The content security policy: neither inline handlers nor styles, and nothing from elsewhere."""


def document(data: Mapping[str, Any]) -> str:
    """Return the page as it is now; ``data``: what ``Recorder.data`` returns."""
    first = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # no name or traceback ends the element
    return DOCUMENT.replace(FIRST, first)
