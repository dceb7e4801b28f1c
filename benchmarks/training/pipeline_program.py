"""Our side in pipelines: the loop of the documentation, which tells what it commits, and obeys orders."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from multiworld import training
from multiworld.training.engine.facts import Facts
from multiworld.training.engine.step import Step
from multiworld.training.pipeline.collecting import Collected
from multiworld.training.pipeline.owners import OwnersWorlds
from multiworld.training.pipeline.pipe import Pipe
from multiworld.training.pipeline.pipelined import Pipelined

from .tasks import Sample, loss_of
from .watching import around, reporter, watch_channel, watch_recovery
from .worker import Worker, digest_of

STATES = 4
"""A parameter, its gradient, and what AdamW keeps of it: the state of a layer in bytes of its parameters."""

MIN_STAGES = 2

TIGHT = 0.999
"""A node has not the memory for the whole model, and two have it if they compute activations anew."""

Targets = tuple[Tensor, Tensor]
"""``[batch, seq]``, and the indices of the samples, ``[batch]``."""


class Targeted(Dataset[tuple[Tensor, Targets]]):
    """A task's samples as pipelines take them: the input, and behind it all that the loss is computed with."""

    def __init__(self, dataset: Dataset[Sample]) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        inputs, targets, number = self._dataset[index]
        return inputs, (targets, number)


class Paced(nn.Module):
    """A layer that takes ``pace_s`` for each micro-batch, a third of it in its forward and the rest in its backward.

    What it has not computed of that it waits. So more processes than processors are as fast as so many machines, as
    far as processors are free: a profile of layers does not count what a thread waited for one. ``weight``: the last
    third is waited where the gradient of this parameter is made. ``padding_bytes``: of a parameter that is not trained.
    """

    def __init__(
        self, layer: nn.Module, pace_s: float, weight: Tensor | None = None, *, padding_bytes: int = 0
    ) -> None:
        super().__init__()
        self.layer, self._third_s, self._backward_s = layer, pace_s / 3, pace_s * 2 / 3
        self._backward_began = 0.0  # of the thread's time
        if weight is not None:
            self._backward_s = self._third_s
            weight.register_hook(lambda _: time.sleep(self._third_s))  # type: ignore[no-untyped-call]
        self.padding = nn.Parameter(torch.zeros(padding_bytes, dtype=torch.uint8), requires_grad=False)

    def forward(self, values: Tensor) -> Tensor:
        began = time.thread_time()
        values = values.view_as(values)  # of its own: its hook comes before those of the tensor that a layer returned
        try:
            output: Tensor = self.layer(values)
        finally:  # torch ends a forward early that it computes once more; in a backward, which takes longer by it
            computed_s = time.thread_time() - began
            self._backward_began += computed_s
            _wait(self._third_s - computed_s)
        if not output.requires_grad:
            return output
        if values.requires_grad:
            output.register_hook(lambda _: self._begin_backward())  # type: ignore[no-untyped-call]
            values.register_hook(lambda _: self._end_backward())  # type: ignore[no-untyped-call]
        else:  # nothing tells when the backward of a first layer ends
            output.register_hook(lambda _: time.sleep(self._backward_s))  # type: ignore[no-untyped-call]
        return output

    def _begin_backward(self) -> None:
        self._backward_began = time.thread_time()

    def _end_backward(self) -> None:
        _wait(self._backward_s - (time.thread_time() - self._backward_began))


