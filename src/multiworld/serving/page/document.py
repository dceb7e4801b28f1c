"""The page itself: one document without anything from elsewhere, which runs no script but its own."""

from __future__ import annotations

from ...observe.document import Document
from ...wire.messages import to_json
from .recorder import Everything

__all__ = ["POLICY", "document"]

DOCUMENT = Document(__package__, is_live=True)
POLICY = DOCUMENT.policy


def document(data: Everything) -> str:
    """Return the page as it is now."""
    return DOCUMENT.page("multiworld", to_json(data))
