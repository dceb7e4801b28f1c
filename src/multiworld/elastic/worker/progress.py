"""The heartbeat of a program that is asked to show that it goes on."""

from __future__ import annotations

from ...world.process_link import process_link

__all__ = ["progress"]


def progress() -> None:
    """Say that this worker goes on, for a launcher that was given a deadline for that.

    It costs about a microsecond, so call it as often as it suits: the agent is told a few times a second at most. It
    neither blocks nor raises, needs no ``WorldManager``, and does nothing outside of the launcher.
    """
    link = process_link()
    if link is not None:
        link.progress()
