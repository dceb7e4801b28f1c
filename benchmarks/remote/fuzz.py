"""Random programs of views, in-place operators and ``out=``, on a node and beside it: the same bits at every look.

``python -m benchmarks.remote.fuzz --programs 10000`` prints the seed of each program that differs; ``--seed`` runs one.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import torch
from torch import Tensor

from multiworld import remote
from multiworld.bench.report import Bound, Line
from multiworld.remote import RemoteTensor
from multiworld.remote.master.node import Node

from .steps import MOST_ELEMENTS, STEPS
from .typed_steps import TYPED_STEPS

__all__ = ["Mismatch", "fuzzed", "run_program"]

NUM_STEPS: Final = 25
MOST_TENSORS: Final = 10
_ALL_STEPS: Final = [*STEPS, *TYPED_STEPS]
LOOKS: Final = 0.05
"""How often all tensors are compared before the end, by step."""


class Mismatch(AssertionError):
    """A tensor of the node differs from its twin (the text says the seed, the steps so far, and how)."""


class Program:
    """``local`` and ``remote``: the tensors of both sides, place by place."""

    def __init__(self, node: Node, seed: int, disturb: Callable[[], object]) -> None:
        self._rng = Random(seed)
        self._disturb = disturb
        self._seed = seed
        self._done: list[str] = []
        self.local = [self._first() for _ in range(3)]
        self.remote: list[Tensor] = [node.send(each) for each in self.local]

    def run(self) -> None:
        """Raises Mismatch."""
        for _ in range(NUM_STEPS):
            if not self._step():
                return
            self._disturb()
            if self._rng.random() < LOOKS:
                self._look()
        self._look()

    def _first(self) -> Tensor:
        shape = [self._rng.choice((1, 2, 3, 4)) for _ in range(self._rng.randint(1, 4))]
        generator = torch.Generator().manual_seed(self._rng.getrandbits(32))
        return torch.randint(-9, 9, shape, generator=generator).to(torch.float32)

    def _step(self) -> bool:
        """What fails here says nothing, and is left out there. Return False if it did a part of its work before."""
        choose = self._rng.choice(_ALL_STEPS)
        before = [_shown(each) for each in self.local]
        try:
            apply = choose(self._rng, self.local)
            made = _listed(apply(self.local)) if apply is not None else []
        except (IndexError, RuntimeError, TypeError, ValueError):
            return before == [_shown(each) for each in self.local]  # ``out=`` grows before its kernel looks further
        if apply is None:
            return True
        self._done.append(choose.__name__)
        try:
            there = _listed(apply(self.remote))
        except Exception as error:
            raise self._mismatch(f"{type(error).__name__}: {error}") from error
        if len(made) != len(there):
            raise self._mismatch(f"{len(there)} tensors were made, not {len(made)}")
        for one, other in zip(made, there, strict=True):
            if one.numel() <= MOST_ELEMENTS:
                self._keep(one, other)
        return True

    def _keep(self, one: Tensor, other: Tensor) -> None:
        if len(self.local) < MOST_TENSORS:
            self.local.append(one)
            self.remote.append(other)
            return
        place = self._rng.randrange(MOST_TENSORS)
        self.local[place], self.remote[place] = one, other

    def _look(self) -> None:
        for place, (one, other) in enumerate(zip(self.local, self.remote, strict=True)):
            difference = _difference(one, other)
            if difference:
                raise self._mismatch(f"tensor {place} {difference}")

    def _mismatch(self, text: str) -> Mismatch:
        return Mismatch(f"seed {self._seed}, after {', '.join(self._done)}: {text}")


def run_program(node: Node, seed: int, disturb: Callable[[], object] = lambda: None) -> None:
    """Run the program of a seed on the node and here. ``disturb`` is called after each step. Raises Mismatch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Program(node, seed, disturb).run()


def fuzzed(node: Node, seeds: Sequence[int]) -> list[str]:
    """Return what was found in the programs of these seeds: one text for each that differs."""
    found = []
    for seed in seeds:
        try:
            run_program(node, seed)
        except Mismatch as mismatch:
            found.append(str(mismatch))
            print(mismatch, flush=True)
    return found


def line(options: argparse.Namespace) -> list[Line]:
    torch.set_num_threads(1)  # with more, ``out=`` over the operands has other values in each run of PyTorch itself
    with remote.local(1, num_threads=1) as nodes:
        found = fuzzed(nodes[1], range(options.seed, options.seed + options.programs))
    name = f"mismatches in {options.programs:,} programs from seed {options.seed}"
    return [Line(name=name, unit="", value=float(len(found)), bound=Bound.at_most(0), note="; ".join(found[:3]))]


def _listed(made: Any) -> list[Tensor]:
    return [] if made is None else [made] if isinstance(made, Tensor) else list(made)


def _difference(one: Tensor, other: Tensor) -> str | None:
    if not isinstance(other, RemoteTensor):
        return f"is a {type(other).__name__}"
    if (spec := _shown(one)) != (there := _shown(other)):
        return f"is {there}, not {spec}"
    values = other.fetch()
    if not bool(((values == one) | (values != values) & (one != one)).all()):
        return f"holds {values.tolist()}, not {one.tolist()}"
    return None


def _shown(tensor: Tensor) -> tuple[object, ...]:
    """Return what decides where each element is: strides of dimensions with one element do not."""
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    bits = [tensor.is_conj(), tensor.is_neg()]
    return (tuple(tensor.shape), tensor.dtype, strides if tensor.numel() else [], tensor.storage_offset(), *bits)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        (found,) = line(options)
    except Exception:
        traceback.print_exc()
        return 1
    print(f"{found.name}: {found.value:g} ({time.monotonic() - began:.0f} s)")
    return 0 if found.holds else 1


if __name__ == "__main__":
    sys.exit(main())
