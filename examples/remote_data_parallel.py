"""Train one model on two nodes from one script: each has a replica and half of each batch.

python examples/remote_data_parallel.py
"""

import torch
from torch import nn

from multiworld import remote

STEPS, BATCH = 30, 64


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, 20, generator=generator)
    return inputs, (inputs[:, :4].sum(1) > 0).long()


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    with remote.local(2, num_threads=1) as nodes:
        parallel = remote.replicate(model, [nodes[1], nodes[2]])
        optimizer = torch.optim.AdamW(parallel.parameters(), lr=0.01)
        for step in range(STEPS):
            inputs, labels = batch(step)
            losses = [
                nn.functional.cross_entropy(output, there)
                for output, there in zip(parallel(inputs), parallel.split(labels), strict=True)
            ]
            optimizer.zero_grad()
            for loss in losses:
                loss.backward()  # type: ignore[no-untyped-call]
            # The last backward has averaged the gradients, from node to node.
            optimizer.step()
        print(f"loss {sum(loss.item() for loss in losses) / len(losses):.3f}")
        one, other = ([each.detach().cpu() for each in replica.parameters()] for replica in parallel.replicas)

    # The same in this process, with all of each batch.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        inputs, labels = batch(step)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    print("both replicas are equal, bit for bit:", all(map(torch.equal, one, other)))
    close = all(torch.allclose(a, b, atol=1e-4) for a, b in zip(one, model.parameters(), strict=True))
    print("as trained in one process:", close)


if __name__ == "__main__":
    main()
