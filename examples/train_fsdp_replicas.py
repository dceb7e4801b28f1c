"""Two replicas of two processes each train one GPT; inside of a replica FSDP2 shards it. One process is killed.

    multiworld run --nproc-per-node 4 --max-restarts 3 --preload multiworld.training examples/train_fsdp_replicas.py

Kill any process with ``kill -9``, or have rank 3 do it itself: ``--kill-at 20``. The other process of its replica ends,
too, as it holds one half of the model only. The other replica computes the whole step, the launcher starts both
processes again, and each takes its half of the state from the same half of the other replica. The losses are those of
a training without failures.
"""

from __future__ import annotations

import argparse
import os
import signal
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import Dataset

from multiworld import training

LENGTH, WIDTH, REPLICA_SIZE = 32, 48, 2
KILLED_RANK = 3


class Source(Dataset[Tensor]):
    """Windows of the source of Python's modules: ``[LENGTH + 1]`` bytes as int64."""

    def __init__(self) -> None:
        folder = Path(sysconfig.get_path("stdlib"))
        self.text = b"".join((folder / name).read_bytes() for name in ("argparse.py", "ast.py", "datetime.py"))

    def __len__(self) -> int:
        return len(self.text) // (LENGTH + 1)

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(list(self.text[index * (LENGTH + 1) : (index + 1) * (LENGTH + 1)]))


class GPT(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(256, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, text: Tensor) -> Tensor:
        """``[batch, LENGTH]`` to logits ``[batch, LENGTH, 256]``."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        hidden = self.token(text)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(hidden)
        return logits


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    may_die = int(os.environ["RANK"]) == KILLED_RANK and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

    with training.join("gpt", replica_size=REPLICA_SIZE) as job:
        model = GPT(layers=2)
        mesh = job.replica.device_mesh()
        for module in (*model.layers, model):
            fully_shard(module, mesh=mesh)
        job.replicate(model)
        optimizer = job.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))
        loader = job.loader(Source(), global_batch=32, micro_batch=4, shuffle=True, seed=0)
        shard = f"process {job.replica.rank} of replica {job.replica.index}"
        print(f"rank {job.rank}: {shard}, pid {os.getpid()}", flush=True)
        for step in job.steps(loader, total=options.steps):
            with step:
                for batch in step:
                    loss = loss_of(model, job.replica.part(batch))  # FSDP2's processes compute different rows
                    loss.backward()  # type: ignore[no-untyped-call]
                    step.record(loss=loss)
                    if may_die and step.index == options.kill_at:
                        os.kill(os.getpid(), signal.SIGKILL)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            if step.committed and step.index % 10 == 0 and job.rank == 0:
                print(f"step {step.index}: loss {step.values['loss']:.9f}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of the whole training (default 200)")
    parser.add_argument("--kill-at", type=int, metavar="STEP", help=f"rank {KILLED_RANK} kills itself there, once")
    return parser.parse_args()


if __name__ == "__main__":
    main()
