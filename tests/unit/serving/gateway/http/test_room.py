"""Which connection gives way to a new one."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from multiworld.serving.gateway.http.room import GRACE_S, LOOKED_FOR, Room, Wait


@dataclass(eq=False)
class Client:
    """A connection that has waited for so long, or does not wait."""

    waited_s: float | None
    is_amid: bool = False
    has_sent: bool = False
    is_open: bool = True
    since: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.since = time.monotonic() - (self.waited_s or 0.0)

    def waits(self) -> Wait | None:
        return (self.is_amid, self.since) if self.is_open and self.waited_s is not None else None

    def give_way(self, silent_s: float) -> bool:
        assert silent_s >= GRACE_S
        if self.has_sent:
            self.since = time.monotonic()
            return False
        self.is_open = False
        return True


def ended(*clients: Client) -> list[int]:
    return [index for index, client in enumerate(clients) if not client.is_open]


def test_the_one_that_has_waited_longest_goes_first() -> None:
    clients = [Client(20), Client(40), Client(30)]
    room = Room(clients)
    for expected in ([1], [1, 2], [0, 1, 2]):
        assert room.make()
        assert ended(*clients) == expected
    assert not room.make()


def test_those_between_requests_go_before_those_amid_one() -> None:
    clients = [Client(50, is_amid=True), Client(60, is_amid=True), Client(5)]
    room = Room(clients)
    assert room.make()
    clients.append(Client(4))
    assert room.make()
    assert ended(*clients) == [2, 3]
    assert room.make()
    clients.append(Client(3))
    assert room.make()
    assert ended(*clients) == [1, 2, 3, 4]


def test_whoever_is_served_has_just_come_or_has_just_sent_something_stays() -> None:
    newcomer = Client(100)
    clients = [Client(None), Client(GRACE_S / 10), Client(70, has_sent=True), newcomer]
    assert not Room(clients).make(newcomer)
    assert ended(*clients) == []


def test_those_that_were_next_and_have_been_served_since_stay() -> None:
    clients = [Client(30 + index) for index in range(LOOKED_FOR + 3)]
    room = Room(clients)
    assert room.make()
    clients[-2].since = time.monotonic()
    assert room.make()
    assert ended(*clients) == [LOOKED_FOR, LOOKED_FOR + 2]
