"""Decide who goes on together after a loss, with which step, and what of it is still to be done. Pure.

Every member writes an ``Announcement``. As soon as nobody is missing, one member proposes the next ``Generation``; the
store lets one proposal win. The rules:

- A step counts if one member has heard all facts of it: then all members had complete gradients, so all can apply them.
  Otherwise only the micro-batches that are not finished on any survivor are dealt again.
- A member that others have lost is out. If two have lost each other, the one that is ahead stays: with the state before
  without, the later step before the earlier one; of equals, the one that stands first.
- A replica of several processes is in as a whole, or out.
- All begin again only if nobody with the state is left, nor may go on elsewhere. Where members hold layers of the
  model, they do so as well if a layer is left with nobody. But before that, members that others have lost are taken in
  again, if they are here: they would begin again with the others, too. Those that are away and may come back with that
  layer are waited for: for as long as a member waits to join, or until others may have come if there is a checkpoint.
- A loss that is not proven, a host that cannot be reached, may mean that the others go on elsewhere. Then the launcher
  must have confirmed that this side goes on, or this side has more than half of the members (of exactly half: those
  with the first member).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..copies.plan import choose
from ..pipeline.partial_step import NOTHING
from ..replica.layout import lost_with, whole_replicas
from .ranks import told_apart
from .records import Announcement, Generation, LostMember, Member

ANNOUNCED_LATE_S = 3.0
"""A member that is not in a new store after this time is gone."""

ENDED = ("PeerDiedError", "PeerLeftError")
"""Why a member was lost that does not come back with what it had."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """``expected``: how many members the launcher starts. ``gather_s``: how long a first generation waits for them.

    ``replica_size``: how many processes a replica has; only whole replicas are members. ``return_s``: how long members
    are waited for that may come back with layers which nobody else has.
    """

    min_members: int = 1
    expected: int | None = None
    gather_s: float = 10.0
    replica_size: int = 1
    return_s: float = 600.0


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What one member sees in the store, and knows. ``here``: ids of those whose presence stands.

    ``silent``: ids of members of ``current`` that are present, are in no world, and do not beat. A member that is
    not in ``current`` cannot tell. ``waited_s``: since this member began to look into this store. ``is_confirmed``: the
    launcher has confirmed that this side goes on; None: there is no launcher. ``hosts_out``: the launcher says that
    nothing can go on there. ``ended``: ids of those whose presence was taken back at once, and not after a silence.
    """

    current: Generation | None
    here: frozenset[str]
    said: Mapping[str, Announcement]
    silent: frozenset[str] = frozenset()
    waited_s: float = 0.0
    is_confirmed: bool | None = None
    hosts_out: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Wait:
    """Not yet. ``reason``: a clause for people. ``missing``: how many of ``needed`` members, if there are too few."""

    reason: str
    missing: int = 0
    needed: int = 0


def agree(situation: Situation, rules: Rules) -> Wait | Generation:
    """Return who goes on, or what is waited for."""
    outcome = _agreed(situation, rules)
    if isinstance(outcome, Wait):
        return outcome
    known = () if situation.current is None else [each.id for each in situation.current.members]
    return replace(outcome, members=told_apart(outcome.members, known, rules.replica_size))


def _agreed(situation: Situation, rules: Rules) -> Wait | Generation:
    current = situation.current
    if current is None:
        return _first(situation, rules, 1)
    lost = _lost(situation)
    waiting = _still_to_come(situation, lost)
    gone = {*lost, *(each.id for each in current.members if not _goes_on(each, situation) and each not in waiting)}
    broken = lost_with(gone, current.members)
    waiting = [each for each in waiting if each.id not in broken]
    if waiting:
        return Wait(f"{len(waiting)} members have not announced themselves: ranks {_ranks(waiting)}")
    survivors = [each for each in current.members if each.id not in broken]
    able = [each for each in survivors if situation.said[each.id].has_state]
    refusal = _refusal(situation, current, survivors, lost)
    if refusal is not None and (able or _may_be_trained_elsewhere(situation, current, survivors, lost)):
        return refusal
    if not able:  # and where a layer was lost, those who come later must not begin anew either
        away = _wait_for_layers(situation, rules, lost, frozenset(), "nobody here has the state")
        return away or _first(situation, rules, current.number + 1, lost_at=current.lost_at)
    newcomers = whole_replicas(_newcomers(situation, current), rules.replica_size)
    members = [*survivors, *newcomers]
    following = _next(situation, current.number + 1, members)
    if not _is_whole(situation, following):
        here = [each for each in current.members if _goes_on(each, situation)]
        following = _next(situation, current.number + 1, [*here, *newcomers])
        if not _is_whole(situation, following):
            held = frozenset(layer for layers in following.layers.values() for layer in layers)
            away = _wait_for_layers(situation, rules, lost, held, "nobody here has some layers")
            begun = away or _first(situation, rules, current.number + 1, lost_at=following.step)
            return begun if isinstance(begun, Wait) else _in_order_of(begun, following)
        members = list(following.members)
    is_over = any(situation.said[each.id].is_over for each in able)  # there is nothing to wait for others for
    if len(members) < rules.min_members and not is_over:
        return _too_few("too few members are left", len(members), rules.min_members)
    return following


