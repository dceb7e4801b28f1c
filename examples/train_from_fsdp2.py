"""``train_fsdp2.py`` on resilient steps: FSDP2 shards each replica as before, and no step is lost with a process.

    multiworld run --nproc-per-node 4 --max-restarts 3 examples/train_from_fsdp2.py

Kill one of the processes that it names with ``kill -9``, or have rank 1 do it itself: ``--kill-at 13``. The other
process of its replica ends, too, and both are started again; the other replica computes whole steps meanwhile. A
comment says what each changed line was. The loss at the end is that of ``train_fsdp2.py``.
"""

from __future__ import annotations

import argparse
import os
import signal

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import Dataset

from multiworld import training

NUM_TOKENS, LENGTH, WIDTH, SHARDS = 10, 8, 32, 2
GLOBAL_BATCH, EPOCHS = 32, 4
KILLED_RANK = 1


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
    options = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    job = training.join("fsdp2", replica_size=SHARDS)  # was: dist.init_process_group("gloo")
    mesh = job.replica.device_mesh()  # was: init_device_mesh(...) of all processes: replicas times shards
    model = Transformer()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    job.replicate(model)  # new: between replicas
    optimizer = job.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2))  # it runs only when a step counts
    dataset = Counting()
    # was: a DistributedSampler, and DataLoader(dataset, GLOBAL_BATCH // size, sampler=sampler)
    loader = job.loader(dataset, global_batch=GLOBAL_BATCH, micro_batch=8, epochs=EPOCHS)
    print(f"rank {job.rank} of {job.world_size}, pid {os.getpid()}", flush=True)
    for step in job.steps(loader):  # was: for epoch in range(EPOCHS), and set_epoch
        with step:  # new: where a lost replica is noticed
            for batch in step:  # was: for batch in loader. These are the micro-batches of this replica
                if step.index == options.kill_at and job.rank == KILLED_RANK and is_first_life():
                    os.kill(os.getpid(), signal.SIGKILL)
                loss = loss_of(model, job.replica.part(batch))  # was: batch. This process's rows of it
                loss.backward()  # type: ignore[no-untyped-call]
                step.record(loss=loss)  # new: the mean over the step, of all replicas
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()  # optimizer.zero_grad() went
        if step.committed and job.is_first and step.index % 10 == 9:  # was: if rank == 0
            print(f"epoch {step.index // 10}: loss {step.values['loss']:.4f}", flush=True)
    with torch.no_grad():
        loss = loss_of(model, torch.stack([dataset[index] for index in range(GLOBAL_BATCH)]))
    if job.is_first:
        print(f"loss at the end {loss.item():.9f}", flush=True)


def is_first_life() -> bool:
    return os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kill-at", type=int, metavar="STEP", help=f"rank {KILLED_RANK} kills itself there, once")
    return parser.parse_args()


if __name__ == "__main__":
    main()