def _wait(seconds: float) -> None:
    time.sleep(max(0.0, seconds))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--count-resources", action="store_true")
    parser.add_argument("--pace-s", type=float, default=0.0, help="of each layer and micro-batch")
    parser.add_argument("--pace-weights", action="store_true", help="half of the backward's wait is the weights'")
    parser.add_argument("--schedule", default="auto")
    parser.add_argument("--padding-mib", type=int, default=0, help="of each layer, with --pace-s")
    parser.add_argument("--room", type=float, default=TIGHT, help="a node's memory, in states of the whole model")
    worker = Worker(parser, int(os.environ["RANK"]))
    options, task = worker.options, worker.task
    watch_channel(worker.orders)
    watch_recovery(worker.orders)
    around(OwnersWorlds, "form", before=lambda *_: worker.orders.reach("owners"))
    present = _watch_samples(worker)
    job = training.join("bench", tolerate=1, exact=options.exact, seed=0, progress=False)
    chain = task.chain(dropout=options.dropout)
    if options.pace_s:
        chain = [
            Paced(
                each,
                options.pace_s,
                _weight_of(each) if options.pace_weights else None,
                padding_bytes=options.padding_mib << 20,
            )
            for each in chain
        ]
    data = Targeted(task.dataset())
    pipe = job.pipeline(
        stages=chain,
        example=default_collate([data[index] for index in range(options.micro_batch)]),
        loss=lambda output, targets: _loss(worker, job, present[0], output, targets),
        schedule=options.schedule,
        memory_bytes=int(options.room * sum(map(_state_bytes, chain))),
    )
    if pipe.templates.smallest != MIN_STAGES:
        raise ValueError(f"the smallest pipeline has {pipe.templates.smallest} stages, not {MIN_STAGES}")
    optimizer = pipe.optimizer(lambda parameters: torch.optim.AdamW(parameters, lr=task.lr))
    loader = job.loader(data, global_batch=options.global_batch, micro_batch=options.micro_batch, shuffle=True, seed=0)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    job.track(scheduler=scheduler)
    job.listen(reporter(worker, options.count_resources))
    for layer in chain:
        worker.orders.watch_module(layer)
    worker.orders.watch_optimizer(optimizer)
    for step in job.steps(loader, total=options.steps):
        worker.orders.begin(step.index)
        if options.pause_s:
            time.sleep(options.pause_s)
        with step:
            pipe.forward_backward(step)
            optimizer.step()
            scheduler.step()
    digests = {index: _digest(chain[index], optimizer) for index in pipe.layers}
    worker.journal.write("ended", layers=digests, predicted_s=_predicted_s(pipe))
    if options.room > 1 and _recomputes(pipe):
        raise ValueError(f"with --room {options.room} nothing was to be computed twice")


def _weight_of(layer: nn.Module) -> Tensor:
    """Return that of the layer's last product, or its first parameter if it has no product."""
    products = [each.weight for each in layer.modules() if isinstance(each, nn.Linear)]
    return products[-1] if products else next(layer.parameters())


def _watch_samples(worker: Worker) -> list[int]:
    """Tell which micro-batches count in a step. Returns a list with the number of the one that is computed now."""
    present = [-1]

    def begun(_: Collected, number: int) -> None:
        present[0] = number

    def counted(_: Pipelined, step: Step, facts: Sequence[Facts], *__: object) -> None:
        worker.counts(step.index, [number for each in facts for number in each.done])

    around(Collected, "begin_forward", before=begun)
    around(Pipelined, "_commit", before=counted)
    return present


def _state_bytes(layer: nn.Module) -> int:
    return sum(each.nbytes * (STATES if each.requires_grad else 1) for each in layer.parameters())


def _loss(worker: Worker, job: training.Job, micro_batch: int, output: Tensor, targets: Targets) -> Tensor:
    if worker.orders.has_begun:  # else it is measured
        worker.computes(job.state.step, targets[1], micro_batch)
    return loss_of(output, targets[0])


def _predicted_s(pipe: Pipe) -> float:
    """Return what a step takes by the templates of the present pipelines."""
    assert pipe.assignment is not None
    return max(
        pipe.templates.iteration_s(len(each.members), each.num_micro_batches) for each in pipe.assignment.pipelines
    )


def _recomputes(pipe: Pipe) -> bool:
    assert pipe.assignment is not None
    return any(each.recompute for each in pipe.assignment.pipelines)


def _digest(layer: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    states = [dict(optimizer.state[each]) for each in layer.parameters() if each in optimizer.state]
    return digest_of([dict(layer.state_dict()), states])


if __name__ == "__main__":
    main()
