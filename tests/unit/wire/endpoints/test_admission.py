"""Who goes when too many stand at a door without having proved themselves."""

from __future__ import annotations

import errno
import logging
import resource

import pytest

from multiworld.wire.endpoints.admission import MAX_IN_RESERVE, MAX_UNPROVEN, PAUSE_S, Admission

LOW = 10


class Door:
    """An admission, and whom it has dropped."""

    def __init__(self) -> None:
        self.dropped: list[int] = []
        self.speaking: set[int] = set()
        self.admission: Admission[int] = Admission("here:1", self.dropped.append, self._look)

    def come(self, *numbers: int, descriptor: int = LOW) -> None:
        for number in numbers:
            self.admission.came(number, f"number {number}", descriptor)

    def _look(self, who: int) -> None:
        if who in self.speaking:
            self.admission.left(who)


@pytest.fixture
def door() -> Door:
    return Door()


def test_the_oldest_goes_for_a_newcomer(door: Door) -> None:
    door.come(*range(MAX_UNPROVEN))
    assert door.dropped == []
    door.come(MAX_UNPROVEN, MAX_UNPROVEN + 1)
    assert door.dropped == [0, 1]
    assert len(door.admission) == MAX_UNPROVEN


def test_who_has_proved_itself_makes_room(door: Door) -> None:
    door.come(*range(MAX_UNPROVEN))
    door.admission.left(7)
    door.admission.left(7)
    door.come(MAX_UNPROVEN)
    assert door.dropped == []


def test_who_has_spoken_by_then_is_heard_and_not_dropped(door: Door) -> None:
    door.come(*range(MAX_UNPROVEN))
    door.speaking = {0}
    door.come(MAX_UNPROVEN)
    assert door.dropped == []
    door.come(MAX_UNPROVEN + 1)
    assert door.dropped == [1]


def test_who_has_begun_to_speak_goes_after_those_that_are_silent(door: Door) -> None:
    door.come(*range(MAX_UNPROVEN))
    for number in range(3):
        door.admission.spoke(number)
        door.admission.spoke(number)
    door.come(*range(MAX_UNPROVEN, 2 * MAX_UNPROVEN))
    assert door.dropped == [*range(3, MAX_UNPROVEN + 3)]
    door.admission.left(0)
    assert len(door.admission) == MAX_UNPROVEN - 1


def test_strangers_that_speak_leave_half_of_the_room_to_those_that_have_just_come(door: Door) -> None:
    for number in range(2 * MAX_UNPROVEN):
        door.come(number)
        door.admission.spoke(number)
    door.dropped.clear()
    newcomers = range(1000, 1000 + MAX_UNPROVEN // 2 - 1)
    for newcomer in newcomers:
        door.come(newcomer)
    assert door.dropped == [*range(MAX_UNPROVEN, MAX_UNPROVEN + len(newcomers))]


def test_what_is_found_to_have_spoken_stays_and_another_goes(door: Door) -> None:
    door.admission = Admission("here:1", door.dropped.append, lambda who: None if who else door.admission.spoke(who))
    door.come(*range(MAX_UNPROVEN + 1))
    assert door.dropped == [1]


def test_only_a_few_stand_in_the_reserve_of_descriptors(door: Door) -> None:
    last = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1
    door.come(*range(100))
    door.come(100, descriptor=last)
    assert door.dropped == [*range(101 - MAX_IN_RESERVE)]
    door.come(101)  # there are descriptors again
    assert len(door.admission) == MAX_IN_RESERVE + 1


def test_all_go_when_the_door_closes(door: Door) -> None:
    door.come(1, 2, 3)
    door.admission.spoke(2)
    door.admission.close()
    assert sorted(door.dropped) == [1, 2, 3]
    assert len(door.admission) == 0


def test_what_strangers_cause_is_said_once_in_a_while(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    door.come(*range(2 * MAX_UNPROVEN))
    for _ in range(100):
        assert door.admission.cannot_accept(OSError(errno.EMFILE, "Too many open files")) == PAUSE_S
    dropped, paused = [record.getMessage() for record in caplog.records]
    assert dropped == "connection from number 0 to here:1 dropped: too many have not proved themselves yet"
    assert "cannot accept connections to here:1 now" in paused
