"""What cutting imports is there before a model is cut."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import torch
import torch._dynamo
from torch import nn
import multiworld.training.pipeline.imports
from multiworld.model.layers import layers_of

before = set(sys.modules)
layers_of(nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)]), torch.ones(3, 4))
print(*sorted(set(sys.modules) - before))
"""


def test_the_first_cut_imports_next_to_nothing() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert len(run.stdout.split()) < 10, run.stdout  # more than 400 without
