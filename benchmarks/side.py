"""Runs one scenario on one side, in processes of its own, and takes the figures that it found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .proc import descendants

__all__ = ["Side", "SideFailed"]

ROOT = Path(__file__).parents[1]


class SideFailed(Exception):
    """It gave no figures."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """``command``: what runs a scenario, named by two further arguments."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_quiet: bool = False

    def inside(self, netns: str, environment: Mapping[str, str]) -> Side:
        """Return the same side on a simulated host."""
        command = ("ip", "netns", "exec", netns, *self.command)
        return replace(self, command=command, environment={**self.environment, **environment})

    def run(self, scenario: str, options: Mapping[str, Any], timeout_s: float) -> dict[str, float]:
        """Return the figures; SideFailed if there are none in time. Nothing of it is left afterwards."""
        reading, writing = os.pipe()
        environment = {**os.environ, **self.environment, "FIGURES_FD": str(writing), "PYTHONPATH": _path()}
        process = subprocess.Popen(
            [*self.command, scenario, json.dumps(options)],
            env=environment,
            cwd=ROOT,
            pass_fds=(writing,),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr if not self.is_quiet else subprocess.DEVNULL,
            stderr=None if not self.is_quiet else subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(writing)
        began = time.monotonic()
        with open(reading) as figures:
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                raise SideFailed(f"{self.name}: {scenario} did not end within {timeout_s:g} s") from None
            finally:
                _end(process)
            text = figures.read()
        if code or not text:
            raise SideFailed(f"{self.name}: {scenario} ended with {code} after {time.monotonic() - began:.0f} s")
        return dict(json.loads(text))


def _path() -> str:
    return os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it, and all processes that it has started and that still run."""
    for pid in [*descendants(process.pid), process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
