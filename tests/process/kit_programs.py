"""What the workers of the kit's own tests run."""

from __future__ import annotations

import atexit
import signal
import subprocess
import sys
import time

from multiworld.testing.worker import next_command, report, wait_command


def echo(greeting: str, *, times: int) -> str:
    """Report the greeting, answer each command by its own name, and return."""
    report("greeted", greeting=greeting)
    for _ in range(times):
        command = wait_command(timeout_s=30)
        report("told", name=command.name, **command.fields)
    return greeting.upper()


async def echo_async(*, times: int) -> int:
    for _ in range(times):
        command = await next_command()
        report("told", name=command.name)
    return times


def fail() -> None:
    print("on the way to failure", file=sys.stderr)
    raise LookupError("as planned")


def exit_with(status: int) -> None:
    atexit.register(report, "atexit")
    sys.exit(status)


def start_child_and_hang() -> None:
    """Start a child that ignores polite signals, and never end."""
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    report("child", pid=child.pid)
    signal.pause()


def tick(num_ticks: int) -> None:
    """Report very often, so that the parent may be slow to read."""
    for number in range(num_ticks):
        report("tick", number=number)


def report_clock() -> None:
    report("clock", now=time.monotonic())


def wait_for_nothing() -> None:
    try:
        wait_command(timeout_s=0.05)
    except TimeoutError:
        report("timed out")