def _is_whole(situation: Situation, generation: Generation) -> bool:
    """Whether every layer is held by a member that goes on with its state."""
    num_layers = max(each.num_layers for each in situation.said.values())
    return len({layer for held in generation.layers.values() for layer in held}) == num_layers


def _next(situation: Situation, number: int, members: list[Member]) -> Generation:
    said = situation.said
    digest = said[members[0].id].digest
    step = max(said[each.id].step for each in members if said[each.id].has_state)
    ahead = [said[each.id] for each in members if said[each.id].has_state and said[each.id].step == step]
    facts = next((each.facts for each in ahead if each.facts and each.facts[0].step == step - 1), ())
    stateless, sources, done, partial = [], [], {}, {}
    for each in members:
        announcement = said[each.id]
        catches_up = announcement.is_complete and announcement.step == step - 1 and bool(facts)
        if not announcement.has_state or (announcement.step != step and not catches_up):
            stateless.append(each.id)
        elif announcement.step == step:
            sources.append(each.id)
            if announcement.done:
                done[each.id] = announcement.done
            if announcement.partial != NOTHING:
                partial[each.id] = announcement.partial
    return Generation(
        number=number,
        members=tuple(members),
        step=step,
        stateless=tuple(stateless),
        sources=tuple(sources),
        done=done,
        looked_at=ahead[0].looked_at,
        facts=facts,
        digest=digest,
        layers={each.id: said[each.id].layers for each in members if each.id not in stateless and said[each.id].layers},
        partial=partial,
    )


def _first(situation: Situation, rules: Rules, number: int, lost_at: int = -1) -> Wait | Generation:
    """Nobody has a state: all begin together, in the order of their ranks. ``lost_at``: as in ``Generation``."""
    members = sorted((each.member for each in situation.said.values()), key=lambda each: (each.rank, each.id))
    members = [each for each in members if each.id in situation.here and _goes_on(each, situation)]
    members = whole_replicas(members, rules.replica_size)
    if len(members) < rules.min_members:
        return _too_few(
            f"{len(members)} of at least {rules.min_members} members are here", len(members), rules.min_members
        )
    if len(members) < (rules.expected or rules.min_members) and situation.waited_s < rules.gather_s:
        return Wait("the training waits for all that the launcher starts")
    said = {each.id: situation.said[each.id] for each in members}
    source = max(members, key=lambda each: (said[each.id].saved_step, said[each.id].is_whole))  # the first one
    if lost_at <= 0 and _lacks_a_beginning(said[source.id]) and situation.waited_s < rules.return_s:
        return Wait("nobody here has the whole model to begin with, so a process that is started anew is waited for")
    sources = tuple(each.id for each in members if each.unit == source.unit)
    held = {member: each.snapshots for member, each in said.items()}
    memory = choose([*said], held, rules.replica_size, said[source.id].saved_step)
    if memory is not None:
        sources = memory.sources
    stateless = tuple(each.id for each in members if each.id not in sources)
    return Generation(
        number=number,
        members=tuple(members),
        stateless=stateless,
        sources=sources,
        is_restart=True,
        memory=memory,
        digest=said[source.id].digest,
        lost_at=lost_at,
        layers=dict.fromkeys(sources, tuple(range(num_layers))) if (num_layers := said[source.id].num_layers) else {},
    )


def _in_order_of(begun: Generation, following: Generation) -> Generation:
    order = {each.id: place for place, each in enumerate(following.members)}
    return replace(begun, members=tuple(sorted(begun.members, key=lambda each: order.get(each.id, len(order)))))


def _lacks_a_beginning(source: Announcement) -> bool:
    """Whether the member that all would begin with has dropped layers before, and there is no checkpoint."""
    return source.num_layers > 0 and source.saved_step < 0 and not source.is_whole


def _wait_for_layers(
    situation: Situation, rules: Rules, lost: Mapping[str, LostMember], held: frozenset[int], why: str
) -> Wait | None:
    """Return whom to wait for before steps are given up: members that are away, may come back, and have the rest.

    ``held``: the layers that are here.
    """
    current, said = situation.current, situation.said.values()
    assert current is not None
    num_layers = max((each.num_layers for each in said), default=0)
    is_saved = any(each.saved_step >= 0 for each in said)
    if situation.waited_s >= (rules.gather_s if is_saved else rules.return_s):
        return None
    away = [each for each in current.members if not _goes_on(each, situation) and not _has_ended(each, situation, lost)]
    layers = {layer for each in away for layer in _layers_then(current, each.id)}
    if not num_layers or len(held | layers) < num_layers:
        return None
    return Wait(f"{why}, and ranks {_ranks(away)} may come back with them")


def _layers_then(current: Generation, member: str) -> tuple[int, ...]:
    """Return the layers that a member had when the present generation began, or got then."""
    assigned = () if current.assignment is None else current.assignment.layers_of(member)
    return (*current.layers.get(member, ()), *assigned)


