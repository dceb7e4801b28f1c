"""Each broken world finds its fault, or counts as broken without reason."""

from __future__ import annotations

import pytest

from multiworld.demo.record import Fault, Record, tell
from multiworld.serving.control.fleet.actions import (
    EdgeBroken,
    EdgeLost,
    EdgeOpened,
    FleetEvent,
    HostLost,
    ProcessEnded,
    ReplicaLeft,
    ReplicaLost,
    ReplicaReady,
)

WANTED = {"a": 1, "b": 2, "c": 1}
PIDS = {"a-1": 11, "b-1": 21, "b-2": 22, "b-3": 23, "b-4": 24, "c-1": 31, "c-2": 32}
EDGES = (
    ("gateway-1", "a-1"),
    ("a-1", "b-1"),
    ("a-1", "b-2"),
    ("b-1", "c-1"),
    ("b-2", "c-1"),
    ("c-1", "gateway-1"),
)


def ready(record: Record, member: str) -> None:
    event = ReplicaReady(member=member, stage=member[0], version=1, took_s=0.3)
    record.ready(event, PIDS[member])


def through(record: Record, *members: str, at: float) -> list[Fault]:
    """An answer of sixteen images came, which had gone through these."""
    return record.answered([PIDS[member] for member in members], 16, at=at)


def edge_lost(member: str, peer: str, error: str = "PeerDiedError") -> EdgeLost:
    upstream, downstream = sorted((member, peer))
    return EdgeLost(upstream=upstream, downstream=downstream, member=member, error=error, text="gone")


def lost(member: str, why: str = "PeerDiedError: it died. Others go on.") -> ReplicaLost:
    return ReplicaLost(member=member, stage=member[0], why=why)


def a_record() -> Record:
    record = Record(WANTED)
    for member in ("a-1", "b-1", "b-2", "c-1"):
        ready(record, member)
    for epoch, (upstream, downstream) in enumerate(EDGES):
        record.happened(EdgeOpened(upstream=upstream, downstream=downstream, epoch=epoch), at=1.0)
    through(record, "a-1", "b-1", "c-1", at=2.0)
    assert not record.is_whole
    through(record, "a-1", "b-2", "c-1", at=2.1)
    assert record.is_whole
    return record


def test_a_fault_is_detected_when_the_controller_and_all_neighbors_know() -> None:
    record = a_record()
    fault = record.inject("SIGKILL of b-1", "b-1", at=10.0)
    assert fault.neighbors == {"a-1", "c-1"}
    record.happened(edge_lost("a-1", "b-1"), at=10.01)
    record.happened(lost("b-1"), at=10.02)
    assert fault.detection_s is None
    record.happened(edge_lost("c-1", "b-1"), at=10.03)
    assert fault.detection_s == pytest.approx(0.03)
    assert fault.errors == {"a-1": "PeerDiedError", "c-1": "PeerDiedError"}
    assert record.broken_without_reason == []
    assert record.worlds["a-1", "b-1"] == "broken"
    assert record.worlds["a-1", "b-2"] == "active"


def test_a_stage_is_whole_again_when_as_many_as_wanted_have_answered() -> None:
    record = a_record()
    fault = record.inject("SIGKILL of b-1", "b-1", at=10.0)
    record.happened(lost("b-1"), at=10.1)
    assert through(record, "a-1", "b-2", "c-1", at=10.2) == []
    ready(record, "b-3")
    assert not record.is_whole
    assert through(record, "a-1", "b-1", "c-1", at=10.3) == [], "a late answer of the victim does not count"
    assert through(record, "a-1", "b-3", "c-1", at=10.5) == [fault]
    assert fault.recovery_s == pytest.approx(0.5)
    assert record.is_whole
    assert ("a-1", "b-1") not in record.worlds
    assert record.replicas["b-3"].num_images == 16


def test_a_replacement_that_is_lost_too_leaves_both_faults_open_until_the_stage_is_whole() -> None:
    record = a_record()
    first = record.inject("SIGKILL of b-1", "b-1", at=10.0)
    record.happened(lost("b-1"), at=10.1)
    ready(record, "b-3")
    record.happened(lost("b-3"), at=10.4)
    ready(record, "b-4")
    assert through(record, "a-1", "b-4", "c-1", at=10.8) == [first, record.faults[1]]
    assert not record.faults[1].planned


def test_a_neighbor_that_is_lost_itself_is_not_waited_for() -> None:
    record = a_record()
    fault = record.inject("SIGKILL of b-1", "b-1", at=10.0)
    record.happened(lost("b-1"), at=10.01)
    record.happened(edge_lost("a-1", "b-1"), at=10.02)
    record.happened(lost("c-1"), at=10.3)
    assert fault.detection_s == pytest.approx(0.02)


def test_a_world_between_two_that_live_on_broke_without_reason() -> None:
    record = a_record()
    record.inject("SIGKILL of b-1", "b-1", at=10.0)
    record.happened(edge_lost("a-1", "b-2"), at=10.1)
    record.happened(edge_lost("c-1", "b-1"), at=10.1)
    record.happened(EdgeBroken(upstream="a-1", downstream="b-2", attempts=1, error="PeerDiedError: gone"), at=10.1)
    assert record.broken_without_reason == ["a-1: world a-1 → b-2: PeerDiedError"]


