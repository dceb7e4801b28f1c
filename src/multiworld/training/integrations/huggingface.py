"""Hugging Face's Trainer on resilient steps. Needs ``transformers`` 5 and ``accelerate``.

    from multiworld.training.integrations.huggingface import ResilientArguments, ResilientTrainer

    job = training.join("tuning")
    args = ResilientArguments("out", per_device_train_batch_size=4, gradient_accumulation_steps=4, max_steps=1000)
    trainer = ResilientTrainer(model, args, train_dataset=dataset, job=job)
    trainer.train()

One item of the Trainer's loop is one step of the job. The global batch is that of the arguments, times the replicas
that the launcher starts: ``per_device_train_batch_size`` is the micro-batch. A trainer of another library becomes
resilient by ``class MyTrainer(ResilientSteps, SFTTrainer)``.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments

from ..data.base import Batch
from ..engine.step import Step
from ..errors import SetupError
from ..job import Job
from ..state import StateDict
from .alone import alone
from .feed import StepFeed

logger = logging.getLogger(__name__)

if not hasattr(Trainer, "_run_epoch"):
    raise ImportError(
        "this release of transformers has another training loop than the one that multiworld knows: install "
        "transformers>=5.24,<6"
    )

KEPT = ("log_history", "best_metric", "best_global_step", "best_model_checkpoint", "num_input_tokens_seen")
"""The Trainer's own state that does not follow from the step's index."""


class ResilientArguments(TrainingArguments):  # type: ignore[misc]
    """Arguments of a Trainer that does not form a default process group, though a launcher has started it."""

    def __post_init__(self) -> None:
        with alone():
            super().__post_init__()


class ResilientSteps:
    """What makes a Trainer resilient; goes before its class among the bases. ``job``: from ``training.join``.

    ``global_batch``: how many samples a step has; by default those of the arguments, on all replicas.
    """

    def __init__(self, *args: Any, job: Job, global_batch: int | None = None, **kwargs: Any) -> None:
        self._job = job
        self._feed: StepFeed | None = None
        with alone():
            super().__init__(*args, **kwargs)
        given: Any = self.args  # type: ignore[has-type]
        if given.world_size > 1 or given.n_gpu > 1:
            raise SetupError(
                "the Trainer sees other processes or several GPUs. Use ResilientArguments in place of "
                "TrainingArguments, and give each replica one GPU"
            )
        self._micro_batch = given.per_device_train_batch_size
        self._global_batch = global_batch or self._micro_batch * given.gradient_accumulation_steps * job.world_size
        self.args = copy.copy(given)
        self.args.gradient_accumulation_steps = 1  # the micro-batches of a step are dealt by the job
        self._steps_per_epoch = 0
        self.add_callback(_StepsEnd(self))  # type: ignore[attr-defined]

    # ---- what the Trainer's loop calls

    def get_train_dataloader(self) -> _Steps:
        """Return an iterable with one item for each step of an epoch; ``training_step`` fetches its micro-batches."""
        dataset: Any = self.train_dataset  # type: ignore[attr-defined]
        if dataset is None or not hasattr(dataset, "__len__"):
            raise ValueError("a resilient Trainer needs a train_dataset with a length, so that samples have positions")
        self._steps_per_epoch = len(dataset) // self._global_batch
        if not self._steps_per_epoch:
            raise ValueError(
                f"the dataset has {len(dataset)} samples, and one step {self._global_batch}: lower the batch size or "
                "gradient_accumulation_steps"
            )
        return _Steps(self, dataset)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Compute this replica's micro-batches of the step. Returns the mean loss over all of its micro-batches."""
        trainer: Any = self
        feed = self._feed
        assert feed is not None
        compute = super().training_step  # type: ignore[misc]
        step = feed.compute(lambda batch: {"loss": compute(model, batch, num_items_in_batch)})
        self._step = step
        trainer.state.global_step = step.index  # the loop of a newcomer begins with 0
        return torch.tensor(step.values["loss"], device=self.args.device)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """A replica that came later has no steps of the epochs that are over."""
        assert self._feed is not None
        coming = self._feed.peek()
        if coming is not None and self.epoch_of(coming) > kwargs["epoch"]:
            return
        super()._run_epoch(*args, **kwargs)  # type: ignore[misc]

    def is_world_process_zero(self) -> bool:
        """Whether this process writes: checkpoints of the Trainer, logs. If it dies, the next one does."""
        return self._job.is_first

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save on one replica only."""
        if self._job.is_first:
            super().save_model(output_dir, _internal_call)  # type: ignore[misc]

    # ---- the job

    def epoch_of(self, step: Step) -> int:
        return step.index // self._steps_per_epoch

    def begin(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        """Hand over what is trained. All of it exists when the Trainer's loop begins, not before."""
        trainer: Any = self
        job, args = self._job, self.args
        job.replicate(model)
        job.optimizer(getattr(optimizer, "optimizer", optimizer))
        job.track(scheduler=getattr(scheduler, "scheduler", scheduler), trainer=_Kept(trainer))
        scaler = getattr(trainer.accelerator, "scaler", None)
        if scaler is not None:
            job.track(scaler=scaler)
        loader = job.loader(
            trainer.train_dataset,
            global_batch=self._global_batch,
            micro_batch=self._micro_batch,
            shuffle=self._is_shuffled(),
            seed=args.seed if args.data_seed is None else args.data_seed,
            drop_last=True,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory and torch.cuda.is_available(),
            collate_fn=trainer._get_collator_with_removed_columns(trainer.data_collator, description="training"),
        )
        total = trainer.state.max_steps
        self._feed = StepFeed(job.steps(loader, total=total), total)

    def _is_shuffled(self) -> bool:
        strategy = getattr(self.args, "train_sampling_strategy", "random")
        if strategy not in ("random", "sequential"):
            raise ValueError(f"train_sampling_strategy={strategy!r}: a resilient Trainer has 'random' and 'sequential'")
        return bool(strategy == "random")

    def end_step(self) -> None:
        trainer: Any = self
        assert self._feed is not None
        trainer.state.epoch = (self._step.index + 1) / self._steps_per_epoch
        self._feed.end()

    def items(self) -> Iterator[Batch]:
        """Yield an item for each step of the present epoch, or what is left of it."""
        feed = self._feed
        assert feed is not None
        coming = feed.peek()
        epoch = -1 if coming is None else self.epoch_of(coming)
        while coming is not None and self.epoch_of(coming) <= epoch:
            feed.next_step()
            yield {}
            coming = feed.peek()


