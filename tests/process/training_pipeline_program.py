"""A model trained in pipelines; each process writes down the losses that it saw. Started by the launcher.

training_pipeline_program.py FOLDER OPTIONS, where OPTIONS is JSON: see ``Options``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from multiworld import training
from multiworld.training.engine.step import Step
from multiworld.training.pipeline import growing, opening, planner
from multiworld.training.pipeline.accumulating import Accumulation
from multiworld.training.pipeline.collecting import Collected
from multiworld.training.pipeline.experience import Experience
from multiworld.training.pipeline.pipe import Pipe
from multiworld.training.pipeline.pipelined import Pipelined
from multiworld.training.pipeline.prefetching import Prefetching
from multiworld.training.pipeline.preparing import Preparing
from multiworld.training.pipeline.stage import StageRun
from multiworld.training.planning.profile import Profile
from multiworld.training.profiles import cached_profile
from tests.process.warm_writer import fork_writer

WIDTH, DEPTH, GLOBAL_BATCH, MICRO_BATCH, NUM_TOKENS = 32, 6, 24, 3, 40
MAX_NORM = 1.0
WAIT_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Options:
    """``kills``: (rank, step, moment); a moment is "forward", "backward", "last" (the last backward, once the other
    pipelines have finished theirs), "weights" (between both parts of a split backward), "redo" (a backward in a step
    that was begun before a loss), "reduced", "committed", "move" or "prefetch" (the first step that counts while layers
    come in advance).

    ``layers_of_a_process``: how many fit into the memory of one. ``leaves``: (rank, step) after which it leaves.
    ``model``: "chain" of stages by hand, or "gpt", which is cut, with tied weights. ``checkpoint``: a folder.
    """

    total: int = 12
    kills: tuple[tuple[int, int, str], ...] = ()
    exact: bool = True
    dropout: float = 0.1
    layers_of_a_process: int = 4
    leaves: tuple[int, int] | None = None
    model: str = "chain"
    checkpoint: str = ""
    waits_for: int = 0
    """Take so many steps more slowly, so that replacements come in time."""
    kills_last_of_first_in: int = -1
    """In this step, kill the member with the last stage of the first pipeline in its first backward."""
    waits_for_newcomer_in: int = -1
    """In this step, wait until a newcomer looks for the others."""
    schedule: str = "1f1b"
    device: str | None = None
    moves_are_dear: bool = False
    """Plan as if all layers took the same time, and moving one very long: peers compute for those that are lost.

    So all pipelines have two stages, if there is an even number of processes.
    """
    moves_are_large: bool = False
    """Newcomers get layers beside the steps, one from each source in a step."""


class Block(nn.Module):
    """A residual block with BatchNorm: it has buffers, and draws random numbers."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = values + self.dropout(torch.tanh(self.norm(self.linear(values))))
        return out


def stages(dropout: float) -> list[nn.Module]:
    torch.manual_seed(0)
    chain = [nn.Linear(8, WIDTH), *(Block(dropout) for _ in range(DEPTH)), nn.Linear(WIDTH, 1)]
    return [each.double() for each in chain]


class Attention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(values)).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = values + self.dropout(self.out(mixed))
        return out


class Gpt(nn.Module):
    """Its head is its embedding."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Attention(dropout) for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, NUM_TOKENS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.embedding(tokens)
        for block in self.blocks:
            values = block(values)
        logits: Tensor = self.head(self.norm(values)).transpose(1, 2)
        return logits


def gpt(dropout: float) -> nn.Module:
    torch.manual_seed(0)
    return Gpt(dropout)


def tokens() -> TensorDataset:
    torch.manual_seed(1)
    drawn = torch.randint(NUM_TOKENS, (480, 9))
    return TensorDataset(drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous())


def dataset() -> TensorDataset:
    torch.manual_seed(1)
    inputs = torch.randn(480, 8, dtype=torch.float64)
    return TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target)


def memory_for(num_layers: int) -> int:
    """Return the memory of a process that holds so many blocks with AdamW's states, and some for activations."""
    block = sum(each.nbytes for each in Block(0.0).double().parameters())
    return 4 * block * num_layers + 2 * block


