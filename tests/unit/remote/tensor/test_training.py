"""Training on a node gives the bits of training here, and waits for nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from multiworld.remote.master.node import Node
from multiworld.remote.session.sync_points import no_sync
from multiworld.remote.tensor.generators import kept, restore
from multiworld.remote.tensor.remote_tensor import RemoteTensor

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "fused SGD": lambda parameters: torch.optim.SGD(parameters, 0.1, fused=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 0.1),
    "AdamW, foreach": lambda parameters: torch.optim.AdamW(parameters, 0.1, foreach=True),
    "AdamW, fused": lambda parameters: torch.optim.AdamW(parameters, 0.1, fused=True),
    "fused Adagrad": lambda parameters: torch.optim.Adagrad(parameters, 0.1, fused=True),
    "NAdam": lambda parameters: torch.optim.NAdam(parameters, 0.1),
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 2)),
    "LSTM": lambda: nn.LSTM(6, 5, num_layers=2, dropout=0.2),
    "attention": lambda: nn.TransformerEncoderLayer(6, 2, 16),
    "batch norm first": lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(6, 2)),
    "batch norm without parameters": lambda: nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(4, affine=False)),
}


def trained(model: str, optimizer: str, node: Node | None) -> list[Tensor]:
    """Return the parameters after three steps; without a node: here."""
    torch.manual_seed(1)
    net = MODELS[model]()
    inputs = torch.randn(5, 4, 6)
    if node is None:
        torch.manual_seed(2)
    else:
        net, inputs = node.load(net), node.send(inputs)
        node.manual_seed(2)
    made = OPTIMIZERS[optimizer](list(net.parameters()))
    for _ in range(3):
        made.zero_grad()
        found = net(inputs)
        (found if isinstance(found, Tensor) else found[0]).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        made.step()
    return list(net.parameters())


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        *(("dropout", optimizer) for optimizer in OPTIMIZERS),
        *((model, "SGD") for model in ("attention", "batch norm first", "batch norm without parameters")),
        ("LSTM", "AdamW"),
    ],
)
def test_a_training_gives_the_same_bits_and_waits_for_nothing(node: Node, model: str, optimizer: str) -> None:
    here = trained(model, optimizer, None)
    with no_sync():
        there = trained(model, optimizer, node)
    for one, other in zip(here, there, strict=True):
        assert isinstance(other, RemoteTensor)
        assert torch.equal(one, other.fetch())


def test_an_lstm_without_gradients_gives_the_same_bits(node: Node) -> None:
    net = nn.LSTM(4, 5).eval()
    inputs = torch.randn(6, 2, 4)
    with torch.no_grad():
        expected, _ = net(inputs)
        found, _ = node.load(net)(node.send(inputs))
    assert torch.equal(found.fetch(), expected)


def test_a_generator_goes_on_from_a_state_that_was_kept(node: Node) -> None:
    with no_sync():
        state = kept(RemoteTensor, node.session())
        first = node.rand(5)
        restore(state)
        again = node.rand(5)
    assert torch.equal(first.fetch(), again.fetch())
    assert not torch.equal(first.fetch(), node.rand(5).fetch())
