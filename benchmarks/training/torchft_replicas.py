"""A lighthouse of torchft and its replicas, each started again when it dies: what users run in several shells."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from typing import Any

POLL_S = 0.02
JOIN_MS, TICK_MS = 10_000, 100  # as its README has them


def main() -> None:
    num_replicas, arguments = int(sys.argv[1]), sys.argv[2:]
    coordination: Any = importlib.import_module("torchft.coordination")
    lighthouse = coordination.LighthouseServer(
        bind="[::]:0", min_replicas=1, join_timeout_ms=JOIN_MS, quorum_tick_ms=TICK_MS
    )
    env = {**os.environ, "TORCHFT_LIGHTHOUSE": lighthouse.address(), "REPLICAS": str(num_replicas)}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.training.torchft_program", *arguments]

    def start(rank: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env={**env, "REPLICA": str(rank)})

    replicas = {rank: start(rank) for rank in range(num_replicas)}
    while replicas:
        for rank, process in list(replicas.items()):
            if process.poll() == 0:
                del replicas[rank]
            elif process.returncode is not None:
                replicas[rank] = start(rank)
        time.sleep(POLL_S)
    lighthouse.shutdown()


if __name__ == "__main__":
    main()
