"""The page itself: one document without anything from elsewhere, which runs no script but its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...observe.document import Document

__all__ = ["POLICY", "document"]

DOCUMENT = Document(__package__)
POLICY = DOCUMENT.policy


def document(data: Mapping[str, Any]) -> str:
    """Return the page as it is now; ``data``: what ``Recorder.data`` returns."""
    return DOCUMENT.page("multiworld", data)
