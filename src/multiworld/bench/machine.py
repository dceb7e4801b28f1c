"""What figures depend on: the processor, the kernel, the versions, and how busy the machine was."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata

from ..process.facts import cpu_model


@dataclass(frozen=True, kw_only=True)
class Machine:
    """This machine at one moment. ``load_average``: runnable threads over the last 1, 5 and 15 minutes."""

    date: str
    cpu: str
    cores: int
    memory_gb: float
    kernel: str
    python: str
    torch: str
    multiworld: str
    load_average: tuple[float, float, float]

    def as_text(self) -> str:
        load = ", ".join(f"{value:.2f}" for value in self.load_average)
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gb:.0f} GB; Linux {self.kernel}; Python {self.python}, "
            f"torch {self.torch}, multiworld {self.multiworld}; load average {load}"
        )


def describe_machine() -> Machine:
    """Look at this machine now, before anything is measured: the load average is that of the others."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        cpu=cpu_model() or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=pages * page_bytes / 1e9,
        kernel=platform.release(),
        python=platform.python_version(),
        torch=metadata.version("torch"),
        multiworld=metadata.version("multiworld"),
        load_average=os.getloadavg(),
    )
