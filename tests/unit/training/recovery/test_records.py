"""What members write into the store comes back as it was."""

from __future__ import annotations

import pytest

from multiworld.training.engine.facts import Facts
from multiworld.training.recovery.records import Announcement, Generation, LostMember, Member, Presence, TrainingOver
from multiworld.wire.messages import decode, encode

MEMBER = Member(id="a", rank=1, host="h", pid=7, replica="r")
FACTS = Facts(step=3, done=(1, 2), values={"loss": (0.5, "nan")}, newcomers=("n",), changed=(0,), unused=(4,))
ANNOUNCEMENT = Announcement(
    member=MEMBER,
    step=4,
    done=(0,),
    is_complete=True,
    facts=(FACTS,),
    lost=(LostMember(id="b", cause="PeerDiedError", detail="it ended", is_proven=False),),
    digest="model=1",
    looked_at=(),
    raised="ValueError: no",
    traceback="there",
)
GENERATION = Generation(
    number=9, members=(MEMBER,), step=4, sources=("a",), done={"a": (0,)}, looked_at=(2, 3), facts=(FACTS,)
)


@pytest.mark.parametrize(
    "record",
    [ANNOUNCEMENT, Announcement(member=MEMBER), GENERATION, Generation(number=1, members=()), FACTS, Presence(id="a")],
)
def test_records_come_back_equal(record: Announcement | Generation | Facts | Presence) -> None:
    assert decode(type(record), encode(record)) == record


def test_the_end_of_a_training_comes_back() -> None:
    over = TrainingOver(step=100, generation=3)
    assert decode(TrainingOver, encode(over)) == over


def test_no_buffers_and_all_buffers_are_told_apart() -> None:
    none = decode(Generation, encode(Generation(number=1, members=(), looked_at=())))
    every = decode(Generation, encode(Generation(number=1, members=())))
    assert (none.looked_at, every.looked_at) == ((), None)


def test_a_member_knows_its_place() -> None:
    assert (GENERATION.place_of("a"), GENERATION.place_of("z")) == (0, -1)