def kill_when(moment: str, wanted: int, state: training.Job, finished: Finished) -> None:
    """End this process at a moment of step ``wanted``, as if it was killed from outside."""

    def end(step: int, *given: object) -> None:
        if step == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    def end_in_last(step: int, run: StageRun, task: object) -> None:
        if step == wanted and task == run._work.tasks[-1]:
            finished.wait_for_others(step)
            end(step)

    def end_after_loss(step: int, run: StageRun, task: object) -> None:
        if isinstance(run._observer, Collected) and run._observer.is_after_loss:
            end(step)

    if moment == "last":
        replace(StageRun, "_backward", end_in_last, state)
    elif moment == "redo":
        replace(StageRun, "_backward", end_after_loss, state)
    elif moment in ("forward", "backward", "weights"):
        replace(StageRun, f"_{moment}", end, state)
    elif moment == "reduced":
        replace(Pipelined, "_own_facts", end, state)
    elif moment == "move":
        replace(Preparing, "_take", end, state)
    elif moment == "prefetch":
        replace(Prefetching, "step_counts", lambda step, *given: end(wanted), state)


class Finished:
    """Which members have finished their micro-batches of a step, in a folder that all see. Counts forwards, too."""

    def __init__(self, folder: Path, job: training.Job, pipe: Pipe) -> None:
        self._folder, self._pipe = folder, pipe
        self.forwards: list[int] = []
        """The micro-batches of each forward since the last commit."""
        folder.mkdir(exist_ok=True)
        replace(Accumulation, "launch", self._finished, job)
        replace(Collected, "begin_forward", self._began, job)
        self.num_put_off = 0
        """Micro-batches whose gradients of weights were computed after others, since the training began."""
        replace(Collected, "begin_weights", self._began_weights, job)

    def taken(self) -> list[int]:
        forwards, self.forwards = self.forwards, []
        return forwards

    def wait_for_others(self, step: int) -> None:
        present = self._pipe._present()
        assert present is not None
        others = [each.members for each in present[0].pipelines if present[1] not in each.members]
        missing = [self._folder / f"{step}-{member}" for members in others for member in members]
        while not all(each.exists() for each in missing):
            time.sleep(0.001)

    def _finished(self, step: int, accumulation: object) -> None:
        present = self._pipe._present()
        assert present is not None
        (self._folder / f"{step}-{present[1]}").touch()

    def _began(self, step: int, collected: object, number: int) -> None:
        self.forwards.append(number)

    def _began_weights(self, step: int, collected: object, number: int) -> None:
        self.num_put_off += 1


def replace(owner: type, name: str, call: Callable[..., None], job: training.Job) -> None:
    """Have a method call ``call`` with the present step and what it is given, before it does its work."""
    inner = getattr(owner, name)

    def method(self: object, *args: object) -> object:
        call(job.state.step, self, *args)
        return inner(self, *args)

    setattr(owner, name, method)


def wait_for_newcomer(job: training.Job) -> None:
    """The first member looks for newcomers; the others wait for it in the next step."""
    membership = job._membership
    assert membership.generation is not None
    is_first = membership.generation.members[0].id == membership.member.id
    has_come = len(membership.generation.members) == int(os.environ["WORLD_SIZE"])
    while is_first and not has_come and not membership.newcomers:
        membership.look_for_newcomers()
        time.sleep(WAIT_S)


def kill_last_of_first(wanted: int, job: training.Job, pipe: Pipe) -> None:
    def end(step: int, *given: object) -> None:
        assignment = pipe.assignment
        assert assignment is not None
        if step == wanted and assignment.pipelines[0].members[-1] == job._membership.member.id:
            os.kill(os.getpid(), signal.SIGKILL)

    replace(StageRun, "_backward", end, job)