class ResilientTrainer(ResilientSteps, Trainer):  # type: ignore[misc]
    """Hugging Face's Trainer with resilient steps."""


class _Steps:
    """Stands for the Trainer's data loader: as long as an epoch has steps."""

    def __init__(self, trainer: ResilientSteps, dataset: Any) -> None:
        self._trainer, self.dataset = trainer, dataset

    def __len__(self) -> int:
        return self._trainer._steps_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        return self._trainer.items()


class _StepsEnd(TrainerCallback):  # type: ignore[misc]
    """Begins the job, and ends each step before the Trainer logs, evaluates and saves."""

    def __init__(self, trainer: ResilientSteps) -> None:
        self._trainer = trainer

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any, optimizer: Any, lr_scheduler: Any, **kwargs: Any
    ) -> None:
        self._trainer.begin(model, optimizer, lr_scheduler)
        self._set_zero(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.end_step()
        self._set_zero(state)
        if state.global_step >= state.max_steps:
            control.should_training_stop = True
        if not state.is_world_process_zero:
            control.should_save = False  # one replica writes

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            control.should_save = False

    def _set_zero(self, state: Any) -> None:
        state.is_world_process_zero = state.is_local_process_zero = self._trainer.is_world_process_zero()


class _Kept:
    """The parts of the Trainer's state that newcomers need."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> StateDict:
        trainer = self._trainer
        return {
            "state": {name: getattr(trainer.state, name) for name in KEPT},
            "losses": (trainer._tr_loss.item(), trainer._total_loss_scalar, trainer._globalstep_last_logged),
        }

    def load_state_dict(self, state: StateDict) -> None:
        trainer = self._trainer
        for name, value in state["state"].items():
            setattr(trainer.state, name, value)
        present, trainer._total_loss_scalar, trainer._globalstep_last_logged = state["losses"]
        trainer._tr_loss.fill_(present)
