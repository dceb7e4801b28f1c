"""Cut a text for which there is no room, so that its reader sees that it was cut. Pure."""

from __future__ import annotations


def shortened(text: str, most: int) -> str:
    """Return at most so many characters, the last one an ellipsis if there are more."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def beginning(text: str, most: int) -> str:
    """Return so many characters of the beginning, and how many there are besides."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


def end(text: str, most: int) -> str:
    """Return so many characters of the end, below a line that says how many are left out."""
    return text if len(text) <= most else f"... {len(text) - most:,} characters left out ...\n{text[-most:]}"
