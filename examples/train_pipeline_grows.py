"""A training in pipelines grows: it begins on one host with one pipeline, and a second host joins while it runs.

    python examples/train_pipeline_grows.py

Both hosts are agents on this machine here. On two machines, type what it prints on each of them, with the address of
the first one in place of 127.0.0.1. ``train_pipeline.py`` is the program that trains.
"""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("train_pipeline.py")
JOINS_AFTER = "step 0:"


def agent(port: int) -> subprocess.Popen[str]:
    """Start one host's agent; all have the same command."""
    options = f"--nnodes 1:2 --nproc-per-node 3 --rdzv-id grows --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port}"
    arguments = [*options.split(), str(PROGRAM), "--steps", "150", "--pause", "0.05"]
    print(f"$ multiworld train {shlex.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "multiworld", "train", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agents = [agent(port)]
    try:
        output = agents[0].stdout
        assert output is not None
        for line in output:
            if "goodput" not in line:
                print(line, end="", flush=True)
            if JOINS_AFTER in line:
                agents.append(agent(port))
        statuses = [each.wait(60) for each in agents]
    finally:
        for each in agents:
            each.terminate()  # it ends its processes; one that has ended is not disturbed
    print(f"both hosts ended with {statuses}")


if __name__ == "__main__":
    main()
