"""Members that are killed or stopped, at any moment: the others learn it in time, and never get wrong data."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...crew import Call
from ...deadlines import KILL_S, PENDING_S, STOP_S
from ...rounds import EXCHANGES, KINDS
from ..catalogue import ConformanceError, by_examiner

if TYPE_CHECKING:
    from ..examiner import Examiner

STORE_HOST = 0  # losing this member would stop the others from joining
WITHIN_S = 0.15
NUMELS: Mapping[str, Sequence[int]] = {"send": (1, 300_000, 2_500_000), "all_reduce": (1, 5_000, 300_000, 2_500_000)}
"""Sizes of some kinds; the others play ``USUAL_NUMELS``."""
USUAL_NUMELS = (1, 5_000, 300_000)


@by_examiner(num_members=2, num_kills=lambda effort: effort.num_kills)
def a_killed_member_breaks_its_worlds(examiner: Examiner) -> None:
    """When a member is killed, at any moment of operations of every kind, every operation of the others raises
    WorldBrokenError in time, and none returns wrong data.
    """
    for number in range(examiner.effort.num_kills):
        chance = examiner.chance("kill", number)
        members = examiner.cast(min(3, examiner.subject.num_members), chance)
        worlds = {kind: examiner.new_name(kind) for kind in (*KINDS, *EXCHANGES, "waiting")}
        for world in worlds.values():
            examiner.form(world, members)
        victim = chance.choice([member for member in members if member != STORE_HOST])
        lost = members.index(victim)
        pending = _wait_in_all_ways(examiner, worlds["waiting"], members, lost)
        plays = [
            examiner.crew[member].call("play", world=worlds[kind], kind=kind, numel=NUMELS.get(kind, USUAL_NUMELS))
            for kind in (*KINDS, *EXCHANGES)
            for member in members
        ]
        for play in plays:
            play.member.worker.await_event("playing", kind=play.fields["kind"])
        delay_s = chance.uniform(0, WITHIN_S)
        _pause(delay_s)
        dead = examiner.crew[victim]
        killed_at = examiner.kill(victim)
        what = f"a member was killed {delay_s:.4f} s after all had begun (kill {number})"
        for call in (*pending, *plays):
            if call.member is not dead:
                _check_broken(call, killed_at, what)


@by_examiner(num_members=3, num_kills=lambda _: 1)
def a_kill_disturbs_no_other_world(examiner: Examiner) -> None:
    """When a member is killed, the worlds of the others that it was not in go on."""
    chance = examiner.chance("disturb")
    victim, *others = examiner.cast(3, chance)
    if victim == STORE_HOST:
        victim, others[0] = others[0], victim
    broken, healthy = examiner.new_name("broken"), examiner.new_name("healthy")
    examiner.form(broken, [others[0], victim, others[1]])
    examiner.form(healthy, others)
    crew = examiner.crew
    lost = [crew[member].call("play", world=broken, kind="all_reduce", numel=300_000) for member in others]
    crew[victim].call("play", world=broken, kind="all_reduce", numel=300_000)
    kept = [
        crew[member].call("play", world=healthy, kind=kind, num_rounds=150, numel=(1, 5_000, 300_000))
        for kind in ("send",)
        for member in others
    ]
    for member in others:
        crew[member].worker.await_event("playing", world=healthy)
        crew[member].worker.await_event("playing", world=broken)
    killed_at = examiner.kill(victim)
    for call in lost:
        _check_broken(call, killed_at, "a member was killed")
    for call in kept:
        outcome = call.outcome(30)
        if outcome.error is not None:
            raise ConformanceError(
                f"the kill of a member of another world ended {call.fields['kind']}: {outcome.message}"
            )
    calls = [crew[member].call("collective", world=healthy, kind="all_reduce", number=7) for member in others]
    for call in calls:
        call.result()


@by_examiner(num_members=3)
def a_stopped_member_is_given_up_and_fenced(examiner: Examiner) -> None:
    """When a member is stopped, the others get WorldBrokenError after the lease, and form the world again with another;
    when it goes on, it is fenced: its operations raise, and nothing of it reaches the new generation.
    """
    size = min(3, examiner.subject.num_members - 1)
    *others, stopped, newcomer = examiner.cast(size + 1, examiner.chance("stop"))
    if stopped == STORE_HOST:
        stopped, newcomer = newcomer, stopped
    world, crew, rank = examiner.new_name("fenced"), examiner.crew, size - 1
    examiner.form(world, [*others, stopped])
    away = crew[stopped]
    pending = [crew[member].call("recv", world=world, src=rank).started() for member in others]
    pending += [crew[member].call("collective", world=world, kind="all_reduce").started() for member in others]
    late = [away.call("recv", world=world, src=0)]
    late += [away.call("send", world=world, dst=0, value=666.0, numel=2_500_000, tag=5) for _ in range(2)]
    for call in late:
        call.started()
    stopped_at = away.worker.stop()
    try:
        for call in pending:
            _check_broken(call, stopped_at, "a member was stopped", examiner.subject.lease_s + STOP_S)
        members = [*others, newcomer]
        joins = [examiner.join(world, rank, members, "join") for rank in range(size)]
        for call in joins:
            call.result(30)
    finally:
        away.worker.cont()
    receives = [crew[others[0]].call("recv", world=world, src=rank, tag=5, numel=numel) for numel in (1, 2_500_000)]
    for call in late:
        outcome = call.outcome()
        if outcome.error is None and call.name == "send":
            continue  # before it was stopped
        _check_family(call, outcome.error, outcome.bases, "it was stopped and goes on")
    again = away.call("send", world=world, dst=0, value=666.0, tag=5).outcome()
    _check_family(late[0], again.error, again.bases, "it was stopped and goes on")
    for value, numel in ((5.0, 1), (6.0, 2_500_000)):
        crew[newcomer].do("send", world=world, dst=0, value=value, numel=numel, tag=5)
    for value, call in zip((5.0, 6.0), receives, strict=True):
        found = call.result()
        if found != [value, value]:
            raise ConformanceError(f"a recv of the new generation got {found}, where {value} was sent in it")


@by_examiner(num_members=3, num_kills=lambda _: 1)
def a_kill_while_a_world_forms_costs_only_time(examiner: Examiner) -> None:
    """When a member is killed while a world is formed, the others form it with its replacement."""
    chance = examiner.chance("forming")
    *members, victim = STORE_HOST, *chance.sample(range(1, examiner.subject.num_members), 2)
    world, members = examiner.new_name("forming"), [*members, victim]
    joins = [examiner.join(world, rank, members, "join_until_it_works") for rank in (0, 1)]
    examiner.join(world, 2, members, "join")
    delay_s = chance.uniform(0, 0.02)
    _pause(delay_s)
    examiner.kill(victim)
    joins.append(examiner.join(world, 2, members, "join_until_it_works"))
    for call in joins:
        outcome = call.outcome(40)
        if outcome.error is not None:
            text = f"a member was killed {delay_s:.4f} s after all were told to join, and {call.member.worker.name}"
            raise ConformanceError(f"{text} could not join with its replacement: {outcome.error}: {outcome.message}")


def _wait_in_all_ways(examiner: Examiner, world: str, members: Sequence[int], lost: int) -> list[Call]:
    """Let the others wait: for the one that will be lost, in a barrier, and in a large send to it."""
    calls = []
    for rank, member in enumerate(members):
        if rank != lost:
            crew = examiner.crew
            calls.append(crew[member].call("recv", world=world, src=lost))
            calls.append(crew[member].call("recv", world=world, src=lost, numel=2_500_000, tag=1))
            calls.append(crew[member].call("collective", world=world, kind="barrier"))
            living = next(
                other for other in range(len(members)) if other != rank and (other != lost or len(members) == 2)
            )
            calls.append(crew[member].call("recv", world=world, src=living, tag=2))
    for call in calls:
        call.started()
    return calls


def _check_broken(call: Call, since: float, what: str, bound_s: float = KILL_S) -> None:
    name = f"{call.fields.get('kind', call.name)} of {call.member.worker.name}"
    outcome = call.outcome(bound_s + 10.0)
    if outcome.error == "WrongResultError":
        raise ConformanceError(f"{what}, and {name} succeeded with wrong data: {outcome.message}")
    _check_family(call, outcome.error, outcome.bases, what)
    took_s = outcome.at - since
    if took_s > bound_s + PENDING_S:
        raise ConformanceError(
            f"{what}, and {name} raised only {took_s:.3f} s later, not within {bound_s + PENDING_S:g} s"
        )


def _check_family(call: Call, error: str | None, bases: Iterable[str], what: str) -> None:
    if "WorldBrokenError" not in bases:
        name = f"{call.fields.get('kind', call.name)} of {call.member.worker.name}"
        ended = "succeeded" if error is None else f"raised {error}"
        raise ConformanceError(f"{what}, and {name} {ended} instead of raising WorldBrokenError")


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)
