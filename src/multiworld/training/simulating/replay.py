"""Replay a trace over a system: how many samples it commits, and where the time goes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from .trace import Change, Trace


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a system goes on after a change.

    ``rate``: samples a second from then on; 0 if it has to wait for more nodes. ``pause_s``: nobody computes for so
    long. ``kept``: which part of the unfinished step's work counts still. ``fill``: as which part of a step pipelines
    fill: before that no micro-batch is finished, and what is in flight at a loss is lost, so the work of as much time
    is lost besides. ``from_checkpoint``: a layer was lost with
    all that had it, so the steps since the last checkpoint are done again.
    """

    rate: float
    pause_s: float = 0.0
    kept: float = 1.0
    fill: float = 0.0
    from_checkpoint: bool = False


class System(Protocol):
    """What is compared. ``takes_joins``: a node that came is used after the current step, not only after a loss."""

    @property
    def name(self) -> str: ...

    @property
    def samples_per_step(self) -> int: ...

    @property
    def takes_joins(self) -> bool: ...

    def begun(self, nodes: Sequence[str]) -> Standing:
        """Return how the training begins with these nodes."""

    def lost(self, nodes: Sequence[str], gone: Sequence[str]) -> Standing:
        """Return how it goes on with ``nodes``, some of them new, perhaps, after it lost ``gone`` at one moment."""

    def joined(self, nodes: Sequence[str]) -> Standing:
        """Return how it goes on with ``nodes``, of which some are new."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """From ``begins_s`` to ``ends_s`` the system computed ``rate`` samples a second, with ``nodes`` nodes there."""

    begins_s: float
    ends_s: float
    rate: float
    nodes: int


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What came of it. ``wall_s``: from the first nodes to the last commit, or to the end if the training stood then.

    ``good_s``: time of work that was committed and not done before; ``redone_s``: of work that was lost;
    ``paused_s``: in recoveries; ``stopped_s``: too few nodes were there. They add up to ``wall_s``, but for the time
    that an unfinished step at the end took. ``setbacks``: when how many computed samples were lost.
    """

    system: str
    num_steps: int
    num_samples: int
    wall_s: float
    good_s: float
    redone_s: float
    paused_s: float
    stopped_s: float
    spans: tuple[Span, ...]
    setbacks: tuple[tuple[float, float], ...] = ()

    @property
    def samples_per_s(self) -> float:
        return self.num_samples / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def effective(self) -> float:
        """The part of the time in which work was done that was committed."""
        return self.good_s / self.wall_s if self.wall_s > 0 else 0.0

    def curve(self, num: int) -> list[tuple[float, float]]:
        """Return ``num`` points: samples a second that counted in the end, each a mean of equally much time."""
        if not self.spans:
            return []
        begins_s, ends_s = self.spans[0].begins_s, self.spans[-1].ends_s
        width_s = (ends_s - begins_s) / num
        samples = [0.0] * num
        for span in self.spans:
            first = min(int((span.begins_s - begins_s) / width_s), num - 1)
            for at in range(first, num):
                from_s = max(span.begins_s, begins_s + at * width_s)
                until_s = min(span.ends_s, begins_s + (at + 1) * width_s)
                if until_s <= from_s:
                    break
                samples[at] += (until_s - from_s) * span.rate
        for at_s, lost in self.setbacks:
            at = min(int((at_s - begins_s) / width_s), num - 1)
            while lost > 0.0 and at >= 0:  # what was computed last is lost first
                taken = min(samples[at], lost)
                samples[at], lost, at = samples[at] - taken, lost - taken, at - 1
        return [(begins_s + (at + 0.5) * width_s, each / width_s) for at, each in enumerate(samples)]


def replay(trace: Trace, system: System, *, checkpoint_every: int = 100, works_in_recoveries: bool = False) -> Replayed:
    """Return what the system commits while the nodes of the trace come and go.

    ``checkpoint_every``: so many steps there is a checkpoint, which costs nothing. ``works_in_recoveries``: the rule of
    Oobleck's published simulator: steps go on at the rate from before until a recovery ends, and then work is lost.
    """
    run = _Run(system, trace.changes[0].at_s, checkpoint_every, trace.end_s if works_in_recoveries else None)
    for change in trace.changes:
        if change.at_s >= trace.end_s:
            break  # what happens at the end makes no difference any more
        run.advance(change.at_s)
        run.change(change)
    run.advance(trace.end_s)
    return run.result()


