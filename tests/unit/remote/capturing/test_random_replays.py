"""Random programs of views, writes and ``out=`` that are captured: replays have the bits of the program here."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import torch
from torch import Tensor

from benchmarks.remote.steps import MOST_ELEMENTS, STEPS, Apply
from multiworld.remote import CaptureError, Step
from multiworld.remote.capturing.capture import capture
from multiworld.remote.master.node import Node
from tests.unit.remote.fake_node import FakeNode, values

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # writes through expanded views, in PyTorch
PARTS, PROGRAMS, NUM_STEPS = 4, 15, 20
ERRORS = (IndexError, RuntimeError, TypeError, ValueError)


@pytest.mark.parametrize("part", range(PARTS))
def test_replays_of_random_programs_have_the_bits_of_the_programs(part: int) -> None:
    with FakeNode() as fake:
        lengths = [_compare(fake.node, seed) for seed in range(part * PROGRAMS, (part + 1) * PROGRAMS)]
    assert sum(lengths) > 5 * PROGRAMS  # most steps can be captured


def _compare(node: Node, seed: int) -> int:
    """Return of how many steps the program consists."""
    rng = Random(seed)
    shapes = [[rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(1, 4))] for _ in range(3)]
    program = _chosen(rng, _inputs(rng, shapes))
    while True:
        first = _inputs(rng, shapes)
        step, bad, there = _captured(node, program, first)
        if step is None:
            del program[bad]
            program = _valid(program, first)
            continue
        here = _run(program, first)
        for one, other in zip(here, there, strict=True):
            _same(seed, one, other)
        for _ in range(2):
            inputs = _inputs(rng, shapes)
            replayed = step(*[each.clone() for each in inputs])
            for one, other in zip(_run(program, inputs), replayed, strict=True):
                _same(seed, one, other)
        return len(program)


def _inputs(rng: Random, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    return [torch.randint(-9, 9, list(shape), generator=generator).to(torch.float32) for shape in shapes]


def _chosen(rng: Random, tensors: list[Tensor]) -> list[Apply]:
    program: list[Apply] = []
    while len(program) < NUM_STEPS:
        try:
            apply = rng.choice(STEPS)(rng, tensors)
            if apply is not None:
                _add(tensors, apply)
                program.append(apply)
        except ERRORS:
            continue
    return program


def _valid(program: Sequence[Apply], inputs: Sequence[Tensor]) -> list[Apply]:
    """Return what still works without a part that was left out."""
    tensors = [each.clone() for each in inputs]
    valid = []
    for apply in program:
        try:
            _add(tensors, apply)
        except ERRORS:
            continue
        valid.append(apply)
    return valid


def _add(tensors: list[Tensor], apply: Apply) -> None:
    made = apply(tensors)
    listed = made if isinstance(made, (list, tuple)) else [made]
    tensors += [each for each in listed if isinstance(each, Tensor) and each.numel() <= MOST_ELEMENTS]


def _run(program: Sequence[Apply], inputs: Sequence[Tensor]) -> list[Tensor]:
    tensors = [each.clone() for each in inputs]
    for apply in program:
        _add(tensors, apply)
    return tensors


def _captured(node: Node, program: Sequence[Apply], inputs: Sequence[Tensor]) -> tuple[Step | None, int, list[Tensor]]:
    """Return the step, or which of the program can't be captured; and the tensors of the block."""
    tensors: list[Tensor] = [node.send(each) for each in inputs]
    place = 0
    try:
        with capture(*tensors) as step:
            for place, apply in enumerate(program):  # noqa: B007
                _add(tensors, apply)
            step.returns(*tensors)
    except CaptureError:
        return None, place, []
    return step, 0, tensors


def _same(seed: int, one: Tensor, other: Tensor) -> None:
    there = values(other)
    assert (there.dtype, there.shape) == (one.dtype, one.shape), f"seed {seed}"
    assert torch.equal(torch.nan_to_num(there), torch.nan_to_num(one)), f"seed {seed}: {there} is not {one}"
