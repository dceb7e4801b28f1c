"""Lightning on resilient steps. Needs ``lightning`` 2.

    from multiworld.training.integrations.lightning import ResilientStrategy

    job = training.join("digits")
    trainer = Trainer(strategy=ResilientStrategy(job, global_batch=64), max_epochs=10)
    trainer.fit(module, DataLoader(dataset, batch_size=4, shuffle=True))

The batch size of the training's DataLoader is the micro-batch. One ``batch_idx`` of Lightning is one step of the job:
its micro-batches are computed by ``training_step`` of the module, one after the other, on all replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from ..engine.step import Step
from ..errors import SetupError
from ..job import Job
from .feed import StepFeed

logger = logging.getLogger(__name__)


class ResilientStrategy(SingleDeviceStrategy):  # type: ignore[misc]
    """Each replica is a Trainer of its own on one device; the job joins their steps.

    ``global_batch``: how many samples a step has, on all replicas together. ``seed``: of the order of the samples.
    Validation runs on each replica, over all of its data. Automatic optimization with one optimizer only.
    """

    strategy_name = "multiworld"

    def __init__(
        self, job: Job, *, global_batch: int, device: str | torch.device = "cpu", seed: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(device=device, **kwargs)
        self.job = job
        self._global_batch, self._seed = global_batch, seed
        self._steps_per_epoch = 0
        self._loader: Any = None
        self._feed: StepFeed | None = None
        self._gradients: list[tuple[Any, Tensor | None]] = []

    @property
    def is_global_zero(self) -> bool:
        """Whether this process writes checkpoints and logs. If it dies, the next one does."""
        return self.job.is_first

    # ---- data

    def process_dataloader(self, dataloader: Any) -> Any:
        """Take the training's DataLoader apart; Lightning gets one item for each step of an epoch in its place."""
        if not self.lightning_module.trainer.training:
            return dataloader
        if not isinstance(dataloader, DataLoader) or dataloader.batch_size is None:
            raise SetupError(
                "the resilient strategy needs a torch DataLoader with a batch_size for the training: that is the "
                "micro-batch"
            )
        sampler: Any = dataloader.sampler
        is_plain = isinstance(sampler, (RandomSampler, SequentialSampler))
        self._loader = self.job.loader(
            dataloader.dataset,
            global_batch=self._global_batch,
            micro_batch=dataloader.batch_size,
            shuffle=isinstance(sampler, RandomSampler),
            sampler=None if is_plain else sampler,
            seed=self._seed,
            drop_last=True,
            num_workers=dataloader.num_workers,
            pin_memory=dataloader.pin_memory,
            collate_fn=dataloader.collate_fn,
        )
        self._steps_per_epoch = len(sampler) // self._global_batch
        if not self._steps_per_epoch:
            raise ValueError(f"the dataset has {len(sampler)} samples, fewer than global_batch={self._global_batch}")
        return _Steps(self)

    def items(self) -> Iterator[dict[str, Tensor]]:
        """Yield an item for each step of an epoch, or of what is left of it."""
        feed = self._feed or self._begin()
        coming = feed.peek()
        epoch = None if coming is None else self._epoch_of(coming)
        while coming is not None and self._epoch_of(coming) == epoch:
            feed.next_step()
            self._set_progress(coming)
            yield {"samples": torch.empty(self._loader.micro_batch)}  # Lightning asks items for a batch size
            coming = feed.peek()

    def _epoch_of(self, step: Step) -> int:
        return step.index // self._steps_per_epoch

    # ---- the job

    def _begin(self) -> StepFeed:
        trainer = self.lightning_module.trainer
        if not self.lightning_module.automatic_optimization or len(self.optimizers) != 1:
            raise SetupError("the resilient strategy needs automatic optimization with one optimizer")
        if trainer.accumulate_grad_batches != 1:
            raise SetupError(
                "the resilient strategy accumulates by itself: leave accumulate_grad_batches out, and give the samples "
                "of a step as global_batch"
            )
        job = self.job
        job.replicate(self.model)
        job.optimizer(self.optimizers[0])
        for number, config in enumerate(self.lr_scheduler_configs):
            job.track(**{f"scheduler{number}": config.scheduler})
        scaler = getattr(self.precision_plugin, "scaler", None)
        if scaler is not None:
            job.track(scaler=scaler)
        limits = [trainer.max_steps] if trainer.max_steps >= 0 else []
        if trainer.max_epochs is not None and trainer.max_epochs >= 0:
            limits.append(trainer.max_epochs * self._steps_per_epoch)
        if not limits:
            raise SetupError(
                "the resilient strategy needs max_epochs or max_steps: all replicas end with the same step"
            )
        total = min(limits)
        self._feed = StepFeed(job.steps(self._loader, total=total), total)
        return self._feed

    def _set_progress(self, step: Step) -> None:
        """Have Lightning count as if it had run all steps before this one: a newcomer has not."""
        fit_loop = self.lightning_module.trainer.fit_loop
        epoch_loop = fit_loop.epoch_loop
        place = step.index % self._steps_per_epoch
        epochs = fit_loop.epoch_progress.current
        epochs.processed = epochs.completed = self._epoch_of(step)
        epochs.ready = epochs.started = self._epoch_of(step) + 1
        fit_loop._data_fetcher.fetched = place
        for name in ("ready", "started", "processed", "completed"):
            setattr(epoch_loop.batch_progress.current, name, place)
        done = epoch_loop.automatic_optimization.optim_progress.optimizer.step.total
        done.ready = done.completed = step.index
        epoch_loop._batches_that_stepped = step.index

    # ---- a step: Lightning calls training_step, zero_grad, backward, and then the optimizer, in this order

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute this replica's micro-batches, forward and backward. Returns the mean loss over all of its step's."""
        feed = self._feed
        assert feed is not None
        batch_idx = args[1:]
        optimizer = self.optimizers[0]
        compute = super().training_step

        def run(batch: Any) -> dict[str, Tensor]:
            output = compute(self.batch_to_device(batch), *batch_idx, **kwargs)
            loss = output["loss"] if isinstance(output, Mapping) else output
            if loss is None:
                raise SetupError("training_step() returned no loss. To skip a micro-batch, return a loss of zero")
            super(ResilientStrategy, self).backward(loss, optimizer)
            return {"loss": loss}

        step = feed.compute(run)
        # Lightning zeroes the gradients now, and asks for backward after that
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self._gradients = [(each, each.grad) for each in parameters]
        for each in parameters:
            each.grad = None
        return torch.tensor(step.values["loss"], device=self.root_device)

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The backward of all micro-batches is over: put the gradients of the whole step in place."""
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        self._gradients = []
        return closure_loss

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """Run the closure before the optimizer, not inside of it: only then do the gradients count."""
        if getattr(self.precision_plugin, "scaler", None) is not None:
            return super().optimizer_step(optimizer, closure, model, **kwargs)
        return super().optimizer_step(_ClosureFirst(optimizer), closure, model, **kwargs)

    def on_train_end(self) -> None:
        super().on_train_end()
        if self._feed is not None:
            self._feed.end()

    def teardown(self) -> None:
        self.job.close()
        super().teardown()


class _ClosureFirst:
    """An optimizer for a precision plugin, which hands it a closure."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def step(self, closure: Callable[[], Any], **kwargs: Any) -> Any:
        result = closure()
        self._optimizer.step(**kwargs)
        return result


class _Steps:
    """Stands for Lightning's data loader: as long as an epoch has steps."""

    def __init__(self, strategy: ResilientStrategy) -> None:
        self._strategy = strategy

    def __len__(self) -> int:
        return self._strategy._steps_per_epoch

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return self._strategy.items()
