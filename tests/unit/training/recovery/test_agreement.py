"""Who goes on after a loss, with which step, and what of it is still to be done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from multiworld.training.engine.facts import Facts
from multiworld.training.recovery.agreement import ANNOUNCED_LATE_S, Rules, Situation, Wait, agree, differences
from multiworld.training.recovery.records import Announcement, Generation, LostMember, Member

A, B, C, NEW = (Member(id=name, rank=rank, host="here") for rank, name in enumerate("abcn"))
CURRENT = Generation(number=4, members=(A, B, C), step=7, sources=("a", "b", "c"))
FACTS = (Facts(step=7, done=(0, 1)), Facts(step=7, done=(2,)))


def says(member: Member, **fields: Any) -> Announcement:
    return Announcement(member=member, **{"step": 7, **fields})


def loses(member: Member, *lost: Member, proven: bool = True, **fields: Any) -> Announcement:
    gone = tuple(LostMember(id=each.id, cause="PeerDiedError", is_proven=proven) for each in lost)
    return says(member, lost=gone, **fields)


def seen(*said: Announcement, current: Generation | None = CURRENT, here: str = "", **fields: Any) -> Situation:
    present = here or "".join(each.member.id for each in said)
    return Situation(current=current, here=frozenset(present), said={each.member.id: each for each in said}, **fields)


def chosen(situation: Situation, rules: Rules | None = None) -> Generation:
    outcome = agree(situation, rules or Rules())
    assert isinstance(outcome, Generation), outcome
    return outcome


def waits(situation: Situation, rules: Rules | None = None) -> Wait:
    outcome = agree(situation, rules or Rules())
    assert isinstance(outcome, Wait), outcome
    return outcome


def test_survivors_go_on_with_what_each_has_done() -> None:
    generation = chosen(seen(loses(A, C, done=(0, 1)), loses(B, C, done=(2,))))
    assert (generation.number, generation.members, generation.step) == (5, (A, B), 7)
    assert generation.done == {"a": (0, 1), "b": (2,)}
    assert (generation.sources, generation.stateless, generation.facts) == (("a", "b"), (), ())


def test_a_member_that_lives_is_waited_for() -> None:
    assert waits(seen(loses(A, C), here="ab")).reason == "1 members have not announced themselves: ranks 1"


def test_one_that_has_ended_before_it_said_anything_is_not_waited_for() -> None:
    assert chosen(seen(loses(A, C))).members == (A,)


def test_one_that_is_silent_is_out_whether_it_has_said_something_or_not() -> None:
    silent = frozenset("b")
    assert chosen(seen(loses(A, C), here="ab", silent=silent)).members == (A,)
    assert chosen(seen(loses(A, C), loses(B, A, C), silent=silent)).members == (A,)


def test_a_member_that_counted_the_step_has_the_others_count_it_too() -> None:
    ahead = loses(A, C, step=8, facts=FACTS, done=(3,), looked_at=(1,))
    generation = chosen(seen(ahead, loses(B, C, done=(2,), is_complete=True)))
    assert (generation.step, generation.facts, generation.done) == (8, FACTS, {"a": (3,)})
    assert (generation.sources, generation.stateless, generation.looked_at) == (("a",), (), (1,))


def test_facts_of_another_step_are_none() -> None:
    generation = chosen(seen(loses(A, C, step=9, facts=FACTS), loses(B, C, step=8, is_complete=True)))
    assert (generation.facts, generation.stateless) == ((), ("b",))


def test_who_is_further_behind_gets_the_state_anew() -> None:
    generation = chosen(seen(loses(A, C, step=8, facts=FACTS), loses(B, C, done=(2,))))
    assert (generation.sources, generation.stateless) == (("a",), ("b",))


def test_of_two_that_have_lost_each_other_the_first_stays() -> None:
    assert chosen(seen(loses(A, B, C), loses(B, A, C))).members == (A,)


def test_of_two_that_have_lost_each_other_the_one_that_is_ahead_stays() -> None:
    assert chosen(seen(loses(A, B, C), loses(B, A, C, step=8, facts=FACTS))).members == (B,)
    assert chosen(seen(loses(A, B, C, has_state=False), loses(B, A, C))).members == (B,)


def test_what_a_lost_member_says_of_others_does_not_count() -> None:
    assert chosen(seen(loses(A, C), says(B), loses(C, B))).members == (A, B)


def test_newcomers_come_after_the_others_and_get_the_state_from_them() -> None:
    generation = chosen(seen(loses(A, C), loses(B, C), says(NEW, step=0, has_state=False)))
    assert (generation.members, generation.stateless) == ((A, B, NEW), ("n",))


def test_a_newcomer_with_the_rank_of_a_member_gets_a_free_one() -> None:
    """The launcher has numbered the hosts anew after one was cut off, which then comes back."""
    current = Generation(number=4, members=(B, C), step=7)
    again = Member(id="d", rank=C.rank, host="far")
    generation = chosen(seen(says(B), says(C), says(again, has_state=False), current=current))
    assert [(each.id, each.rank) for each in generation.members] == [("b", 1), ("c", 2), ("d", 0)]


def test_a_member_whose_program_raised_is_no_member_any_more() -> None:
    """Its record stays in the store, also for those who are started again."""
    raised = says(A, raised="ValueError: bad")
    generation = chosen(seen(raised, says(NEW, step=0, has_state=False), here="n"))
    assert (generation.members, generation.is_restart) == ((NEW,), True)


def test_too_few_wait_for_others_unless_the_training_is_over() -> None:
    two = Rules(min_members=2)
    assert waits(seen(loses(A, B, C)), two).missing == 1
    assert chosen(seen(loses(A, B, C, is_over=True)), two).members == (A,)


def test_all_begin_together_in_the_order_of_their_ranks() -> None:
    said = [says(each, step=0, has_state=False) for each in (C, A, B)]
    generation = chosen(seen(*said, current=None), Rules(expected=3))
    assert (generation.number, generation.members, generation.is_restart) == (1, (A, B, C), True)
    assert (generation.sources, generation.stateless) == (("a",), ("b", "c"))


def test_the_first_generation_waits_for_all_but_not_for_ever() -> None:
    said = [says(A, step=0, has_state=False)]
    waits(seen(*said, current=None, waited_s=9.0), Rules(expected=3, gather_s=10.0))
    assert chosen(seen(*said, current=None, waited_s=11.0), Rules(expected=3, gather_s=10.0)).members == (A,)


def test_all_begin_with_the_newest_checkpoint_that_one_of_them_can_read() -> None:
    said = [says(A, has_state=False, saved_step=20), says(B, has_state=False, saved_step=40)]
    assert chosen(seen(*said, current=None)).sources == ("b",)


def test_new_members_begin_anew_where_all_old_ones_have_ended() -> None:
    generation = chosen(seen(says(NEW, step=0, has_state=False)))
    assert (generation.number, generation.is_restart, generation.members) == (5, True, (NEW,))


def test_new_members_do_not_begin_anew_while_an_old_one_is_there() -> None:
    waits(seen(says(NEW, step=0, has_state=False), here="nb", waited_s=1000.0))


def test_members_of_a_restored_generation_may_come_late_to_a_new_store() -> None:
    current = replace(CURRENT, was_restored=True)
    assert "ranks 1, 2" in waits(seen(says(A), current=current)).reason
    assert chosen(seen(says(A), current=current, waited_s=ANNOUNCED_LATE_S + 0.1)).members == (A,)


def far(number: int) -> tuple[Generation, list[Member]]:
    members = [Member(id=name, rank=rank, host=f"host{rank}") for rank, name in enumerate("abcdef"[:number])]
    return Generation(number=1, members=tuple(members), step=7), members


def test_without_a_launcher_the_larger_side_of_a_partition_goes_on() -> None:
    current, (a, b, c) = far(3)
    assert chosen(seen(loses(a, c, proven=False), loses(b, c, proven=False), current=current)).members == (a, b)
    waiting = waits(seen(loses(c, a, b, proven=False), current=current))
    assert "no majority" in waiting.reason
    assert (waiting.missing, waiting.needed) == (1, 2)


def test_of_equal_sides_the_one_with_the_first_member_goes_on() -> None:
    current, (a, b) = far(2)
    assert chosen(seen(loses(a, b, proven=False), current=current)).members == (a,)
    waits(seen(loses(b, a, proven=False), current=current))


def test_a_death_that_is_proven_asks_for_no_majority() -> None:
    current, (a, _, c) = far(3)
    assert chosen(seen(loses(c, *current.members[:2], proven=True), current=current)).members == (c,)
    assert a not in chosen(seen(loses(c, *current.members[:2], proven=True), current=current)).members


def test_the_launcher_confirms_which_side_goes_on() -> None:
    current, (a, b, c) = far(3)
    alone = loses(c, a, b, proven=False)
    assert "not confirmed" in waits(seen(alone, current=current, is_confirmed=False)).reason
    assert chosen(seen(alone, current=current, is_confirmed=True)).members == (c,)


def test_the_launcher_says_which_hosts_are_out_and_all_that_are_doubted_must_be_among_them() -> None:
    current, (a, b, c) = far(3)
    alone = loses(c, a, b, proven=False)
    waits(seen(alone, current=current, is_confirmed=False, hosts_out=frozenset({a.host})))
    both = frozenset({a.host, b.host})
    assert chosen(seen(alone, current=current, is_confirmed=False, hosts_out=both)).members == (c,)
    stateless = loses(c, a, b, proven=False, has_state=False)
    assert chosen(seen(stateless, current=current, is_confirmed=False, hosts_out=both)).is_restart


def test_one_that_waits_in_the_same_store_is_not_doubted() -> None:
    current, (a, b, c) = far(3)
    said = [says(a), loses(b, a, proven=False, step=8, facts=FACTS), says(c)]
    assert chosen(seen(*said, current=current, is_confirmed=False)).members == (b, c)


def test_members_without_the_state_do_not_begin_anew_while_one_with_it_may_go_on_elsewhere() -> None:
    current, (a, b) = far(2)
    current = replace(current, stateless=("b",))
    alone = loses(b, a, proven=False, has_state=False)
    waits(seen(alone, current=current))
    waits(seen(alone, current=current, is_confirmed=False))
    assert chosen(seen(alone, current=current, is_confirmed=True)).is_restart


def test_differences_of_settings_are_named() -> None:
    assert differences("the model=1;the data=2", "the model=1;the data=3") == ["the data"]
    assert differences("", "the model=1") == []


def test_all_begin_again_if_a_layer_is_left_with_nobody() -> None:
    mine: dict[str, Any] = {"num_layers": 3, "saved_step": 2}
    whole = chosen(seen(loses(A, C, layers=(0, 1), **mine), loses(B, C, layers=(1, 2), **mine)))
    assert (whole.is_restart, whole.layers) == (False, {"a": (0, 1), "b": (1, 2)})
    lacking = chosen(seen(loses(A, C, layers=(0, 1), **mine), loses(B, C, layers=(1,), **mine)))
    assert (lacking.is_restart, lacking.layers) == (True, {"a": (0, 1, 2)})
    assert (whole.lost_at, lacking.lost_at) == (-1, 7)


def test_those_who_come_after_a_layer_was_lost_know_of_it() -> None:
    lost = replace(CURRENT, is_restart=True, lost_at=7)
    assert chosen(seen(says(NEW, has_state=False, step=0), current=lost)).lost_at == 7
    assert chosen(seen(says(NEW, has_state=False, step=0))).lost_at == -1


def test_a_newcomer_with_the_whole_model_is_the_source_where_a_layer_is_lost() -> None:
    mine: dict[str, Any] = {"num_layers": 3, "layers": (0, 1)}
    new = says(Member(id="z", rank=9, host="h9"), has_state=False, num_layers=3, is_whole=True)
    begun = chosen(seen(loses(A, B, C, step=0, **mine), new))
    assert (begun.lost_at, begun.sources) == (0, ("z",))
    saved = chosen(seen(loses(A, B, C, saved_step=2, **mine), new))
    assert saved.sources == ("a",)


def test_before_the_first_step_one_with_the_whole_model_is_waited_for() -> None:
    mine: dict[str, Any] = {"num_layers": 3, "layers": (0, 1)}
    came_back = says(NEW, has_state=False, num_layers=3)  # as a newcomer, after it had dropped layers
    lacking = loses(A, B, C, step=0, **mine), came_back
    assert "the whole model" in waits(seen(*lacking)).reason
    assert chosen(seen(*lacking, waited_s=600.0)).is_restart
    assert chosen(seen(loses(A, B, C, **mine), came_back)).lost_at == 7  # steps are lost: waiting would not help
    assert chosen(seen(loses(A, B, C, step=0, saved_step=0, **mine), came_back)).sources == ("a",)


def parted(**fields: Any) -> Situation:
    """Of a, b and c, the last one alone has layer 2, and cannot be reached."""
    lost = (LostMember(id="c", cause=fields.pop("cause", "PeerUnreachableError"), is_proven=False),)
    current = replace(CURRENT, members=(A, B, replace(C, host="far")), layers={"a": (0, 1), "b": (0, 1), "c": (1, 2)})
    said = [
        says(each, lost=lost, layers=(0, 1), num_layers=3, saved_step=fields.get("saved_step", -1)) for each in (A, B)
    ]
    fields.pop("saved_step", None)
    return seen(*said, *fields.pop("also", ()), **{"current": current, **fields})


def test_one_that_may_come_back_with_a_layer_is_waited_for_as_long_as_members_wait_to_join() -> None:
    assert waits(parted()).reason == "nobody here has some layers, and ranks 2 may come back with them"
    assert waits(parted(waited_s=599.0)).reason == waits(parted(is_confirmed=True, waited_s=10.0)).reason
    assert chosen(parted(waited_s=600.0)).lost_at == 7
    assert chosen(parted(waited_s=20.0), Rules(return_s=20.0)).lost_at == 7


def test_one_that_may_come_back_is_not_waited_for_long_where_there_is_a_checkpoint() -> None:
    waits(parted(saved_step=3, waited_s=9.0))
    begun = chosen(parted(saved_step=3, waited_s=10.0))
    assert (begun.is_restart, begun.lost_at) == (True, 7)


def test_one_that_has_ended_with_the_only_copy_of_a_layer_is_not_waited_for() -> None:
    assert chosen(parted(cause="PeerDiedError")).lost_at == 7
    assert chosen(parted(hosts_out=frozenset({"far"}))).lost_at == 7
    assert chosen(parted(ended=frozenset("c"))).lost_at == 7
    replacement = says(Member(id="d", rank=2, host="far"), has_state=False, num_layers=3, is_whole=True)
    assert chosen(parted(also=(replacement,))).lost_at == 7


def test_one_that_is_stopped_with_the_only_copy_of_a_layer_is_waited_for() -> None:
    here = {"cause": "PeerStoppedError", "silent": frozenset("c")}
    current = replace(CURRENT, layers={"a": (0, 1), "b": (0, 1), "c": (1, 2)})
    waits(parted(here="abc", current=current, **here))
    assert chosen(parted(here="ab", current=current, **here)).lost_at == 7  # it was killed


def test_nobody_is_waited_for_who_cannot_have_what_is_lacking() -> None:
    current = replace(CURRENT, members=(A, B, replace(C, host="far")), layers={"a": (0, 1), "c": (0, 1)})
    assert chosen(parted(current=current)).lost_at == 7


def test_newcomers_do_not_begin_anew_while_all_that_have_the_layers_may_come_back() -> None:
    current = replace(CURRENT, members=(A, C), layers={"a": (0, 1), "c": (2,)})
    new = says(NEW, has_state=False, num_layers=3, is_whole=True)
    waits(seen(new, current=current, is_confirmed=True, here="nac", silent=frozenset("ac")))
    begun = chosen(seen(new, current=current, is_confirmed=True, ended=frozenset("a")))
    assert begun.is_restart


def test_one_that_others_have_lost_is_in_if_it_alone_holds_a_layer() -> None:
    """A link between two hosts was lost, or a process was stopped for a while: nobody has ended."""
    mine: dict[str, Any] = {"num_layers": 3}
    lost = says(C, layers=(2,), **mine)
    back = chosen(seen(loses(A, C, layers=(0, 1), **mine), loses(B, C, layers=(0, 1), **mine), lost))
    assert (back.is_restart, back.members, back.stateless) == (False, (A, B, C), ())
    assert back.layers == {"a": (0, 1), "b": (0, 1), "c": (2,)}
    held_twice = chosen(seen(loses(A, C, layers=(0, 1), **mine), loses(B, C, layers=(1, 2), **mine), lost))
    assert held_twice.members == (A, B)


def test_what_one_without_the_state_holds_does_not_count() -> None:
    said = seen(
        loses(A, C, layers=(0, 1), num_layers=3),
        says(B, step=5, layers=(2,), num_layers=3),
    )
    assert chosen(said).is_restart
