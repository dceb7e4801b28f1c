"""The loader of streams that can only be read on: torchdata's ``StatefulDataLoader``."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from ..errors import SampleError
from ..state import StateDict
from .base import Batch
from .ledger_check import Data
from .loading import described
from .positions import check_batches
from .seeding import SampleSeeds, drawn_from, kept_torch_state, seed_all
from .settings import check_settings
from .starting import WorkerInit, off_main_thread

_END: Final = object()


class StreamLoader:
    """A ``StepLoader``: micro-batch ``j`` of step ``k`` is batch ``k * num_micro_batches + j`` of the stream.

    Each replica reads the whole stream and uses its own share, since a stream cannot be asked for a position: so all
    must give the same batches, and reading costs each of them what it costs one. A step's batches are kept until the
    next step, so nothing is read again when a replica is lost. An epoch that ends within a step goes on with the next.
    A sample's id is its position in the stream, over all epochs. Not for several threads at once.
    """

    def __init__(self, source: Any, *, global_batch: int, micro_batch: int | None = None, epochs: int | None) -> None:
        self.micro_batch = _batch_size(source, micro_batch)
        check_batches(global_batch, self.micro_batch)
        self.global_batch = global_batch
        self.num_micro_batches = global_batch // self.micro_batch
        self._length = _length(source)
        if epochs is not None and self._length is None:
            raise ValueError(
                f"epochs={epochs} of a stream without a length are not known to end: give epochs=None and a total "
                "number of steps, or a dataset with __len__"
            )
        if self._length is not None and self._length < self.num_micro_batches:
            raise ValueError(
                f"an epoch has {self._length} batches of {self.micro_batch} samples, fewer than the "
                f"{self.num_micro_batches} of one step: lower global_batch={global_batch}"
            )
        self._epochs = epochs
        self._source = source
        self._seeds = SampleSeeds(0)
        self._batches: Any = None
        self._epoch = 0
        self._next = 0
        self._step = 0
        self._window: dict[int, Batch | SampleError] = {}
        self._is_closed = False
        if source.num_workers:
            source.worker_init_fn = WorkerInit(source.worker_init_fn)

    @property
    def num_steps(self) -> int | None:
        """The batches after the last whole step are left out."""
        if self._epochs is None or self._length is None:
            return None
        return self._epochs * self._length // self.num_micro_batches

    def epoch_of(self, step: int) -> int:
        """Return the epoch of the step's first batch; of a stream without a length, that which is being read."""
        return self._epoch if self._length is None else step * self.num_micro_batches // self._length

    def samples(self, step: int) -> list[list[str]]:
        first = step * self.num_micro_batches
        return [self._ids(number) for number in range(first, first + self.num_micro_batches)]

    def fetch(self, step: int, micro_batches: Sequence[int]) -> Iterator[tuple[int, Batch]]:
        """Raises SampleError where the stream raised, and again each time this batch is asked for."""
        self._check(step, micro_batches)
        if step != self._step:
            self._window.clear()
            self._step = step
        return self._fetch(step, tuple(micro_batches))

    def expect(self, step: int, micro_batches: Sequence[int]) -> None:
        """Its workers read on as they are set to."""

    def digest(self) -> str:
        known = {**self.settings(), "micro_batch": self.micro_batch, "class": type(self._source).__name__}
        return hashlib.blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=16).hexdigest()

    def data(self) -> Data:
        """Return what a ledger says of the steps."""
        return Data(global_batch=self.global_batch, micro_batch=self.micro_batch)

    def settings(self) -> dict[str, object]:
        return {"batches": self._length, "batch_size": self.micro_batch, "global_batch": self.global_batch}

    def state_dict(self) -> StateDict:
        """Return where the stream stands: at most at the end of the step that was fetched last."""
        return {
            "settings": self.settings(),
            "next": self._next,
            "epoch": self._epoch,
            "source": self._source.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        check_settings(self.settings(), state["settings"])
        self._end_reading()
        self._window.clear()
        self._next, self._epoch = state["next"], state["epoch"]
        self._step = self._next // self.num_micro_batches
        self._source.load_state_dict(state["source"])

    def close(self) -> None:
        self._is_closed = True
        self._window.clear()
        self._end_reading()

    def _check(self, step: int, micro_batches: Sequence[int]) -> None:
        if self._is_closed:
            raise ValueError("this loader is closed")
        if self.num_steps is not None and step >= self.num_steps:
            raise ValueError(f"there is no step {step}: {self._epochs} epochs have {self.num_steps} steps, from 0")
        for micro_batch in micro_batches:
            if not 0 <= micro_batch < self.num_micro_batches:
                raise ValueError(f"there is no micro-batch {micro_batch}: a step has {self.num_micro_batches}, from 0")
            number = step * self.num_micro_batches + micro_batch
            if number < self._next and number not in self._window:
                raise ValueError(
                    f"batch {number} of the stream was read already, and so were all before {self._next}: a stream "
                    "cannot go back. Load a state of before, or give a dataset whose samples have positions"
                )

    def _fetch(self, step: int, micro_batches: tuple[int, ...]) -> Iterator[tuple[int, Batch]]:
        for micro_batch in micro_batches:
            number = step * self.num_micro_batches + micro_batch
            while self._next <= number:
                batch = self._read()
                if self._next >= step * self.num_micro_batches:
                    self._window[self._next] = batch
                self._next += 1
            batch = self._window[number]
            if isinstance(batch, SampleError):
                raise batch
            yield micro_batch, batch

    def _read(self) -> Batch | SampleError:
        """Return the next batch, or what came in its place: it is counted, as the stream goes on behind it."""
        try:
            return self._read_on()
        except Exception as error:
            failed = SampleError(
                *divmod(self._next, self.num_micro_batches),
                tuple(self._ids(self._next)),
                described(error),
                traceback.format_exc(),
            )
            failed.__cause__ = error
            return failed

    def _read_on(self) -> Batch:
        seed = self._seeds.at(self._epoch, self._next)
        if self._batches is None:
            return self._begin(seed)
        with kept_torch_state():  # without workers, the dataset draws from the program's generator
            seed_all(seed)
            batch = next(self._batches, _END)
        if batch is not _END:
            return batch
        self._end_reading()
        self._epoch += 1
        batch = self._begin(self._seeds.at(self._epoch, self._next))
        if batch is _END:
            raise ValueError(f"the stream gave no batch in epoch {self._epoch}")
        return batch

    def _begin(self, seed: int) -> Batch:
        """Begin an epoch, or go on in one after a resume. What a sampler draws for it follows from ``seed``."""
        sampler: Any = getattr(self._source, "sampler", None)
        if hasattr(sampler, "generator"):  # torchdata's has drawn a seed of its own when it was made, on each rank
            sampler.generator = torch.Generator().manual_seed(seed)
        for name in ("sampler", "dataset"):
            set_epoch = getattr(getattr(self._source, name, None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(self._epoch)
        with drawn_from(seed):
            self._batches = off_main_thread(lambda: iter(self._source))
            seed_all(seed)  # on a resume, the source has just loaded what came before, with random numbers of its own
            return next(self._batches, _END)

    def _end_reading(self) -> None:
        batches, self._batches = self._batches, None
        if batches is not None and hasattr(batches, "_shutdown_workers"):
            batches._shutdown_workers()  # what DataLoader does at the end; there is no public name for it
        if hasattr(self._source, "_iterator"):
            self._source._iterator = None

    def _ids(self, number: int) -> list[str]:
        first = number * self.micro_batch
        return [str(sample) for sample in range(first, first + self.micro_batch)]


def _batch_size(source: Any, micro_batch: int | None) -> int:
    size = source.batch_size
    if size is None:
        raise ValueError(f"{type(source).__name__} has no batch_size, so its batches may be of any size: give it one")
    if micro_batch is not None and micro_batch != size:
        raise ValueError(f"micro_batch={micro_batch}, and the batches of the stream have {size} samples: leave it out")
    if not source.drop_last and not _is_even(source, size):
        raise ValueError(
            f"the last batch of an epoch may have fewer than {size} samples, and the global batch would not be "
            "constant: make the loader with drop_last=True"
        )
    return int(size)


def _is_even(source: Any, size: int) -> bool:
    try:
        return len(source.sampler) % size == 0
    except (TypeError, AttributeError, NotImplementedError):
        return False


def _length(source: Any) -> int | None:
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None
