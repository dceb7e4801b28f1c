"""Plain pipelines of torch with DDP beside each other, as torchrun starts them; with ``--checkpoint`` they are saved.

Rank ``pipeline * num_stages + stage`` has a stage; the same stages of all pipelines reduce their gradients by DDP.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from .tasks import Sample, loss_of
from .worker import Worker, digest_of

NUM_STAGES = 2


def main() -> None:
    worker = Worker(argparse.ArgumentParser(), int(os.environ["RANK"]))
    options, task = worker.options, worker.task
    dist.init_process_group("gloo")
    world_size = dist.get_world_size()
    num_pipelines = world_size // NUM_STAGES
    pipeline, stage = divmod(worker.rank, NUM_STAGES)
    along = [dist.new_group(list(range(NUM_STAGES * each, NUM_STAGES * (each + 1)))) for each in range(num_pipelines)]
    across = [dist.new_group(list(range(each, world_size, NUM_STAGES))) for each in range(NUM_STAGES)]
    chain = task.chain(dropout=options.dropout)
    own = nn.Sequential(*_share(chain, stage))
    optimizer = torch.optim.AdamW(own.parameters(), lr=task.lr)
    step = _load(options.checkpoint, stage, own, optimizer)
    replicated = DistributedDataParallel(own, process_group=across[stage])
    for layer in own:
        worker.orders.watch_module(layer)
    worker.orders.watch_optimizer(optimizer)
    num_micro_batches = options.global_batch // options.micro_batch // num_pipelines
    schedule = Schedule1F1B(
        PipelineStage(replicated, stage, NUM_STAGES, torch.device("cpu"), group=along[pipeline]),
        num_micro_batches,
        loss_fn=loss_of,
    )
    sampler: DistributedSampler[Sample] = DistributedSampler(
        task.dataset(), num_replicas=num_pipelines, rank=pipeline, shuffle=True, seed=0
    )
    loader = DataLoader(
        task.dataset(), batch_size=options.micro_batch * num_micro_batches, sampler=sampler, drop_last=True
    )
    batches = iter(loader)
    while step < options.steps:
        worker.orders.begin(step)
        optimizer.zero_grad()
        batch = next(batches, None)
        if batch is None:
            sampler.set_epoch(sampler.epoch + 1)
            batches = iter(loader)
            batch = next(batches)
        worker.computes(step, batch[2])
        losses: list[torch.Tensor] = []
        if stage == 0:
            schedule.step(batch[0])
        else:
            schedule.step(target=batch[1], losses=losses)
        optimizer.step()
        loss = float(torch.stack(losses).detach().mean()) if losses else None
        worker.committed(step, replicas=world_size, loss=loss)
        step += 1
        if options.checkpoint is not None and step % options.checkpoint_every == 0 and pipeline == 0:
            _save(options.checkpoint, stage, step, own, optimizer)
    worker.journal.write("ended", digest=digest_of(own.state_dict()))
    dist.destroy_process_group()


def _share(chain: list[nn.Module], stage: int) -> list[nn.Module]:
    each = -(-len(chain) // NUM_STAGES)
    return chain[stage * each : (stage + 1) * each]


def _save(path: Path, stage: int, step: int, own: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A stage's file of a step: the other stages may be a step behind when all are killed, so the last one stays."""
    draft = path.with_name(f"{path.name}.{stage}.draft")
    torch.save({"model": own.state_dict(), "optimizer": optimizer.state_dict()}, draft)
    draft.replace(_file(path, stage, step))
    for each in sorted(_saved(path, stage))[:-2]:
        _file(path, stage, each).unlink()


def _load(path: Path | None, stage: int, own: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the step to go on with: the newest of which there are all stages."""
    if path is None:
        return 0
    step = max(set.intersection(*(_saved(path, each) for each in range(NUM_STAGES))), default=0)
    if step:
        state = torch.load(_file(path, stage, step))
        own.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    dist.barrier()  # nobody saves, and drops files, before all have found theirs
    return step


def _saved(path: Path, stage: int) -> set[int]:
    prefix = f"{path.name}.{stage}."
    found = (each.name[len(prefix) :] for each in path.parent.glob(f"{prefix}*"))
    return {int(each) for each in found if each.isdigit()}


def _file(path: Path, stage: int, step: int) -> Path:
    return path.with_name(f"{path.name}.{stage}.{step}")


if __name__ == "__main__":
    main()
