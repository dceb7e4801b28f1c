"""Where one stream of a process goes. Pure: values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Route:
    """``filtered``: a file that gets the lines that contain one of ``needles``."""

    file: str | None
    on_console: bool
    filtered: str | None = None
    needles: tuple[str, ...] = ()
