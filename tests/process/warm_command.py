"""``python -m MODULE ARGUMENTS``, whose ``WorkerGroup`` forks its workers from a process that has imported torch."""

from __future__ import annotations

import runpy
import sys

from multiworld.testing import worker_group
from tests.warm_workers import Nursery

if __name__ == "__main__":
    nursery = Nursery()
    worker_group.ChildProcess = nursery.start  # type: ignore[assignment, attr-defined]
    del sys.argv[0]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    finally:
        nursery.close()
