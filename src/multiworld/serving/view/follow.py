"""Tells a view what a recorder learns, until that ends."""

from __future__ import annotations

from ..page.recorder import Recorder
from .view import View

__all__ = ["follow"]

WAIT_S = 1.0


async def follow(recorder: Recorder, view: View) -> None:
    """Return once the recorder is closed; the view is closed then, and also when this is cancelled."""
    num_stories = 0
    try:
        while not recorder.closed:
            version = recorder.version
            for story in recorder.stories(num_stories):
                view.note(story)
            num_stories = recorder.num_stories
            if recorder.shown is not None:
                view.update(recorder.shown, recorder.series.since(0))
            await recorder.wait(version, WAIT_S)
    finally:
        view.close()
