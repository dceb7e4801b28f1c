"""Random programs on three streams of a node, with events in random places, against the same steps one by one here.

``python -m benchmarks.remote.stream_programs --programs 10000`` prints the seed of each that differs; ``--seed`` runs
one. Each program has no race: clocks of the streams say what happens before what, and a step that nothing orders behind
an earlier use of its tensors first waits for that.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

import torch
from torch import Tensor

from multiworld import remote
from multiworld.bench.report import Bound, Line

__all__ = ["Mismatch", "line", "mismatches", "run_program"]

NUM_STREAMS: Final = 3
NUM_STEPS: Final = 30
NUM_TENSORS: Final = 4
MODULUS: Final = 100_003
SLOW: Final = 0.05
"""How many steps take about a millisecond first: a stream that does not wait would be too early."""
SLOW_SIZE: Final = 128


class Mismatch(AssertionError):
    """A tensor of the node differs from its twin (the text says the seed and the steps)."""


class Use(NamedTuple):
    """A step that used a tensor: its stream, and its number there."""

    stream: int
    step: int


class Recorded(NamedTuple):
    """An event, and what has happened when it is recorded: steps of each stream."""

    event: remote.Event
    clock: list[int]


class Program:
    """One program: ``run`` raises Mismatch."""

    def __init__(self, node: remote.Node, streams: Sequence[remote.Stream], seed: int) -> None:
        self._rng = Random(seed)
        self._node, self._streams, self._seed = node, streams, seed
        self._clocks = [[0] * NUM_STREAMS for _ in streams]  # what happens before the next step of each stream
        self._events: list[Recorded] = []
        self._steps: list[str] = []
        self.local = [torch.randint(MODULUS, (4,), generator=self._generator()) for _ in range(NUM_TENSORS)]
        self.remote: list[Tensor] = [node.send(each) for each in self.local]
        self._slow = node.ones(SLOW_SIZE, SLOW_SIZE)
        self._writes: list[Use | None] = [None] * NUM_TENSORS
        self._reads: list[list[Use]] = [[] for _ in range(NUM_TENSORS)]
        for stream in streams:
            stream.wait_stream(node.default_stream)

    def run(self) -> None:
        for _ in range(NUM_STEPS):
            self._rng.choice((self._write, self._write, self._write, self._make, self._record, self._wait))()
        for number, stream in enumerate(self._streams):
            self._node.default_stream.wait_stream(stream)
            self._note(f"end {number}")
        for place, (here, there) in enumerate(zip(self.local, self.remote, strict=True)):
            values = there.cpu()
            if not torch.equal(here, values):
                steps = ", ".join(self._steps)
                raise Mismatch(
                    f"seed {self._seed}: tensor {place} is {values.tolist()}, not {here.tolist()}; steps: {steps}"
                )

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._rng.getrandbits(32))

    # ---- steps

    def _write(self) -> None:
        """Write a tensor in place, by another one: no two such writes can change places unseen."""
        number, target, source = self._rng.randrange(NUM_STREAMS), *self._rng.sample(range(NUM_TENSORS), 2)
        factor, is_slow = self._rng.randint(2, 99), self._rng.random() < SLOW
        self._order(number, [self._writes[source], self._writes[target], *self._reads[target]])
        with self._streams[number]:
            if is_slow:
                self._slow_down(self.remote[target])
            _mix(self.remote[target], self.remote[source], factor)
        _mix(self.local[target], self.local[source], factor)
        used = self._use(number, f"{target} by {source} on {number}")
        self._writes[target], self._reads[target] = used, []
        self._reads[source].append(used)

    def _make(self) -> None:
        """Make a new tensor in the place of one: who uses it waits for it without an event, and the old one goes."""
        number, target, source = self._rng.randrange(NUM_STREAMS), *self._rng.sample(range(NUM_TENSORS), 2)
        self._order(number, [self._writes[source]])
        with self._streams[number]:
            if self._rng.random() < SLOW:
                self._slow_down(self.remote[source], is_read=True)
            self.remote[target] = self.remote[source] * 2
        self.local[target] = self.local[source] * 2
        used = self._use(number, f"{target} from {source} on {number}")
        self._reads[source].append(used)
        self._writes[target], self._reads[target] = None, []

    def _slow_down(self, tensor: Tensor, *, is_read: bool = False) -> None:
        """Let the stream of this thread be late: what comes next in it needs this."""
        late = self._slow
        for _ in range(4):
            late = late @ self._slow * 0.01
        nothing = (late.sum() * 0).to(torch.int64)
        if not is_read:
            tensor.add_(nothing)

    def _record(self) -> None:
        """Record an event, which may be one that was recorded before."""
        number = self._rng.randrange(NUM_STREAMS)
        clock = list(self._clocks[number])
        if self._events and self._rng.random() < 0.4:
            place = self._rng.randrange(len(self._events))
            event = self._events[place].event
            event.record(self._streams[number])
            self._events[place] = Recorded(event, clock)
        else:
            self._events.append(Recorded(self._streams[number].record_event(), clock))
        self._note(f"record on {number}")

    def _wait(self) -> None:
        """Let a stream wait for any event."""
        if self._events:
            self._wait_for(self._rng.randrange(NUM_STREAMS), self._rng.choice(self._events))

    # ---- what happens before what

    def _wait_for(self, number: int, recorded: Recorded) -> None:
        self._streams[number].wait_event(recorded.event)
        self._clocks[number] = [max(pair) for pair in zip(self._clocks[number], recorded.clock, strict=True)]
        self._note(f"wait on {number}")

    def _order(self, number: int, uses: Sequence[Use | None]) -> None:
        """Let a stream wait for uses that do not happen before its next step: by any event that is late enough."""
        for use in uses:
            if use is None or use.step < self._clocks[number][use.stream]:
                continue
            late_enough = [each for each in self._events if use.step < each.clock[use.stream]]
            if late_enough and self._rng.random() < 0.8:
                self._wait_for(number, self._rng.choice(late_enough))
            else:
                clock = list(self._clocks[use.stream])
                self._wait_for(number, Recorded(self._streams[use.stream].record_event(), clock))

    def _use(self, number: int, shown: str) -> Use:
        self._note(shown)
        step = self._clocks[number][number]
        self._clocks[number][number] += 1
        return Use(number, step)

    def _note(self, shown: str) -> None:
        self._steps.append(shown)


def _mix(target: Tensor, source: Tensor, factor: int) -> None:
    target.mul_(factor).add_(source).remainder_(MODULUS)


def run_program(node: remote.Node, streams: Sequence[remote.Stream], seed: int) -> None:
    """Run the program of a seed on these streams of the node and here. Raises Mismatch."""
    Program(node, streams, seed).run()


def mismatches(node: remote.Node, seeds: Sequence[int]) -> list[str]:
    """Return what was found in the programs of these seeds: one text for each that differs."""
    streams = [node.stream() for _ in range(NUM_STREAMS)]
    found = []
    for seed in seeds:
        try:
            run_program(node, streams, seed)
        except Mismatch as mismatch:
            found.append(str(mismatch))
            print(mismatch, flush=True)
    return found


def line(options: argparse.Namespace) -> list[Line]:
    torch.set_num_threads(1)
    with remote.local(1, num_threads=1) as nodes:
        found = mismatches(nodes[1], range(options.seed, options.seed + options.programs))
        nodes.synchronize()  # it sends what was given up
        nodes.synchronize()  # behind which it is freed
        left = nodes[1].statistics.num_tensors
    name = f"mismatches in {options.programs:,} programs on {NUM_STREAMS} streams from seed {options.seed}"
    return [
        Line(name=name, unit="", value=float(len(found)), bound=Bound.at_most(0), note="; ".join(found[:3])),
        Line(name="tensors left on the node behind them", unit="", value=float(left), bound=Bound.at_most(0)),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote.stream_programs", description=__doc__)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        lines = line(options)
    except Exception:
        traceback.print_exc()
        return 1
    for each in lines:
        print(f"{each.name}: {each.value:g}")
    print(f"{time.monotonic() - began:.0f} s")
    return 0 if all(each.holds for each in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
