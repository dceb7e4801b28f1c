"""A sample of the random programs of ``benchmarks/remote/fuzz.py``: the same bits on a node and beside it."""

from __future__ import annotations

import pytest
import torch

from benchmarks.remote.fuzz import Mismatch, run_program
from multiworld.remote.master.node import Node

from .fake_node import FakeNode

PARTS, PROGRAMS = 5, 30


@pytest.mark.parametrize("part", range(PARTS))
def test_programs_of_views_writes_and_out_give_the_same_bits(part: int) -> None:
    for seed in range(part * PROGRAMS, (part + 1) * PROGRAMS):
        with FakeNode() as fake:
            run_program(fake.node, seed)


def test_a_program_that_differs_is_told_with_its_seed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    send = node.send
    monkeypatch.setattr(node, "send", lambda tensor: send(torch.zeros_like(tensor)))
    with pytest.raises(Mismatch, match="seed 8, after"):
        run_program(node, 8)
