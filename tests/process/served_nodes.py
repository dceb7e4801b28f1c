"""Nodes that stand at addresses, each a process of ``multiworld nodes serve``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests import warm_programs

TOKEN = "0123456789abcdef0123"


@contextmanager
def served_node(*options: str, port: int = 0) -> Iterator[str]:
    """Yield the address of a node, which ends with the block."""
    command = [sys.executable, "-m", "multiworld", "nodes", "serve", "--port", str(port), *options]
    environment = {**os.environ, "MULTIWORLD_TOKEN": TOKEN}
    node = warm_programs.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert node.stdout is not None
        line = node.stdout.readline()
        yield line.split(" at ")[1].split(",")[0]
    finally:
        node.terminate()
        node.wait()
        assert node.stdout is not None
        node.stdout.close()
