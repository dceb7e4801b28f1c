"""``multiworld`` whose workers are forked from a process which has imported torch: they measure the same."""

from __future__ import annotations

import sys

from multiworld.cli.main import main
from multiworld.testing import worker_group
from tests.warm_workers import Nursery

if __name__ == "__main__":
    nursery = Nursery()
    worker_group.ChildProcess = nursery.start  # type: ignore[assignment, attr-defined]
    status = main(sys.argv[1:])
    nursery.close()
    sys.exit(status)
