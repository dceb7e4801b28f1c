"""A node is killed in the middle of a training, and made anew: the training goes on, and ends with the same weights.

python examples/remote_recovery.py
"""

from __future__ import annotations

import os
import signal

import torch
from torch import nn

from multiworld import remote

STEPS, KILLED_AT = 60, 40


def train(nodes: remote.Nodes, killed_at: int | None = None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    nodes[1].manual_seed(0)
    model = nodes[1].load(nn.Sequential(nn.Linear(20, 64), nn.Dropout(0.1), nn.ReLU(), nn.Linear(64, 3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        inputs, labels = torch.randn(32, 20), torch.randint(3, (32,))
        if step == killed_at:
            os.kill(nodes[1].pid, signal.SIGKILL)
        loss = nn.functional.cross_entropy(model(nodes[1].send(inputs)), nodes[1].send(labels))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    print(f"loss {loss.item():.3f} on process {nodes[1].pid}")
    return [parameter.detach().cpu() for parameter in model.parameters()]


def main() -> None:
    with remote.local(1) as nodes:
        undisturbed = train(nodes)
        with remote.recoverable(every_s=30) as recoverable:
            disturbed = train(nodes, KILLED_AT)
            there = recoverable.statistics[1]
        same = all(torch.equal(one, other) for one, other in zip(undisturbed, disturbed, strict=True))
        print(f"made anew {there.num_recoveries} time, with {there.last_num_records} commands issued again")
        print("the weights are the same" if same else "the weights differ")


if __name__ == "__main__":
    main()
