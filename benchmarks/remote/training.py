"""Training on a node against training here: the same bits, and no wait in a thousand steps."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from multiworld import remote
from multiworld.bench.report import Bound, Line

from .trained_models import MODELS, OPTIMIZERS

__all__ = ["exact", "steps"]

NUM_STEPS = 50
NUM_LONG_STEPS = 1000
BATCH = 8

Move = Callable[[Any], Any]


def exact(options: argparse.Namespace) -> list[Line]:
    """All models with all optimizers, moved in both ways."""
    torch.set_num_threads(1)
    with remote.local(1, num_threads=1) as nodes:
        remote.use_device_name()
        ways: dict[str, tuple[Move, Callable[[int], object]]] = {
            "nodes[1].load": (lambda moved: _by_node(nodes[1], moved), nodes[1].manual_seed),
            '.to("remote:1")': (lambda moved: moved.to("remote:1"), torch.manual_seed),
        }
        worst = dict.fromkeys(ways, 0.0)
        unequal: list[str] = []
        for model in MODELS:
            for optimizer in OPTIMIZERS:
                here = _train(model, optimizer, lambda moved: moved, torch.manual_seed)
                for way, (move, seed) in ways.items():
                    difference = _difference(here, _train(model, optimizer, move, seed))
                    worst[way] = max(worst[way], difference)
                    if difference:
                        unequal.append(f"{model}, {optimizer}, {way}: {difference:.1e}")
        syncs = sum(count for line, count in nodes.statistics.syncs_by_line.items() if not line.startswith("fetch"))
    for each in unequal:
        print(each)
    lines = [
        Line(name=f"largest difference with {way}", unit="", value=value, bound=Bound.at_most(0))
        for way, value in worst.items()
    ]
    return [*lines, Line(name="waits within all steps", unit="", value=float(syncs), bound=Bound.at_most(0))]


def steps(options: argparse.Namespace) -> list[Line]:
    """A thousand steps in which nobody asks for a value; then one second of work that the master does not wait for."""
    torch.set_num_threads(1)
    with remote.local(1, num_threads=1) as nodes:
        model = nodes[1].load(MODELS["perceptron with dropout"]())
        optimizer = torch.optim.AdamW(model.parameters())
        inputs, wanted = nodes[1].randn(BATCH, 64), nodes[1].send(torch.randint(4, (BATCH,)))
        for _ in range(NUM_LONG_STEPS):
            loss = functional.cross_entropy(model(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        syncs, waits = nodes.statistics.syncs, nodes.statistics.num_waits
        loss.item()
    return [
        Line(name=f"waits in {NUM_LONG_STEPS:,} steps", unit="", value=float(syncs), bound=Bound.at_most(0)),
        Line(name="of these, for room on the node", unit="", value=float(waits)),
    ]


def _by_node(node: remote.Node, moved: nn.Module | Tensor) -> nn.Module | Tensor:
    return node.load(moved) if isinstance(moved, nn.Module) else node.send(moved)


def _train(model: str, optimizer: str, move: Move, seed: Callable[[int], object]) -> list[Tensor]:
    """Return the losses of all steps, and the parameters and buffers behind them, as they are where they live."""
    torch.manual_seed(0)
    net = move(MODELS[model]())
    used = OPTIMIZERS[optimizer](net.parameters())
    generator = torch.Generator().manual_seed(1)
    seed(2)
    losses = []
    for _ in range(NUM_STEPS):
        inputs = move(torch.randn(BATCH, 64, generator=generator))
        wanted = move(torch.randint(4, (BATCH,), generator=generator))
        used.zero_grad()
        loss = functional.cross_entropy(net(inputs), wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        used.step()
        losses.append(loss.detach())
    return [*losses, *(value.detach() for value in net.state_dict().values())]


def _difference(here: list[Tensor], there: list[Tensor]) -> float:
    """Return the largest difference; infinite if one has other shapes."""
    largest = 0.0
    for one, other in zip(here, there, strict=True):
        fetched = other.fetch() if isinstance(other, remote.RemoteTensor) else other
        if one.shape != fetched.shape:
            return float("inf")
        if one.numel():
            largest = max(largest, float((one.double() - fetched.double()).abs().max()))
    return largest
