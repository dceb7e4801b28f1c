"""Numbers and times as people read them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence


def number(value: float) -> str:
    """Return four significant digits without a useless exponent: ``0.01234``, ``2.312``, ``1,234``, ``nan``."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}" if size < 1e9 else f"{value:.3e}"
    if size and size < 1e-4:
        return f"{value:.3e}"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return ``12 ms``, ``3.4 s``, ``12 min`` or ``3.4 h``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(num_bytes: float) -> str:
    """Return ``512 B``, ``1.5 MB`` or ``3.2 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def counted(how_many: int, noun: str) -> str:
    plural = f"{noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"
    return f"{how_many:,} {noun if how_many == 1 else plural}"


def columns(rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Return rows as lines, each column as wide as it must be: the first ``left`` begin where others begin."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if at < left else f"{cell:>{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