def make_moves_dear() -> None:
    Experience.bytes_per_s = 1e-3  # type: ignore[assignment, method-assign]

    def even_profile(*args: Any, **given: Any) -> Profile:
        profile = cached_profile(*args, **given)
        layers = tuple(
            dataclasses.replace(
                each,
                forward_s=0.001,
                backward_s=0.002,
                weight_backward_s=0.001,
                activation_bytes=0,
                put_off_bytes=0,
            )
            for each in profile.layers
        )
        return dataclasses.replace(profile, layers=layers, latency_s=0.0)

    vars(opening)["cached_profile"] = even_profile


def make_moves_large() -> None:
    vars(planner)["SMALL_BYTES"] = 0
    vars(growing)["SHARE"] = 0.0


def main(folder: Path, options: Options) -> None:
    torch.set_num_threads(1)
    if options.moves_are_dear:
        make_moves_dear()
    if options.moves_are_large:
        make_moves_large()
    if options.checkpoint:
        fork_writer()
    rank = int(os.environ["RANK"])
    checkpoint = training.Checkpoint(options.checkpoint, every_steps=3) if options.checkpoint else None
    job = training.join("pipelined", tolerate=1, exact=options.exact, checkpoint=checkpoint)
    data = dataset() if options.model == "chain" else tokens()
    given: dict[str, Any] = {
        "example": tuple(each[:MICRO_BATCH] for each in data.tensors),
        "memory_bytes": memory_for(options.layers_of_a_process),
        "schedule": options.schedule,
        "device": options.device,
    }
    if options.model == "chain":
        pipe = job.pipeline(stages=stages(options.dropout), loss=loss_of, **given)
    else:
        pipe = job.pipeline(gpt(options.dropout), loss=nn.functional.cross_entropy, **given)
    optimizer = pipe.optimizer(lambda parameters: torch.optim.AdamW(parameters, lr=1e-2), max_grad_norm=MAX_NORM)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    job.track(scheduler=scheduler)
    loader = job.loader(data, global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, shuffle=True)
    is_first_life = not list(folder.glob(f"{rank}-*"))
    kills = [each for each in options.kills if each[0] == rank] if is_first_life else []
    finished = Finished(folder.with_name(f"{folder.name}-finished"), job, pipe)
    for _, at, moment in kills:
        kill_when(moment, at, job, finished)
    if is_first_life and options.kills_last_of_first_in >= 0:
        kill_last_of_first(options.kills_last_of_first_in, job, pipe)
    with (folder / f"{rank}-{os.getpid()}").open("w") as journal:
        for step in job.steps(loader, total=options.total):
            _train(step, pipe, optimizer, scheduler, kills)
            if step.committed:
                said = {
                    "step": step.index,
                    "loss": step.values["loss"],
                    "layers": pipe.layers,
                    "reroutes": len(assignment.reroutes) if (assignment := pipe.assignment) is not None else 0,
                    "policy": "" if assignment is None else assignment.policy,
                    "lr": scheduler.get_last_lr(),
                    "forwards": finished.taken(),
                    "put_off": finished.num_put_off,
                }
                print(json.dumps(said), file=journal, flush=True)
            if options.leaves == (rank, step.index):
                job.leave()
            if step.index == options.waits_for_newcomer_in:
                wait_for_newcomer(job)
            if step.index < options.waits_for:
                time.sleep(WAIT_S)
        print(json.dumps({"end": _sums(pipe)}), file=journal)


def _sums(pipe: Pipe) -> dict[str, float]:
    """Return of each parameter that this process has its sum."""
    layers = [pipe.model.layers[each] for each in pipe.layers]
    return {name: each.sum().item() for layer in layers for name, each in layer.parameters.items()}


def _train(
    step: Step,
    pipe: Pipe,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    kills: list[tuple[int, int, str]],
) -> None:
    with step:
        pipe.forward_backward(step)
        if any(at == step.index and moment == "committed" for _, at, moment in kills):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        scheduler.step()  # inside of the step: a checkpoint has it then


if __name__ == "__main__":
    said = json.loads(sys.argv[2])
    said["kills"] = tuple(map(tuple, said["kills"]))
    said["leaves"] = None if said["leaves"] is None else tuple(said["leaves"])
    main(Path(sys.argv[1]), Options(**said))
