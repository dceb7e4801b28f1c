"""Run the chosen benchmarks one after the other and gather what they found."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from .options import Options
from .report import Report, Section, describe_machine

BENCHMARKS = {
    "channels": "what our channels must reach: messages, collectives, memory and a DDP step, beside raw Gloo",
    "p2p": "throughput and round trips between two processes",
    "collectives": "every collective on 2 and 4 ranks",
    "join": "time to form a world, and what other worlds feel of it",
    "detect": "time until every survivor knows that a member was killed or stopped",
    "scale": "threads, descriptors, memory and idle time of 256 worlds in one process",
}
"""Each is a module of this package with ABOUT, BACKENDS and ``measure(options, note) -> list[Line]``."""


def load(names: Sequence[str]) -> None:
    """Import them, which ``run`` does otherwise."""
    for name in names:
        importlib.import_module(f"{__package__}.{name}")


def run(names: Sequence[str], options: Options, note: Callable[[str], None]) -> Report:
    """Measure; ``note`` is told what is being done. Raises ``WorkerFailedError`` if a worker process fails."""
    machine = describe_machine()
    sections = []
    for name in names:
        module = importlib.import_module(f"{__package__}.{name}")
        began = time.monotonic()
        chosen = replace(options, backends=options.backends or module.BACKENDS)
        lines = module.measure(chosen, lambda text, name=name: note(f"{name}: {text}"))
        sections.append(Section(name=name, about=module.ABOUT, took_s=time.monotonic() - began, lines=lines))
    return Report(machine=machine, quick=options.quick, sections=sections)
