"""A loop with FSDP2 as one writes it by hand, for torchrun: two replicas of two shards each. A loss ends all of it.

    torchrun --standalone --nproc-per-node 4 examples/train_fsdp2.py

``train_from_fsdp2.py`` is the same training on resilient steps.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler

NUM_TOKENS, LENGTH, WIDTH, SHARDS = 10, 8, 32, 2
GLOBAL_BATCH, EPOCHS = 32, 4


class Counting(Dataset[Tensor]):
    """``[LENGTH + 1]`` tokens that count up in steps of 1 to 9, modulo NUM_TOKENS."""

    def __len__(self) -> int:
        return 10 * GLOBAL_BATCH

    def __getitem__(self, index: int) -> Tensor:
        return (7 * index + torch.arange(LENGTH + 1) * (1 + index % 9)) % NUM_TOKENS


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(NUM_TOKENS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, NUM_TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        """``[batch, LENGTH]`` to logits ``[batch * LENGTH, NUM_TOKENS]``."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        hidden = self.token(tokens)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(hidden.flatten(0, 1))
        return logits


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return functional.cross_entropy(model(batch[:, :-1]), batch[:, 1:].flatten())


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // SHARDS, SHARDS), mesh_dim_names=("replicate", "shard"))
    model = Transformer()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    dataset = Counting()
    sampler: DistributedSampler[Tensor] = DistributedSampler(dataset, size, rank, shuffle=False)
    loader = DataLoader(dataset, GLOBAL_BATCH // size, sampler=sampler)
    print(f"rank {rank} of {size}, pid {os.getpid()}", flush=True)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for batch in loader:
            loss = loss_of(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    with torch.no_grad():
        loss = loss_of(model, torch.stack([dataset[index] for index in range(GLOBAL_BATCH)]))
    if rank == 0:
        print(f"loss at the end {loss.item():.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
