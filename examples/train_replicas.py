"""Four replicas train a small GPT on Python's own source, and one is killed: no step, no sample and no bit is lost.

    multiworld run --nproc-per-node 4 --preload torch._dynamo,multiworld.training examples/train_replicas.py

Kill any of the processes that it names with ``kill -9``, or have rank 1 do it itself: ``--kill-at 20``. The others
complete the step in which it died, and its replacement takes the state from them. With ``exact=True`` the losses have
the same bits as without a failure; the digest printed in the end shows that the parameters have them, too.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from multiworld import training

LENGTH, WIDTH = 32, 48
KILLED_RANK = 1


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
        self.token, self.place = nn.Embedding(256, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, text: Tensor) -> Tensor:
        """``[batch, LENGTH]`` to logits ``[batch, LENGTH, 256]``."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        logits: Tensor = self.head(self.layers(self.token(text) + self.place, mask=mask, is_causal=True))
        return logits


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    may_die = int(os.environ["RANK"]) == KILLED_RANK and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

    job = training.join("gpt", min_replicas=1, exact=True)  # rank, size and store come from the launcher
    model = job.replicate(GPT(layers=2))
    optimizer = job.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    job.track(scheduler=scheduler)
    loader = job.loader(Source(), global_batch=32, micro_batch=4, shuffle=True, seed=0)
    print(f"rank {job.rank}: pid {os.getpid()}", flush=True)
    for step in job.steps(loader, total=options.steps):
        with step:  # a lost peer ends the block; the same step comes again
            for batch in step:  # this replica's micro-batches: more of them when others died
                loss = loss_of(model, batch)
                loss.backward()  # type: ignore[no-untyped-call]
                step.record(loss=loss)
                if may_die and step.index == options.kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)  # in the middle of a step, its gradients not handed over
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        if step.committed and step.index % 10 == 0 and job.rank == 0:
            print(f"step {step.index}: loss {step.values['loss']:.9f}", flush=True)
    print(f"rank {job.rank}: parameters {digest(model)}", flush=True)


def digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.numpy().tobytes())
    return found.hexdigest()[:16]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of the whole training (default 200)")
    parser.add_argument("--kill-at", type=int, metavar="STEP", help=f"rank {KILLED_RANK} kills itself there, once")
    return parser.parse_args()


if __name__ == "__main__":
    main()