def test_a_fault_that_nobody_planned_is_the_reason_from_when_it_was_first_heard_of() -> None:
    record = a_record()
    record.happened(edge_lost("a-1", "b-1"), at=10.01)
    assert record.broken_without_reason, "so far"
    record.happened(lost("b-1"), at=10.05)
    record.happened(edge_lost("c-1", "b-1"), at=10.07)
    (fault,) = record.faults
    assert (fault.name, fault.planned, fault.at) == ("loss of b-1 (pid 21)", False, 10.01)
    assert fault.detection_s == pytest.approx(0.06)
    assert record.broken_without_reason == []
    assert not record.is_whole


def test_a_frozen_replica_is_fenced_when_its_process_has_ended() -> None:
    record = a_record()
    fault = record.inject("SIGSTOP of b-1", "b-1", freezes=True, at=10.0)
    record.happened(lost("b-1"), at=12.0)
    assert not fault.fenced_by
    ended = ProcessEnded(member="b-1", stage="b", returncode=-9, last_lines="")
    record.happened(ended, at=12.1)
    assert record.faults[0].fenced_by == "SIGKILL"
    assert tell(ended, record, at=12.1) == "b-1 will not go on: it was fenced off by SIGKILL"


def test_a_lost_host_process_is_a_crash_unless_all_is_taken_down() -> None:
    record = Record(WANTED)
    record.happened(HostLost(host="here"), at=1.0)
    assert record.crash == "the host process on here was lost: its replicas ended with it, for good"
    record = Record(WANTED)
    record.closing()
    record.happened(HostLost(host="here"), at=1.0)
    assert record.crash == ""


def test_a_replica_that_ends_with_an_error_of_its_own_is_a_crash() -> None:
    record = a_record()
    record.happened(ProcessEnded(member="b-1", stage="b", returncode=1, last_lines="ValueError: no"), at=10.0)
    assert record.crash == "replica b-1 ended with status 1\nValueError: no"


def test_what_ends_while_the_pipeline_is_taken_down_is_no_fault() -> None:
    record = a_record()
    record.closing()
    record.happened(lost("b-1"), at=20.0)
    record.happened(edge_lost("a-1", "b-1"), at=20.0)
    assert record.faults == []
    assert record.broken_without_reason == []


@pytest.mark.parametrize("is_down", [False, True], ids=["load ended", "taken down"])
def test_a_loss_that_is_heard_of_after_the_load_is_no_fault_and_is_the_reason_for_what_broke_before(
    is_down: bool,
) -> None:
    record = a_record()
    record.happened(edge_lost("a-1", "b-1"), at=19.9)
    record.load_ended()
    assert record.broken_without_reason
    if is_down:
        record.closing()
    record.happened(lost("b-1"), at=20.0)
    assert record.faults == []
    assert record.broken_without_reason == []


def test_who_had_to_be_killed_when_all_was_taken_down_was_not_there_before() -> None:
    record = a_record()
    record.happened(edge_lost("a-1", "b-1"), at=19.9)
    record.closing()
    record.happened(ProcessEnded(member="b-2", stage="b", returncode=0, last_lines=""), at=21.0)
    assert record.broken_without_reason
    record.happened(ProcessEnded(member="b-1", stage="b", returncode=-9, last_lines=""), at=25.0)
    assert record.broken_without_reason == []


def test_a_replica_that_left_takes_its_worlds_with_it() -> None:
    record = a_record()
    record.happened(ReplicaLeft(member="b-1", stage="b"), at=10.0)
    assert not any("b-1" in world for world in record.worlds)
    assert "b-1" not in record.replicas


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (edge_lost("a-1", "b-1"), "a-1: world a-1 → b-1 broke after 0.500 s: PeerDiedError"),
        (edge_lost("a-1", "b-2"), ""),
        (lost("b-1"), "controller: b-1 is given up after 0.500 s"),
        (lost("b-2"), "loss of b-2 (pid 22), not by this demo: PeerDiedError"),
        (ReplicaReady(member="b-3", stage="b", version=1, took_s=0.25), "b-3 takes over, 0.250 s after it was ordered"),
        (EdgeOpened(upstream="a-1", downstream="b-3", epoch=9), ""),
    ],
)
def test_events_are_told_in_one_line_or_not_at_all(event: FleetEvent, text: str) -> None:
    record = a_record()
    record.inject("SIGKILL of b-1", "b-1", at=10.0)
    record.happened(event, at=10.5)
    assert tell(event, record, at=10.5) == text


def test_throughput_counts_the_images_of_its_periods_only() -> None:
    record = Record(WANTED)
    for second in range(10):
        record.answered([], 10, at=second)
    assert record.images_per_second([(0, 10)]) == 10
    assert record.images_per_second([(0, 2), (4, 6)]) == 10
    assert record.images_per_second([(0, 4), (2, 6), (3, 4)]) == 10, "none counts twice"
    assert record.images_per_second([(5, 5)]) is None
