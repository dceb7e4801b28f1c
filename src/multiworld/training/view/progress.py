"""The progress line of a training: what it says, and when it is written. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...world.launcher.pipelines import pipelines_text, sizes_of
from ..events import (
    MemberLost,
    MembershipChanged,
    PipelinesChanged,
    StepCommitted,
    TrainingEnded,
    TrainingEvent,
    TrainingStarted,
)
from .goodput import LiveGoodput
from .leading import is_leading
from .words import counted, duration, number

IN_PLACE_S = 0.2  # a terminal that is written more often only flickers
LINE_S = 5.0
RATE_S = 10.0  # samples per second are a mean over so long
WIDTH = 100


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How a training stands. ``loss_name``: what ``loss`` is called by the program; None: it records nothing.

    ``pipelines``: the sizes of all pipelines; empty: the training has replicas, and ``replicas`` is their number.
    """

    job: str
    step: int
    total: int | None
    loss_name: str | None
    loss: float | None
    samples_per_s: float | None
    replicas: int
    goodput: float
    left_s: float | None
    num_recoveries: int
    at: float
    pipelines: tuple[int, ...] = ()


class ProgressMeter:
    """Follows the events of one member."""

    def __init__(self) -> None:
        self._goodput = LiveGoodput()
        self._total: int | None = None
        self._commits: deque[tuple[float, int, int]] = deque()  # at, samples, step
        self._last: StepCommitted | None = None
        self.num_recoveries = 0
        self.replica_size = 1
        """How many processes hold one copy of the model together."""
        self.pipelines: tuple[int, ...] = ()
        """The sizes of the pipelines, if there are some."""
        self.weakness = ""
        """What they survive, if that is less than the job asked for."""
        self._num_ranks = 0

    def take(self, event: TrainingEvent) -> None:
        self._goodput.take(event)
        if isinstance(event, TrainingStarted):
            self._total = event.total if event.total is not None else self._total
        elif isinstance(event, PipelinesChanged):
            self.pipelines, self.weakness = sizes_of(event.pipelines), weakness(event)
        elif isinstance(event, MembershipChanged):
            self.num_recoveries += bool(event.gone)
            self._num_ranks = len(event.ranks)
        elif isinstance(event, StepCommitted):
            self._last = event
            self.replica_size = max(1, self._num_ranks // max(1, event.replicas))
            self._commits.append((event.at, event.num_samples, event.step))
            while len(self._commits) > 2 and self._commits[1][0] <= event.at - RATE_S:
                self._commits.popleft()

    def progress(self) -> Progress | None:
        """Return how the training stands after the last committed step; None before the first."""
        last = self._last
        if last is None:
            return None
        name = main_value(last.values)
        per_s, steps_per_s = self._rates()
        left = None if self._total is None or not steps_per_s else max(0, self._total - last.step - 1) / steps_per_s
        return Progress(
            job=last.job,
            step=last.step,
            total=self._total,
            loss_name=name,
            loss=None if name is None else last.values[name],
            samples_per_s=per_s,
            replicas=last.replicas,
            goodput=self._goodput.account().goodput,
            left_s=left,
            num_recoveries=self.num_recoveries,
            at=last.at,
            pipelines=self.pipelines,
        )

    def _rates(self) -> tuple[float | None, float | None]:
        first_at, _, first_step = self._commits[0]
        last_at, _, last_step = self._commits[-1]
        if last_at <= first_at:
            return None, None
        samples = sum(num_samples for _, num_samples, _ in self._commits) - self._commits[0][1]
        return samples / (last_at - first_at), max(0, last_step - first_step) / (last_at - first_at)


class ProgressLine:
    """Decides what is written on a terminal or into a log. ``take`` returns text to write now, which may be empty.

    ``in_place``: on a terminal each line overwrites the one before. Only the member that speaks for the training writes
    (``leading``); when it is lost, the next one goes on.
    """

    def __init__(self, *, in_place: bool, width: int = WIDTH) -> None:
        self._meter = ProgressMeter()
        self._is_leading = False  # nobody is before the first membership
        self._in_place, self._width = in_place, width
        self._next_at = -math.inf
        self._is_open = False  # the cursor stands behind a line in place
        self._shown_step: int | None = None
        self._untold: dict[int, str] = {}
        """By rank, the losses since the last membership that another member was to tell."""

    def take(self, event: TrainingEvent, *, now: float) -> str:
        """``now``: seconds of a monotonic clock."""
        self._meter.take(event)
        if isinstance(event, MembershipChanged):
            was_leading, self._is_leading = self._is_leading, is_leading(event)
            untold, self._untold = self._untold, {}
            if was_leading and self._is_leading and (event.came or event.gone):
                return self._note(self._membership(event))
            if not self._is_leading or was_leading:
                return ""
            if event.gone:
                lost = "".join(self._note(untold[rank]) for rank in event.gone if rank in untold)
                return lost + self._note(f"{self._membership(event)}; this rank shows the progress now")
            return self._note(self._membership(event)) if self._meter.weakness else ""
        if isinstance(event, MemberLost):
            why = f"{event.cause}: {event.detail}"
            told = f"{event.job}: lost rank {event.lost_rank} in step {event.step}: {why}"
            if self._is_leading:
                return self._note(told)
            self._untold[event.lost_rank] = told
        if not self._is_leading:
            return ""
        if isinstance(event, StepCommitted):
            return self._step(now)
        if isinstance(event, TrainingEnded):
            return self._end(event)
        return ""

    def _step(self, now: float) -> str:
        if now < self._next_at:
            return ""
        self._next_at = now + (IN_PLACE_S if self._in_place else LINE_S)
        return self._line()

    def _line(self) -> str:
        progress = self._meter.progress()
        if progress is None or progress.step == self._shown_step:
            return ""
        self._shown_step = progress.step
        text = progress_text(progress)
        if not self._in_place:
            return f"{text}\n"
        self._is_open = True
        return f"\r{text[: self._width]}\x1b[K"

    def _membership(self, change: MembershipChanged) -> str:
        line = membership_line(change, self._meter.replica_size, self._meter.pipelines)
        return f"{line}; {self._meter.weakness}" if self._meter.weakness else line

    def _note(self, text: str) -> str:
        """A line of its own, above the one in place."""
        before, self._is_open = "\r\x1b[K" if self._is_open else "", False
        self._next_at = -math.inf
        return f"{before}{text}\n"

    def _end(self, event: TrainingEnded) -> str:
        last = self._line()
        if self._is_open:
            last += "\n"
            self._is_open = False
        why = (event.error or event.reason).partition("\n")[0]  # a traceback below it is shown with the error itself
        return last + (f"{event.job}: ended after step {event.step}: {why}\n" if why else "")


def main_value(values: Mapping[str, float]) -> str | None:
    """Return which recorded value is shown: ``loss`` if there is one, else the first."""
    return "loss" if "loss" in values else next(iter(values), None)


def progress_text(progress: Progress) -> str:
    """Return one line: ``gpt  step 120/2000  loss 2.31  512 samples/s  4 replicas  goodput 97 %  3 min left``."""
    step = progress.step + 1
    parts = [progress.job, f"step {step}" if progress.total is None else f"step {step}/{progress.total}"]
    if progress.loss_name is not None and progress.loss is not None:
        parts.append(f"{progress.loss_name} {number(progress.loss)}")
    if progress.samples_per_s is not None:
        parts.append(f"{number(progress.samples_per_s)} samples/s")
    parts += [members_text(progress.replicas, progress.pipelines), f"goodput {100 * progress.goodput:.1f} %"]
    if progress.left_s is not None and progress.left_s >= 1:
        parts.append(f"{duration(round(progress.left_s))} left")
    return "  ".join(parts)


def members_text(replicas: int, pipelines: Sequence[int]) -> str:
    """Return ``4 replicas``, or ``5 processes in 2 pipelines of 2 and 3``.

    ``pipelines``: their sizes, if there are some; then ``replicas`` counts processes, and some may have no layers.
    """
    if not pipelines:
        return counted(replicas, "replica")
    in_them = "" if replicas == sum(pipelines) else f", {sum(pipelines)} of them"
    return f"{counted(replicas, 'process')}{in_them} in {pipelines_text(pipelines)}"


def weakness(pipelines: PipelinesChanged) -> str:
    """Return what they survive, and how many processes more needs, if it is less than was asked for; else nothing."""
    if not pipelines.needed:
        return ""
    survived = f"{counted(pipelines.tolerates, 'loss')} at once and no more" if pipelines.tolerates else "no loss"
    return f"they survive {survived}: what was asked for needs {counted(pipelines.needed, 'process')}"


def membership_line(change: MembershipChanged, replica_size: int = 1, pipelines: Sequence[int] = ()) -> str:
    """Return in one line who goes on. ``replica_size``: processes of each replica; ``pipelines``: their sizes."""
    parts = []
    if change.gone:
        parts.append(f"without {_ranks(change.gone)}")
    if change.came:
        parts.append(f"{_ranks(change.came)} came")
    told = f" ({', '.join(parts)})" if parts else ""
    num_replicas = len(change.ranks) // replica_size
    go = "goes" if num_replicas == 1 else "go"
    return f"{change.job}: {members_text(num_replicas, pipelines)} {go} on with step {change.step}{told}"


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