class _Run:
    """One replay: ``progress`` is the part of the unfinished step that is done, ``step_s`` the time that this took.

    ``works_until_s``: steps go on in recoveries, but not after this; None: nobody computes in a recovery.
    """

    def __init__(self, system: System, begins_s: float, checkpoint_every: int, works_until_s: float | None) -> None:
        self._works_until_s = works_until_s
        self._checkpoint_every, self._since_checkpoint_s = checkpoint_every, list[float]()
        self._system, self._now_s, self._begins_s, self._last_s = system, begins_s, begins_s, begins_s
        self._standing = Standing(rate=0.0)
        self._used: list[str] = []
        self._waiting: list[str] = []
        self._progress = self._step_s = self._resumes_s = 0.0
        self._num_steps = 0
        self._good_s = self._redone_s = self._paused_s = self._stopped_s = 0.0
        self._at_last_commit = (0.0, 0.0, 0.0)
        self._spans: list[Span] = []
        self._setbacks: list[tuple[float, float]] = []

    def advance(self, to_s: float) -> None:
        """Train until then."""
        while self._now_s < to_s:
            if self._now_s < self._resumes_s:
                until_s = min(self._resumes_s, to_s)
                self._paused_s += until_s - self._now_s
                self._spend(until_s, 0.0)
            elif self._standing.rate <= 0.0:
                self._stopped_s += to_s - self._now_s
                self._spend(to_s, 0.0)
            else:
                self._work(to_s)

    def _work(self, to_s: float) -> None:
        step_s = self._system.samples_per_step / self._standing.rate
        ends_s = self._now_s + (1.0 - self._progress) * step_s
        until_s = min(ends_s, to_s)
        self._step_s += until_s - self._now_s
        self._progress += (until_s - self._now_s) / step_s
        self._spend(until_s, self._standing.rate)
        if ends_s <= to_s:
            self._good_s += self._step_s
            self._since_checkpoint_s.append(self._step_s)
            self._progress = self._step_s = 0.0
            self._num_steps, self._last_s = self._num_steps + 1, until_s
            if self._num_steps % self._checkpoint_every == 0:
                self._since_checkpoint_s.clear()
            self._at_last_commit = (self._redone_s, self._paused_s, self._stopped_s)
            if self._waiting and self._system.takes_joins:
                self._take_in()

    def _spend(self, until_s: float, rate: float) -> None:
        nodes = len(self._used) + len(self._waiting)
        last = self._spans[-1] if self._spans else None
        if last is not None and (last.rate, last.nodes) == (rate, nodes):
            self._spans[-1] = Span(begins_s=last.begins_s, ends_s=until_s, rate=rate, nodes=nodes)
        else:
            self._spans.append(Span(begins_s=self._now_s, ends_s=until_s, rate=rate, nodes=nodes))
        self._now_s = until_s

    def change(self, change: Change) -> None:
        """Nodes come and go, now."""
        gone = [node for node in change.lost if node in self._used]
        self._waiting = [node for node in self._waiting if node not in change.lost] + list(change.joined)
        self._used = [node for node in self._used if node not in change.lost]
        if gone:
            self._used, self._waiting = self._used + self._waiting, []
            self._stand(self._system.lost(self._used, gone))
        elif self._standing.rate <= 0.0 and self._waiting:
            self._take_in()

    def _take_in(self) -> None:
        first = not self._used
        self._used, self._waiting = self._used + self._waiting, []
        self._stand(self._system.begun(self._used) if first else self._system.joined(self._used))

    def _stand(self, standing: Standing) -> None:
        if self._works_until_s is not None:
            self.advance(min(self._now_s + standing.pause_s, self._works_until_s))
            standing = replace(standing, pause_s=0.0)
        kept = standing.kept * max(0.0, self._progress - standing.fill) / self._progress if self._progress else 1.0
        if lost := (1.0 - kept) * self._progress * self._system.samples_per_step:
            self._setbacks.append((self._now_s, lost))
        if standing.from_checkpoint:
            self._roll_back()
        self._redone_s += (1.0 - kept) * self._step_s
        self._step_s *= kept
        self._progress *= kept
        self._standing, self._resumes_s = standing, max(self._resumes_s, self._now_s + standing.pause_s)

    def _roll_back(self) -> None:
        lost_s = sum(self._since_checkpoint_s)
        self._good_s, self._redone_s = self._good_s - lost_s, self._redone_s + lost_s
        self._num_steps -= len(self._since_checkpoint_s)
        if self._since_checkpoint_s:
            lost = len(self._since_checkpoint_s) * self._system.samples_per_step
            self._setbacks.append((self._now_s, float(lost)))
        self._since_checkpoint_s.clear()

    def result(self) -> Replayed:
        """Return what was committed until the last commit: what is unfinished then says nothing of the rate."""
        stands = self._standing.rate <= 0.0
        lost = (self._redone_s, self._paused_s, self._stopped_s) if stands else self._at_last_commit
        return Replayed(
            system=self._system.name,
            num_steps=self._num_steps,
            num_samples=self._num_steps * self._system.samples_per_step,
            wall_s=(self._now_s if stands else self._last_s) - self._begins_s,
            good_s=self._good_s,
            redone_s=lost[0],
            paused_s=lost[1],
            stopped_s=lost[2],
            spans=tuple(self._spans),
            setbacks=tuple(self._setbacks),
        )
