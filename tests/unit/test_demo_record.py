"""Each broken world finds its fault, or counts as broken without reason."""

from __future__ import annotations

import pytest

from multiworld.demo.record import Broken, Fault, Record

EDGES = ("a-b1", "b1-c")


def a_record() -> Record:
    record = Record()
    for world in ("front-a", *EDGES):
        record.formed(world, 1)
    return record


def broken(process: str, world: str, generation: int = 1, error: str = "PeerDiedError") -> Broken:
    return Broken(process, world, generation, error, "gone")


def inject(record: Record, at: float = 10.0) -> Fault:
    return record.inject("SIGKILL of b1", "b1", 2, EDGES, at=at)


def test_fault_is_detected_when_all_its_world_mates_know() -> None:
    record = a_record()
    fault = inject(record)
    assert record.broke(broken("a", "a-b1"), at=10.01) is fault
    assert fault.detection_s is None
    assert record.broke(broken("c", "b1-c"), at=10.03) is fault
    assert fault.detection_s == pytest.approx(0.03)
    assert record.broken_without_reason == []
    assert record.worlds["a-b1"].state == "broken"


@pytest.mark.parametrize(
    ("process", "world", "generation", "at"),
    [
        ("a", "front-a", 1, 11.0),  # a world that the victim is not in
        ("a", "a-b1", 2, 11.0),  # the generation after the fault
        ("a", "a-b1", 1, 9.9),  # before the fault
    ],
)
def test_other_broken_worlds_have_no_reason(process: str, world: str, generation: int, at: float) -> None:
    record = a_record()
    inject(record)
    assert record.broke(broken(process, world, generation), at=at) is None
    assert record.broken_without_reason == [broken(process, world, generation)]


def test_a_fault_that_nobody_planned_is_the_reason_from_when_it_was_first_heard_of() -> None:
    record = a_record()
    for world in EDGES:
        record.formed(world, 1, worker=2)
    fault = record.suffer("loss of b1", "b1", 2, record.worlds_of(2), at=10.05)
    assert not record.is_whole
    assert record.broke(broken("a", "a-b1"), at=10.01) is fault
    assert record.broke(broken("c", "b1-c"), at=10.03) is fault
    assert fault.at == 10.01
    assert fault.detection_s == pytest.approx(0.02)
    assert record.fault_in(2) is record.last_fault_of("b1") is fault
    assert record.fault_in(3) is record.last_fault_of("b2") is None
    fault.full_strength_at = 11.0
    assert record.is_whole


def test_members_that_leave_are_no_fault_once_the_pipeline_closes() -> None:
    record = a_record()
    record.closing(at=20.0)
    record.broke(broken("a", "front-a", error="PeerLeftError"), at=20.1)
    assert record.broken_without_reason == []
    record.broke(broken("c", "b1-c", error="PeerLeftError"), at=19.9)
    record.broke(broken("a", "a-b1", error="PeerDiedError"), at=20.1)
    assert len(record.broken_without_reason) == 2


def test_victim_that_wakes_up_is_fenced_and_does_not_count_as_a_detection() -> None:
    record = a_record()
    fault = inject(record)
    assert record.broke(broken("b1", "a-b1", error="StaleGenerationError"), at=13.0) is fault
    assert fault.fenced_by == "StaleGenerationError"
    assert fault.detection_s is None


def test_a_world_shows_its_newest_generation() -> None:
    record = a_record()
    inject(record)
    record.broke(broken("a", "a-b1"), at=10.1)
    record.formed("a-b1", 2)
    record.formed("a-b1", 1)
    record.left("a-b1", 1)
    assert (record.worlds["a-b1"].generation, record.worlds["a-b1"].state) == (2, "active")
    record.left("a-b1", 2)
    assert record.worlds["a-b1"].state == "left"


def test_recovery_ends_with_the_first_answer_of_the_replacement() -> None:
    record = a_record()
    fault = inject(record)
    assert fault.recovery_s is None
    for at in (10.5, 10.6):
        record.answered(7, 3, 16, replayed=at > 10.5, at=at)
    fault.full_strength_at = record.first_answer[3]
    assert fault.recovery_s == pytest.approx(0.5)
    assert record.deliveries[7] == 2
    assert record.num_replayed == 1


def test_throughput_counts_the_images_of_its_periods_only() -> None:
    record = Record()
    for second in range(10):
        record.answered(second, 0, 10, replayed=False, at=second)
    assert record.images_per_second([(0, 10)]) == 10
    assert record.images_per_second([(0, 2), (4, 6)]) == 10
    assert record.images_per_second([(0, 4), (2, 6), (3, 4)]) == 10, "none counts twice"
    assert record.images_per_second([(5, 5)]) is None
