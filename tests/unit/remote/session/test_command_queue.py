"""Commands in order, frees behind those that use the tensor, and nothing of a node that is lost."""

from __future__ import annotations

import sys

from multiworld.remote.protocol import records
from multiworld.remote.session.command_queue import Command, CommandQueue
from multiworld.remote.session.origins import origin


def command(name: str, *, is_users: bool = True) -> Command:
    return records.seed(1), name, origin(sys._getframe()) if is_users else None


def test_a_tensor_is_freed_behind_the_commands_that_were_issued_before() -> None:
    queue = CommandQueue()
    queue.append(command("add"))
    queue.free(7)
    batch, last = queue.take(command("fetch"))
    assert batch == records.seed(1) * 2 + records.free([7])
    assert (last, queue.position) == (1, 3)


def test_a_lost_node_takes_nothing_more_and_the_first_command_that_it_had_not_confirmed_stays_known() -> None:
    queue = CommandQueue()
    for name in ("done", "define", "first", "second"):
        queue.append(command(name, is_users=name != "define"))
    queue.take()
    queue.tell(1)
    queue.append(command("third"))
    queue.discard()
    for number in range(1000):
        queue.append(command("later"))
        queue.free(number)
    assert queue.first_unconfirmed().startswith("first at ")
    assert queue.take() == (b"", queue.position - 1)
    assert queue.find(2) == ("an operation", "a line that is not known any more")


def test_the_first_command_for_a_node_that_was_lost_idle_is_known() -> None:
    queue = CommandQueue()
    queue.discard()
    queue.discard()
    assert queue.first_unconfirmed() == ""
    queue.append(command("add"))
    queue.append(command("mul"))
    assert queue.first_unconfirmed().startswith("add at ")


def test_lines_of_confirmed_records_are_known_until_it_is_told_what_failed() -> None:
    queue = CommandQueue()
    for name in ("first", "second", "third"):
        queue.append(command(name))
    queue.take()
    queue.confirm(2)
    assert (queue.confirmed, queue.told, queue.num_unconfirmed) == (2, 0, 1)
    assert [queue.find(position)[0] for position in range(4)] == ["first", "second", "third", "an operation"]
    assert queue.first_unconfirmed().startswith("third at ")
    assert (queue.shown(1), queue.shown(2)[:5]) == ("", "third")
    queue.tell(1)
    assert (queue.confirmed, queue.told) == (2, 1)
    assert [queue.find(position)[0] for position in range(3)] == ["an operation", "second", "third"]
