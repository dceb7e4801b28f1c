"""What is published of losses, recoveries and memberships, and by whom."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

from multiworld.errors import PeerDiedError, PeerLeftError, WorldBrokenError
from multiworld.training.events import MemberLost, MembershipChanged, PipelinesChanged, RecoveryPhase, TrainingEvent
from multiworld.training.pipeline.assignment import AssignedPipeline, Assignment, LayerMove
from multiworld.training.publishing import Publisher
from multiworld.training.recovery.records import Generation, LostMember, Member
from multiworld.training.recovery.team import Team
from multiworld.training.recovery_events import RecoveryEvents

A, B, C = (Member(id=name, rank=rank, host="h") for rank, name in enumerate("abc"))


@dataclass
class FakeTeam:
    """``place``: that of the member that broke the world."""

    generation: Generation = field(default_factory=lambda: Generation(number=4, members=(A, C, B)))
    member: Member = A
    broke_at: float | None = None
    place: int = 1
    lost: tuple[LostMember, ...] = ()

    def place_of(self, error: WorldBrokenError) -> int:
        return self.place


def events_of(team: FakeTeam) -> tuple[RecoveryEvents, list[TrainingEvent]]:
    seen: list[TrainingEvent] = []
    publisher = Publisher("gpt", team, seen.append)
    return RecoveryEvents(publisher, cast(Team, team), lease_s=2.0), seen


def test_a_loss_names_the_launchers_rank_of_the_member() -> None:
    events, seen = events_of(FakeTeam())
    events.recovery_began(7, PeerDiedError("gpt.4", 4, 1, "its socket closed"))
    lost, detected = seen
    assert isinstance(lost, MemberLost)
    assert (lost.lost_rank, lost.step, lost.cause, lost.detail) == (2, 7, "PeerDiedError", "its socket closed")
    assert (lost.job, lost.member, lost.rank, lost.generation) == ("gpt", "a", 0, 4)
    assert isinstance(detected, RecoveryPhase)
    assert detected.name == "detect"


def test_a_loss_outside_of_the_worlds_of_the_training_names_no_rank() -> None:
    events, seen = events_of(FakeTeam(place=-1))
    events.recovery_began(7, PeerDiedError("another", 4, 1, "its socket closed"))
    assert isinstance(seen[0], MemberLost)
    assert seen[0].lost_rank == -1


def test_a_member_whose_program_gave_up_is_lost_when_the_others_go_on_without_it() -> None:
    events, seen = events_of(FakeTeam())
    events.recovery_began(7, WorldBrokenError("gpt.4", 4, 1, "the rank aborted it"))
    (detected,) = seen
    assert isinstance(detected, RecoveryPhase)
    events.generation_began(Generation(number=4, members=(A, C, B)), Generation(number=5, members=(A, B)), 7)
    lost, changed = seen[1:]
    assert isinstance(lost, MemberLost)
    assert (lost.lost_rank, lost.cause) == (2, "ProgramError")
    assert lost.detail == "its program ended the training with an error"
    assert isinstance(changed, MembershipChanged)
    assert changed.gone == (2,)


def test_a_member_that_gave_a_world_up_and_goes_on_is_not_lost() -> None:
    events, seen = events_of(FakeTeam())
    events.recovery_began(7, WorldBrokenError("gpt.4", 4, 1, "the rank aborted it"))
    events.generation_began(Generation(number=4, members=(A, C, B)), Generation(number=5, members=(A, C)), 7)
    assert not any(isinstance(each, MemberLost) for each in seen)


def test_those_who_are_lost_while_the_others_agree_are_told_once() -> None:
    team = FakeTeam()
    events, seen = events_of(team)
    events.recovery_began(7, PeerDiedError("gpt.4", 4, 1, "its socket closed"))
    team.lost = tuple(
        LostMember(id=name, cause=cause, detail="gone")
        for name, cause in [("c", "PeerDiedError"), ("b", "PeerUnreachableError"), ("a", "PeerLeftError")]
    )
    for _ in range(2):
        events.recovery_phase("agree", 7, 0.1)
    told = [(each.lost_rank, each.cause) for each in seen if isinstance(each, MemberLost)]
    assert told == [(2, "PeerDiedError"), (1, "PeerUnreachableError")]


def test_neither_an_admission_nor_a_member_that_left_is_a_loss() -> None:
    events, seen = events_of(FakeTeam())
    events.recovery_began(7, None)
    events.recovery_began(7, PeerLeftError("gpt.4", 4, 1, "it left"))
    assert not seen


def test_a_new_generation_says_who_came_and_who_is_gone() -> None:
    events, seen = events_of(FakeTeam())
    events.generation_began(Generation(number=3, members=(A, B)), Generation(number=4, members=(A, C)), 9)
    (changed,) = seen
    assert isinstance(changed, MembershipChanged)
    assert (changed.ranks, changed.came, changed.gone, changed.step) == ((0, 2), (2,), (1,), 9)


def test_of_the_first_generation_that_a_newcomer_sees_only_those_without_state_came() -> None:
    events, seen = events_of(FakeTeam())
    events.generation_began(None, Generation(number=4, members=(A, B, C), stateless=("c",)), 9)
    assert isinstance(seen[0], MembershipChanged)
    assert seen[0].came == (2,)
    events.generation_began(None, Generation(number=1, members=(A, B), is_restart=True), 0)
    assert isinstance(seen[1], MembershipChanged)
    assert seen[1].came == (0, 1)


def test_a_member_with_another_rank_than_before_has_not_come_nor_gone() -> None:
    events, seen = events_of(FakeTeam())
    before = Generation(number=4, members=(A, B))
    events.generation_began(before, Generation(number=5, members=(A, replace(B, rank=7))), 3)
    changed = seen[-1]
    assert isinstance(changed, MembershipChanged)
    assert (changed.ranks, changed.came, changed.gone) == ((0, 7), (), ())


def test_listeners_hear_each_event_in_their_order() -> None:
    heard: list[str] = []
    publisher = Publisher("gpt", FakeTeam(), lambda event: heard.append("first"))
    publisher.listen(lambda event: heard.append("second"))
    publisher.publish(RecoveryPhase, name="agree", step=1, took_s=0.1)
    assert heard == ["first", "second"]


def test_pipelines_are_told_just_before_the_membership() -> None:
    events, seen = events_of(FakeTeam())
    formed = AssignedPipeline(members=("b", "a"), starts=(0, 3), num_micro_batches=5, max_in_flight=(2, 1))
    move = LayerMove(first=1, end=3, source="a", destination="b")
    assignment = Assignment(num_layers=6, pipelines=(formed,), moves=(move,), policy="merge", iteration_s=0.2)
    events.generation_began(None, Generation(number=5, members=(A, B), assignment=assignment), 7)
    changed, membership = seen

    assert isinstance(changed, PipelinesChanged)
    assert [each.ranks for each in changed.pipelines] == [(1, 0)]
    assert (changed.step, changed.num_layers, changed.num_moved) == (7, 6, 2)
    assert (changed.policy, changed.iteration_s) == ("merge", 0.2)
    assert isinstance(membership, MembershipChanged)
