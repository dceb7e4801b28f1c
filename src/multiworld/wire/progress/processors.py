"""How many processors this process may use: those that it may run on, or the share of them that a container has."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIPS = Path("/proc/self/cgroup")


def usable_processors() -> float:
    """Return the least of affinity and quotas (cgroup v2's ``cpu.max`` and v1's ``cpu.cfs_quota_us``)."""
    return min([float(len(os.sched_getaffinity(0))), *_quotas()])


def _quotas() -> list[float]:
    quotas: list[float] = []
    with suppress(OSError, ValueError):
        for line in MEMBERSHIPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                quotas += _quotas_above(CGROUPS, path, "cpu.max")
            elif "cpu" in controllers.split(","):
                quotas += _quotas_above(CGROUPS / "cpu", path, "cpu.cfs_quota_us")
    return quotas


def _quotas_above(root: Path, path: str, name: str) -> list[float]:
    """Of a group and of all that it is in. In a container the path may be the host's, and the root is its own."""
    folder = root / path.strip("/")
    folders = [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]
    return [quota for each in {*folders, root} if (quota := _quota(each / name)) is not None]


def _quota(file: Path) -> float | None:
    try:
        fields = file.read_text().split()
        if len(fields) == 1:
            fields.append(file.with_name("cpu.cfs_period_us").read_text())
        quota, period = fields[0], float(fields[1])
        return None if quota in ("max", "-1") or period <= 0 else float(quota) / period
    except (OSError, ValueError, IndexError):
        return None
