"""Computing on one stream of a node while 64 MB are copied on another one, against one after the other.

``python -m benchmarks.remote.overlap`` prints every round. It needs two idle cores: what two threads of one process
gain by the same work, without a node, says whether they are there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from multiworld import remote
from multiworld.bench.report import Bound, Line

__all__ = ["line"]

NUM_ELEMENTS: Final = 16 * 1024 * 1024  # 64 MB of float32
SIZE: Final = 256
ROUNDS: Final = 7
TIMES: Final = 1.6


class Round(NamedTuple):
    """Seconds."""

    serial_s: float
    overlapped_s: float

    @property
    def gain(self) -> float:
        return self.serial_s / self.overlapped_s


class Overlap:
    """A computation on a node that takes about as long as a copy, and that copy."""

    def __init__(self, node: remote.Node) -> None:
        self._node = node
        self._here = torch.ones(NUM_ELEMENTS)
        self._there = node.send(self._here)
        self._operand = node.ones(SIZE, SIZE)
        self._kept: Tensor = self._there
        self._computing, self._copying = node.stream(), node.stream()

    def send(self) -> None:
        with self._copying:
            self._kept = self._node.send(self._here, non_blocking=True)
            self._kept[:1].clone()  # the stream waits for all of it

    def fetch(self) -> None:
        with self._copying:
            self._kept = self._there.fetch()

    def measure(self, copy: Callable[[], None]) -> list[Round]:
        copy_s = min(self._timed(copy) for _ in range(ROUNDS))
        one_s = min(self._timed(lambda: self._compute(100)) for _ in range(ROUNDS)) / 100
        times = max(1, round(copy_s / one_s))

        def compute() -> None:
            self._compute(times)

        def both() -> None:
            compute()
            copy()

        return [Round(self._timed(compute) + self._timed(copy), self._timed(both)) for _ in range(ROUNDS)]

    def _compute(self, times: int) -> None:
        with self._computing:
            for _ in range(times):
                self._operand @ self._operand

    def _timed(self, run: Callable[[], None]) -> float:
        def run_all() -> None:
            run()
            self._node.synchronize()

        self._node.synchronize()
        return _seconds(run_all)


def two_threads() -> list[Round]:
    """Compute in one thread while another one copies as much into new memory: what this machine can gain now."""
    here, operand = torch.ones(NUM_ELEMENTS), torch.ones(SIZE, SIZE)

    def copy() -> None:
        here.clone()

    def compute(times: int) -> None:
        for _ in range(times):
            operand @ operand

    def both(times: int) -> None:
        copying = threading.Thread(target=copy)
        copying.start()
        compute(times)
        copying.join()

    copy_s = min(_seconds(copy) for _ in range(ROUNDS))
    times = max(1, round(copy_s * 100 / min(_seconds(lambda: compute(100)) for _ in range(ROUNDS))))
    return [
        Round(_seconds(lambda: compute(times)) + _seconds(copy), _seconds(lambda: both(times))) for _ in range(ROUNDS)
    ]


def _seconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def rounds() -> dict[str, list[Round]]:
    """Return the rounds of both directions."""
    torch.set_num_threads(1)
    with remote.local(1, num_threads=1) as nodes:
        overlap = Overlap(nodes[1])
        return {"sent": overlap.measure(overlap.send), "fetched": overlap.measure(overlap.fetch)}


def line(options: argparse.Namespace) -> list[Line]:
    torch.set_num_threads(1)
    possible = statistics.median(each.gain for each in two_threads())
    return [
        Line(name="the same by two threads of one process, without a node", unit="×", value=possible),
        *_lines(),
    ]


def _lines() -> list[Line]:
    return [
        Line(
            name=f"computing while 64 MB are {how}, over one after the other (median of {ROUNDS})",
            unit="×",
            value=statistics.median(each.gain for each in found),
            bound=Bound(at="least", limit=TIMES),
        )
        for how, found in rounds().items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog="python -m benchmarks.remote.overlap", description=__doc__).parse_args(arguments)
    torch.set_num_threads(1)
    for how, found in {"two threads, no node": two_threads(), **rounds()}.items():
        for each in found:
            print(f"{how}: {each.serial_s * 1e3:.1f} ms, {each.overlapped_s * 1e3:.1f} ms, {each.gain:.2f}×")
        print(f"{how}: median {statistics.median(each.gain for each in found):.2f}×")
    return 0


if __name__ == "__main__":
    sys.exit(main())
