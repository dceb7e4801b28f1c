"""A profile names the lines that wait, and what each line issued; it costs nothing where there is none."""

from __future__ import annotations

import asyncio
import re
import sys

import pytest
import torch

from multiworld.remote import RemoteOperationError, profile
from multiworld.remote.session import open_connections, waits
from multiworld.remote.session.waits import LineWaits

from ..fake_node import FakeNode, remote_of, values


class OneNode:
    """A connection as ``profile`` sees it."""

    numbers = (1,)

    def __init__(self, fake: FakeNode) -> None:
        self.session = fake.session

    def session_of(self, number: int) -> object:
        return self.session

    def alive_sessions(self) -> list[object]:
        return [self.session]


@pytest.fixture(autouse=True)
def connection(fake: FakeNode) -> object:
    opened = OneNode(fake)
    open_connections.opened(opened)  # type: ignore[arg-type]
    yield
    open_connections.closed(opened)  # type: ignore[arg-type]


def line_here() -> int:
    return sys._getframe(1).f_lineno


def at(lines: list[LineWaits], number: int) -> LineWaits:
    (found,) = (each for each in lines if f"test_profile.py:{number} in " in each.line)
    return found


def test_each_line_has_its_waits_and_what_it_issued(fake: FakeNode) -> None:
    before = fake.node.ones(3)
    with profile() as found:
        for _ in range(4):
            before = before * 2 + 1
            adding = line_here() - 1
        assert remote_of(before).fetch().numel() == 3
        fetching = line_here() - 1
        before.sum().item()
    issued, fetched = at(found.lines, adding), at(found.lines, fetching)
    assert (issued.num_issued, issued.num_waits) == (8, 0)
    assert issued.sent_bytes >= 8 * 20
    assert fetched.operations == {"fetch": 1}
    assert fetched.received_bytes == 12
    assert 0 < fetched.longest_s <= fetched.waited_s <= found.waited_s <= found.duration_s
    assert found.lines[0].waited_s >= found.lines[1].waited_s > 0  # those that waited longest come first
    assert not any("ones" in each.operations for each in found.lines)  # it was issued before


def test_what_is_printed_is_a_table(fake: FakeNode) -> None:
    with profile() as found:
        fake.node.ones(3).sum().item()
    head, columns, row = str(found).splitlines()
    assert re.fullmatch(r"waited [0-9.]+ \w+ of [0-9.]+ \w+, 1 times", head)
    assert columns.split() == ["WAITED", "LONGEST", "TIMES", "RECEIVED", "ISSUED", "SENT", "LINE", "WAITS", "FOR"]
    assert re.search(r" 1 +4 B +3 .*test_profile\.py:\d+ in test_what_is_printed_is_a_table +item$", row)


def test_waits_for_room_for_large_tensors_and_of_coroutines_and_failures_are_waits_too(fake: FakeNode) -> None:
    with profile() as found:
        sent = fake.node.send(torch.zeros(100_000))
        failed = sent.index_select(0, fake.node.send(torch.tensor([100_001])))
        with pytest.raises(RemoteOperationError):
            values(failed)
        asyncio.run(remote_of(sent[:10]).fetched())
        fake.session.stream.room.wait(lambda: False)
    operations = {name for each in found.lines for name in each.operations}
    assert operations == {"send", "fetch", "fetched", "a full queue"}
    assert sum(each.sent_bytes for each in found.lines) > 400_000


def test_two_profiles_see_the_same_and_afterwards_nobody_listens(fake: FakeNode) -> None:
    with profile() as outer:
        with profile() as inner:
            fake.node.ones(1).item()
        fake.node.ones(1).item()
    fake.node.ones(1).item()
    assert [sum(each.num_waits for each in one.lines) for one in (outer, inner)] == [2, 1]
    assert not waits.counting
    assert not waits._tables