def _has_ended(member: Member, situation: Situation, lost: Mapping[str, LostMember]) -> bool:
    """Whether what a member had is gone, as far as can be known here. Not if it is stopped, silent, or cut off."""
    assert situation.current is not None
    others = [each.member for each in situation.said.values() if each.member.id != member.id]
    newcomers = [each for each in others if situation.current.place_of(each.id) < 0]
    loss = lost.get(member.id)
    return (
        member.host in situation.hosts_out  # the agent there ends its workers
        or member.id in situation.ended
        or (loss is not None and loss.cause in ENDED)
        or any((each.rank, each.host) == (member.rank, member.host) for each in newcomers)  # its replacements
        or (member.id not in situation.here and any(each.host == member.host for each in others))
    )


def differences(mine: str, theirs: str) -> list[str]:
    """Return which parts of two digests of settings differ. A digest is ``part=hash;part=hash``."""
    one, other = (dict(part.split("=", 1) for part in each.split(";") if part) for each in (mine, theirs))
    return [part for part in one.keys() | other.keys() if one.get(part) != other.get(part)] if theirs and mine else []


def _newcomers(situation: Situation, current: Generation) -> list[Member]:
    old = {each.id for each in current.members}
    come = [each.member for each in situation.said.values() if each.member.id not in old and not each.raised]
    return sorted((each for each in come if each.id in situation.here), key=lambda each: (each.rank, each.id))


def _goes_on(member: Member, situation: Situation) -> bool:
    announcement = situation.said.get(member.id)
    return announcement is not None and not announcement.raised and member.id not in situation.silent


def _lost(situation: Situation) -> dict[str, LostMember]:
    """Return the members that are out. What such a member says of others does not count."""
    assert situation.current is not None
    lost: dict[str, LostMember] = {}
    speaking = [situation.said[each.id] for each in situation.current.members if _goes_on(each, situation)]
    for announcement in sorted(speaking, key=lambda each: (not each.has_state, -each.step)):  # stable: first stays
        if announcement.member.id in lost:
            continue
        for each in announcement.lost:
            if each.id != announcement.member.id:
                lost.setdefault(each.id, each)
    return lost


def _still_to_come(situation: Situation, lost: Mapping[str, LostMember]) -> list[Member]:
    current = situation.current
    assert current is not None
    may_be_late = current.was_restored and situation.waited_s < ANNOUNCED_LATE_S
    return [
        each
        for each in current.members
        if each.id not in lost
        and each.id not in situation.said
        and (each.id in situation.here or may_be_late)
        and each.id not in situation.silent
    ]


def _refusal(
    situation: Situation, current: Generation, survivors: list[Member], lost: Mapping[str, LostMember]
) -> Wait | None:
    """Return why these must not go on, if they might not be the only ones that do."""
    left = {each.id for each in survivors}
    doubtful = _doubtful(situation, survivors, lost)
    if not doubtful or situation.is_confirmed:
        return None
    where = f"ranks {_ranks(doubtful)} cannot be reached and may go on elsewhere"
    if situation.is_confirmed is False:
        return Wait(f"{where}; the launcher has not confirmed yet that this side goes on")
    electorate = [each for each in current.members if each.id in left or each in doubtful]
    if 2 * len(survivors) > len(electorate):
        return None
    if 2 * len(survivors) == len(electorate) and electorate[0].id in left:
        return None
    reason = f"{where}; this side has {len(survivors)} of {len(electorate)} members, which is no majority"
    return _too_few(reason, len(survivors), len(electorate) // 2 + 1)


def _too_few(reason: str, present: int, needed: int) -> Wait:
    return Wait(reason, missing=needed - present, needed=needed)


def _may_be_trained_elsewhere(
    situation: Situation, current: Generation, survivors: list[Member], lost: Mapping[str, LostMember]
) -> bool:
    """Whether a member with the state may go on without those who are here: then they must not begin anew.

    If all who are here are new and there is no launcher, they are all that was started again after a total loss.
    """
    if not survivors and situation.is_confirmed is None:
        return False
    return any(each.id not in current.stateless for each in _doubtful(situation, survivors, lost))


def _doubtful(situation: Situation, survivors: list[Member], lost: Mapping[str, LostMember]) -> list[Member]:
    """Return the members that may go on elsewhere: not those who have announced themselves here, and wait."""
    assert situation.current is not None
    left = {each.id for each in survivors}
    hosts = {each.host for each in survivors}
    away = [each for each in situation.current.members if each.id not in left and not _goes_on(each, situation)]
    return [each for each in away if each.host not in situation.hosts_out and not _is_proven(each, lost, hosts)]


def _is_proven(member: Member, lost: Mapping[str, LostMember], hosts: set[str]) -> bool:
    if member.host in hosts:  # the kernel of a host that is with us has seen its end, or tells it that it is out
        return True
    loss = lost.get(member.id)
    return loss is not None and loss.is_proven


def _ranks(members: list[Member]) -> str:
    return ", ".join(str(each.rank) for each in members)
