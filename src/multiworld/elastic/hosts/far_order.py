"""What the far end of a command on several hosts is told, and what is said over its standard input later. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FAR_END = "multiworld.elastic.remote_agent"
BEAT, END = b"", b"end"
"""Lines that follow the order: the near end is there; end the job, or at once if that was said before."""
BEAT_S = 5.0
SILENT_S = 60.0
"""Without a beat for so long, a near end that sends them is gone, though the connection may look sound."""
END_S = 45.0
"""What a launcher has to end in after SIGTERM: longer than its workers have."""


@dataclass(frozen=True, kw_only=True)
class FarOrder:
    """The first line that the far end reads. ``host``: what people call it. It runs ``python -m module arguments``."""

    host: str
    directory: str
    variables: Mapping[str, str] = field(repr=False)  # the token is among them
    arguments: tuple[str, ...]
    module: str = "multiworld.cli.exec"
    command: str = "multiworld exec"
    """The command that the user has typed, for messages."""
    ready: str = ""
    """The line that says that the launcher was started; empty: none is wanted."""
    silent_s: float | None = None
    """Without a beat for so long the near end counts as lost; None: it sends none."""
    leaves: str | None = None
    """The job that the host leaves, so that the others go on, if the near end is lost; None: the job ends then."""
    end_s: float = END_S
