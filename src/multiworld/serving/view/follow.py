"""Tells a view what is learned of a deployment, until that ends."""

from __future__ import annotations

import asyncio
import signal
from typing import TextIO

from ...process.interruptible import run_interruptible
from ...process.interruption import Interrupted
from ..errors import DeploymentError
from ..page.recorder import SOURCE_S, Recorder
from ..page.source import ControllerSource
from .view import View, choose_view

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


def watch(address: tuple[str, int], token: str, stream: TextIO | None = None) -> None:
    """Show a deployment whose controller listens there until Ctrl-C, on standard output; for the command line.

    A controller that cannot be reached is said to be so, and asked again. Raises DeploymentError if it cannot be
    reached from the beginning.
    """
    try:
        run_interruptible(_watch(address, token, stream))
    except Interrupted as interrupted:
        if interrupted.signum != signal.SIGINT:
            raise


async def _watch(address: tuple[str, int], token: str, stream: TextIO | None) -> None:
    source = ControllerSource(address, token)
    try:
        try:
            await asyncio.wait_for(source.status(), SOURCE_S)
        except asyncio.TimeoutError:
            raise DeploymentError(f"the controller at {address[0]}:{address[1]} does not answer") from None
        async with Recorder(source) as recorder:
            await follow(recorder, choose_view(stream))
    finally:
        source.close()
