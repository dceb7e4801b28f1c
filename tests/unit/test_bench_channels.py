"""The table of ``multiworld bench channels``: its lines and their bounds, over processes that only pretend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import pytest

from multiworld.bench import channels, memory
from multiworld.bench.options import Options
from multiworld.bench.report import Line

LIMITS = {
    "40 kB, shm": 2.0,
    "400 kB, shm": 2.5,
    "4 MB, shm": 2.8,
    "64 MB, shm": 2.2,
    "64 MB, shm, of memcpy": 0.7,
    "4 MB, tcp": 1.0,
    "64 MB, tcp": 1.0,
    "2 ranks, all_reduce 4 MB, shm": 0.4,
    "2 ranks, all_reduce 64 MB, shm": 0.5,
    "4 ranks, all_reduce 4 MB, shm": 0.7,
    "4 ranks, all_reduce 64 MB, shm": 0.7,
    "4 ranks, broadcast 4 MB, shm": 0.5,
    "4 ranks, all_gather 4 MB, shm": 0.5,
    "4 ranks, reduce_scatter 4 MB, shm": 0.5,
    "over veth: 64 MB, tcp": 1.0,
}
"""Of both APIs."""
BLOCKING_LIMITS = {
    "round trip 4 B, shm": 0.5,
    "round trip 4 kB, shm": 0.5,
    "2 ranks, all_reduce 4 B, shm": 0.7,
    "2 ranks, all_reduce 4 kB, shm": 0.7,
    "4 ranks, all_reduce 4 B, shm": 0.7,
    "4 ranks, all_reduce 4 kB, shm": 0.3,
    "over veth: round trip 4 kB, tcp": 1.0,
}
ASYNCIO_LIMITS = {"round trip 4 B, shm": 1.0, "round trip 4 kB, shm": 1.0}
OTHER_LIMITS = {
    "memory while moving 64 MB, shm": 8.0,
    "memory of an idle world, shm, formed": 1.0,
    "memory of an idle world, shm, used": 1.0,
    "DDP step, shm": 1.0,
    "DDP losses apart, shm": 1e-6,
}
ANSWERS: Mapping[str, Any] = {
    "stream": 0.5,
    "echo": [0.001, 0.002],
    "repeat": 0.25,
    "copy": 0.25,
    "move": 500_000,
    "held": 1_000_000,
    "buffer_bytes": 4_000_000,
    "train": 0.01,
    "loss_difference": 1e-7,
}


class _Member:
    def ask(self, command: str, /, **fields: Any) -> Any:
        return fields["backends"] if command == "open" else ANSWERS.get(command)


class _Team:
    """Answers at once, the same for every lane."""

    def __init__(self, program: str, size: int, hosts: Sequence[object] = ()) -> None:
        self.members = [_Member() for _ in range(size)]

    def __enter__(self) -> _Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def all(self, command: str, /, **fields: Any) -> list[Any]:
        return [member.ask(command, **fields) for member in self.members]

    def lead(self, command: str, /, **fields: Any) -> Any:
        return self.all(command, **fields)[0]


class _Network:
    hosts = ()

    def __init__(self, num_hosts: int) -> None:
        pass

    def __enter__(self) -> _Network:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture(autouse=True)
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (channels, memory):
        monkeypatch.setattr(module, "Team", _Team)
    monkeypatch.setattr(memory, "QUICK_SETTLE_S", 0.0)
    monkeypatch.setattr(channels, "Network", _Network)
    monkeypatch.setattr(channels, "hosts_available", lambda: None)


def _lines(*backends: str) -> dict[str, Line]:
    lines = channels.measure(Options(quick=True, rounds=1, backends=backends), lambda _: None)
    named = {line.name: line for line in lines}
    assert len(named) == len(lines)
    return named


def _limit(line: Line) -> float | None:
    return None if line.bound is None else line.bound.limit


def test_every_figure_of_the_table_is_there_with_its_bound() -> None:
    expected = dict(OTHER_LIMITS)
    expected |= {_laned(name, api): limit for name, limit in LIMITS.items() for api in ("asyncio", "blocking")}
    expected |= {_laned(name, "blocking"): limit for name, limit in BLOCKING_LIMITS.items()}
    expected |= {_laned(name, "asyncio"): limit for name, limit in ASYNCIO_LIMITS.items()}
    lines = _lines("shm")
    assert {name: _limit(line) for name, line in lines.items() if line.bound is not None} == expected
    shown = {_laned(name, "asyncio") for name in BLOCKING_LIMITS if name not in ASYNCIO_LIMITS}
    assert {name for name, line in lines.items() if line.bound is None} == shown


def test_bounds_on_ratios_and_counts_gate_and_look_in_the_right_direction() -> None:
    for name, line in _lines("shm").items():
        if line.bound is not None:
            assert line.gates
            faster_is_more = line.unit == "GB/s"
            assert line.bound.at == ("least" if faster_is_more else "most"), name


def test_a_channel_in_its_place_is_not_held_to_the_bounds_of_shared_memory() -> None:
    lines = _lines("tcp")
    bounded = {name for name, line in lines.items() if line.bound is not None}
    of_tcp = {_laned(name, api) for name in LIMITS if name.endswith("tcp") for api in ("asyncio", "blocking")}
    assert bounded == {*of_tcp, "over veth: round trip 4 kB, tcp, blocking", "DDP losses apart, tcp"}


def test_without_namespaces_their_lines_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "hosts_available", lambda: "network namespaces need root")
    missing = {name: line.note for name, line in _lines("shm").items() if line.value is None}
    names = ("round trip 4 kB", "64 MB")
    assert missing == {
        f"over veth: {name}, tcp, {api}": "not measured: network namespaces need root"
        for name in names
        for api in ("asyncio", "blocking")
    }


def _laned(name: str, api: str) -> str:
    """``64 MB, shm, of memcpy`` and ``blocking`` give ``64 MB, shm, blocking, of memcpy``."""
    head, separator, tail = name.partition(", of ")
    return f"{head}, {api}{separator}{tail}"
