"""Four processes train a GPT in two pipelines, and one is killed: nobody cut the model by hand, and no step is lost.

    multiworld train --nproc-per-node 4 examples/train_pipeline.py

With Hugging Face's transformers installed the model is their GPT-2, made from its configuration; without them it is a
small GPT of our own. In both the embedding and the head are one weight. Kill any of the processes that it names with
``kill -9``, or have rank 3 do it itself: ``--kill-at 5``. The others form pipelines without it, move the layers that
are missing, and do the step again; its replacement is taken in between two steps.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from multiworld import training

LENGTH, WIDTH, WORDS = 16, 32, 64
GLOBAL_BATCH, MICRO_BATCH = 32, 4
KILLED_RANK = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        normed = self.norm(values)
        values = values + self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        out: Tensor = values + self.mlp(values)
        return out


class GPT(nn.Module):
    """Its head is the transposed embedding, as GPT-2's."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(num_blocks)), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.token.weight

    def forward(self, text: Tensor) -> Tensor:
        """``[batch, LENGTH]`` to logits ``[batch, LENGTH, WORDS]``."""
        mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
        values = self.token(text) + self.place(torch.arange(LENGTH))
        for block in self.blocks:
            values = block(values, mask)
        logits: Tensor = self.head(self.norm(values))
        return logits


def make_model() -> tuple[str, nn.Module]:
    """Return the model and its name: the same on every rank."""
    torch.manual_seed(0)
    try:
        from transformers import AutoModelForCausalLM, GPT2Config  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return "our own GPT", GPT(num_blocks=6)
    size = {"n_layer": 6, "n_embd": WIDTH, "n_head": 4, "n_positions": LENGTH, "vocab_size": WORDS}
    config = GPT2Config(**size, bos_token_id=0, eos_token_id=0, use_cache=False)
    return "Hugging Face's GPT-2", AutoModelForCausalLM.from_config(config)


def texts() -> TensorDataset:
    """Return texts in which each word follows from the one before: ``[1024, LENGTH]`` twice, words and next words."""
    words = torch.arange(WORDS)
    follow = words[torch.randperm(WORDS, generator=torch.Generator().manual_seed(1))]
    text = [torch.randint(WORDS, (1024,), generator=torch.Generator().manual_seed(2))]
    for _ in range(LENGTH):
        text.append(follow[text[-1]])
    whole = torch.stack(text, dim=1)
    return TensorDataset(whole[:, :-1], whole[:, 1:])


def next_word_loss(output: Any, target: Tensor) -> Tensor:
    logits = output if isinstance(output, Tensor) else output["logits"]
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def memory_of(model: nn.Module) -> int:
    """Return too little for the whole model and enough for half of it: parameters, gradients, AdamW's two values for
    each, and some room for activations.
    """
    return 6 * sum(each.nbytes for each in model.parameters())


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    name, model = make_model()
    data = texts()
    may_die = int(os.environ["RANK"]) == KILLED_RANK and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

    job = training.join("gpt", tolerate=1)  # any process may be lost: each layer is with two of them
    pipe = job.pipeline(
        model,
        example=data[:MICRO_BATCH],  # of a micro-batch: it is cut and measured with it
        loss=next_word_loss,
        memory_bytes=memory_of(model),  # so little that it needs two processes; leave it out on devices
    )
    optimizer = pipe.optimizer(lambda parameters: torch.optim.AdamW(parameters, lr=3e-3))
    loader = job.loader(data, global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, shuffle=True, seed=0)
    print(f"rank {job.rank}: pid {os.getpid()}, {name}", flush=True)
    generation = None
    for step in job.steps(loader, total=options.steps):
        with step:  # a lost peer ends the block; the same step comes again
            loss = pipe.forward_backward(step)
            if may_die and step.index == options.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)  # this step may count, or is done again by the others
            optimizer.step()
        if step.committed and pipe.assignment is not generation:
            generation = pipe.assignment
            print(f"rank {job.rank}: from step {step.index} layers {list(pipe.layers)}", flush=True)
        if step.committed and job.is_first and (step.index % 10 == 0 or step.index == options.steps - 1):
            print(f"step {step.index}: loss {loss:.4f}", flush=True)
        time.sleep(options.pause)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kill-at", type=int, default=None, metavar="STEP", help=f"rank {KILLED_RANK} dies there")
    parser.add_argument("--pause", type=float, default=0.0, metavar="SECONDS", help="between two steps, to look at it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
