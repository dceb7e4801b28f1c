"""Tensors of unusual sizes: one of 3 GB, one without elements, one of 12 dimensions, and 10,000 in a list."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from multiworld import remote
from multiworld.bench.report import Bound, Line

__all__ = ["line"]

HUGE_BYTES = 3 * 10**9
NUM_SMALL = 10_000


def line(options: argparse.Namespace) -> list[Line]:
    with remote.local(1) as nodes:
        node = nodes[1]
        return [
            Line(name=name, unit="", value=float(check(node)), bound=Bound(at="least", limit=1))
            for name, check in CHECKS.items()
        ]


def _huge(node: remote.Node) -> bool:
    here = torch.arange(HUGE_BYTES // 8)
    there = node.send(here)
    back = there.fetch()
    return bool(back[0] == 0 and back[-1] == len(here) - 1 and torch.equal(back[:: 10**6], here[:: 10**6]))


def _empty(node: remote.Node) -> bool:
    there = node.send(torch.empty(3, 0, 2))
    return there.shape == (3, 0, 2) and (there + 1).sum().item() == 0 and there.fetch().shape == (3, 0, 2)


def _many_dimensions(node: remote.Node) -> bool:
    here = torch.randn([2] * 12)
    there = node.send(here.permute(*reversed(range(12))))
    return torch.equal((there * 2).sum(5).cpu(), (here.permute(*reversed(range(12))) * 2).sum(5))


def _many_in_a_list(node: remote.Node) -> bool:
    here = [torch.full((2,), float(number)) for number in range(NUM_SMALL)]
    there: list[torch.Tensor] = [node.send(each) for each in here]
    together = torch.cat(there)
    torch._foreach_add_(there, 1.0)
    right = torch.equal(torch.stack(there).cpu(), torch.stack(here) + 1)
    return right and torch.equal(together.cpu(), torch.cat(here))


CHECKS: dict[str, Callable[[remote.Node], bool]] = {
    "a tensor of 3 GB comes back as it went": _huge,
    "one without elements": _empty,
    "one of 12 dimensions": _many_dimensions,
    f"{NUM_SMALL:,} small ones in a list": _many_in_a_list,
}
