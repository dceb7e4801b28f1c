"""What a replica was executing when it died."""

import os

from multiworld.serving.flow.packets import ID_BYTES
from multiworld.serving.replica.black_box import NUM_PLACES, PLACE_BYTES, BlackBox, carried


def ids(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16, "little") for number in numbers]


def test_what_is_executed_is_read_until_it_has_ended() -> None:
    box, descriptor = BlackBox.create()
    os.close(descriptor)
    assert box.read() == []
    for id_ in ids(1, 2, 3, 2):
        box.begin(id_)
    assert box.read() == ids(1, 2, 3)
    for id_ in ids(2, 4, 2):
        box.end(id_)
    assert box.read() == ids(1, 3)
    for id_ in ids(1, 3):
        box.end(id_)
    assert box.read() == []


def test_more_than_there_is_room_for_is_not_known_until_it_has_ended() -> None:
    box, descriptor = BlackBox.create()
    os.close(descriptor)
    many = ids(*range(1, NUM_PLACES + 3))
    for id_ in many:
        box.begin(id_)
    assert box.read() is None
    box.end(many[0])
    box.begin(many[-2])  # again, and now there is a place
    for id_ in many[1:-1]:
        box.end(id_)
    assert box.read() is None, "one that has no place is executed"
    box.end(many[-1])
    assert box.read() == []
    for id_ in many[:NUM_PLACES]:
        box.begin(id_)
    assert sorted(box.read() or []) == sorted(many[:NUM_PLACES])


def test_a_process_that_no_host_has_started_has_none() -> None:
    assert carried() is None


def test_a_place_has_room_for_an_id() -> None:
    assert PLACE_BYTES == ID_BYTES
