"""Give up on receives with ``asyncio.wait_for(recv, 1)``: how late it returns, what stalls, what is written later."""

from __future__ import annotations

import asyncio
import sys
import time

import torch

import multiworld as mw

from .report import Report, arguments

WAIT_S = 1.0
LATE_S = 0.05
STALL_S = 0.02


async def trial(report: Report, number: int, backend: str) -> None:
    async with mw.WorldManager() as first, mw.WorldManager() as second:
        store = first.serve_store("tcp://127.0.0.1:0")
        here, there = await asyncio.gather(
            first.join(f"w{number}", rank=0, world_size=2, store=store, backend=backend),
            second.join(f"w{number}", rank=1, world_size=2, store=store, backend=backend),
        )
        buffer = torch.full((100_000,), -1.0)
        ticker = asyncio.create_task(longest_stall())
        begin = time.monotonic()
        try:
            await asyncio.wait_for(here.recv(buffer, 1), WAIT_S)
        except asyncio.TimeoutError:
            report.latency("wait_for(recv, 1)", time.monotonic() - begin, limit_s=WAIT_S + LATE_S)
        else:
            report.count("receives of nothing that succeeded", 1)
        ticker.cancel()
        report.latency("event loop stalled meanwhile", await ticker, limit_s=STALL_S)
        try:
            await asyncio.wait_for(there.send(torch.full((100_000,), 7.0), 0), 0.3)
        except (asyncio.TimeoutError, mw.WorldBrokenError):
            report.count("sends afterwards that found a receiver", 0)
        report.count("buffers written afterwards", int(not bool((buffer == -1).all())))


async def longest_stall(every_s: float = 0.001) -> float:
    """Tick until cancelled, and return by how much the worst tick was late."""
    worst = 0.0
    try:
        while True:
            before = time.monotonic()
            await asyncio.sleep(every_s)
            worst = max(worst, time.monotonic() - before - every_s)
    except asyncio.CancelledError:
        return worst


def main() -> int:
    options = arguments(__doc__, trials=20).parse_args()
    report = Report(f"wait_for(recv, 1), {options.trials} times, {options.backend}")
    for number in range(options.trials):
        asyncio.run(trial(report, number, options.backend))
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
