"""A module is trained on another node, by a loop that says nothing of nodes but ``"remote:1"``.

``python examples/remote_module.py`` starts the node on this host. With addresses it uses nodes on other hosts:
``python examples/remote_module.py tcp://10.0.0.7:29500``, where ``multiworld nodes serve --host 10.0.0.7`` runs.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

from multiworld import remote

NUM_STEPS, BATCH = 60, 64


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 2))


def trained_on(device: str) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module that was trained on a device, as tensors of this process."""
    torch.manual_seed(0)
    model = net().to(device)  # its parameters are drawn here
    torch.manual_seed(1)  # here and on the nodes: each has a generator of its own, for dropout
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(1))
    labels = (inputs.sum(1) > 0).long()
    loss = torch.zeros(())
    for _ in range(NUM_STEPS):
        loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    print(f"on {device}: loss {loss.item():.4f}")
    return {name: value.cpu() for name, value in model.state_dict().items()}


def main() -> None:
    here = trained_on("cpu")
    with remote.connect(sys.argv[1]) if len(sys.argv) > 1 else remote.local(1) as nodes:
        remote.use_device_name()
        there = trained_on("remote:1")
        print(f"waits: {nodes.statistics.syncs}, one for the loss and one for each tensor of the state")
    print("the same bits as here:", all(torch.equal(here[name], there[name]) for name in here))


if __name__ == "__main__":
    main()
