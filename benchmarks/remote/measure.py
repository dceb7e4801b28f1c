"""One side: ``python -m benchmarks.remote.measure SYSTEM VARIANT SCENARIO OPTIONS`` in that system's interpreter.

Writes the figures as JSON to the descriptor in ``FIGURES_FD``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

import torch

from .scenarios import SCENARIOS
from .system import Deployer


def main(system: str, variant: str, scenario: str, options: str) -> int:
    torch.set_num_threads(1)
    deploy: Deployer = importlib.import_module(f".{system}", __package__).deploy
    num_nodes, run = SCENARIOS[scenario]
    with deploy(num_nodes, variant) as nodes:
        figures = run(nodes, json.loads(options))
        with os.fdopen(int(os.environ["FIGURES_FD"]), "w") as out:
            json.dump(figures, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
