"""One line for commands that measure or serve, where each message takes longer than it could."""

from __future__ import annotations

import sys

from .. import native
from ..native.compiled import are_sources_wanted

__all__ = ["note_uncompiled"]


def note_uncompiled(command: str) -> None:
    """Say so unless the user has chosen it."""
    if native.not_compiled and not are_sources_wanted():
        print(
            f"multiworld {command}: the compiled modules are not in use, so each message takes longer; "
            "'multiworld doctor' says how to have them",
            file=sys.stderr,
            flush=True,
        )
