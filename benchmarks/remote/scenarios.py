"""What is done to a system, ours and the peers' alike, by name: each scenario returns figures."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles

import torch

from .kill import kill
from .system import START_S, System

__all__ = ["SCENARIOS", "Scenario"]

Scenario = Callable[[System, Mapping[str, float]], dict[str, float]]
NODE = 1
BIG_BYTES = 64 << 20
GB = 1e9


def operations(system: System, options: Mapping[str, float]) -> dict[str, float]:
    """Issue bursts of additions for ``seconds``, and wait at the end of each."""
    issued, rates, cpu_us = 0, [], []
    ends = math.inf
    while time.perf_counter() < ends:
        began, cpu_began = time.perf_counter(), time.process_time()
        system.add(NODE, system.burst)
        value = system.value(NODE, START_S)
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
        issued += system.burst
        if value != issued:
            raise AssertionError(f"{issued} additions of one made {value}")
        if math.isinf(ends):  # the first burst warms up
            ends = time.perf_counter() + options["seconds"]
            continue
        rates.append(system.burst / took_s)
        cpu_us.append(cpu_s / system.burst * 1e6)
    return {"rate": median(rates), "best": max(rates), "cpu_us": median(cpu_us)}


def round_trip(system: System, options: Mapping[str, float]) -> dict[str, float]:
    """Add and fetch, and wait for each sum: in the fastest way, and as an operation whose result is fetched then."""
    times = int(options["times"])
    found: dict[str, float] = {}
    for name, trip in (("one", _one_call), ("two", _two_calls)):
        took_s = [_timed(trip, system) for _ in range(times + times // 10)][times // 10 :]
        cuts = quantiles(took_s, n=100)
        found |= {f"{name}_p50_s": cuts[49], f"{name}_p99_s": cuts[98], f"{name}_best_s": min(took_s)}
    return found


def copies(system: System, options: Mapping[str, float]) -> dict[str, float]:
    """Send and fetch 64 MB, ``times`` times; then the same for ``seconds`` beside small round trips."""
    tensor = torch.arange(BIG_BYTES // 4, dtype=torch.float32)
    sent, fetched = [], []
    for _ in range(int(options["times"]) + 1):
        sent.append(_timed(system.send, NODE, tensor))
        began = time.perf_counter()
        back = system.fetch(NODE)
        fetched.append(time.perf_counter() - began)
        if not torch.equal(back, tensor):
            raise AssertionError("what came back is not what was sent")
        del back
    rates = {name: [BIG_BYTES / GB / took_s for took_s in all_s[1:]] for name, all_s in (("s", sent), ("f", fetched))}
    return {
        "send": median(rates["s"]),
        "fetch": median(rates["f"]),
        "send_best": max(rates["s"]),
        "fetch_best": max(rates["f"]),
        **meanwhile(system, tensor, options["seconds"]),
    }


def meanwhile(system: System, tensor: torch.Tensor, seconds: float) -> dict[str, float]:
    """Make small round trips while another thread sends and fetches a large tensor without a pause."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def copy() -> None:
        try:
            while not ended.is_set():
                system.send(NODE, tensor)
                system.fetch(NODE)
        except BaseException as error:
            failures.append(error)

    system.add_and_fetch(NODE)
    thread = threading.Thread(target=copy)
    thread.start()
    ends = time.perf_counter() + seconds
    took_s = [_timed(_one_call, system)]
    while time.perf_counter() < ends:
        took_s.append(_timed(_one_call, system))
    ended.set()
    thread.join()
    if failures:
        raise failures[0]
    cuts = quantiles(took_s, n=100) if len(took_s) > 1 else took_s * 99
    return {"p50_s": cuts[49], "p99_s": cuts[98], "worst_s": max(took_s), "trips": len(took_s)}


def _one_call(system: System) -> None:
    system.add_and_fetch(NODE)


def _two_calls(system: System) -> None:
    system.add(NODE, 1)
    system.value(NODE, START_S)


def _timed(call: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - began


SCENARIOS: dict[str, tuple[int, Scenario]] = {
    "operations": (2, operations),
    "round_trip": (2, round_trip),
    "copies": (2, copies),
    "kill": (4, kill),
}
"""How many nodes each needs, and what it does."""
