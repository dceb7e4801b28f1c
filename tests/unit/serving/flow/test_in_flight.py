"""Who gets what, who is suspected, and on whom a death is blamed."""

from multiworld.serving.flow.in_flight import InFlight, Loss, Refusal
from multiworld.serving.flow.routing import make_policy


def in_flight(**options: bool) -> InFlight:
    return InFlight(make_policy("shortest-queue", lambda n: 0), **options)


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


def sent(c: InFlight, now: float = 0.0) -> list[tuple[int, str]]:
    return [(int.from_bytes(id_, "little"), peer) for id_, peer in c.assign(now=now)]


def put(c: InFlight, *numbers: int, now: float = 0.0, is_suspected: bool = False) -> None:
    for number in numbers:
        c.put(key(number), 10, now=now, route=key(number), is_suspected=is_suspected)


def test_what_a_lost_replica_held_goes_to_another_one_oldest_first() -> None:
    c = in_flight()
    c.open("r-1", 4, now=0.0)
    put(c, 1, 2, 3)
    assert sent(c) == [(1, "r-1"), (2, "r-1"), (3, "r-1")]
    assert c.released("r-1", [key(2)], now=0.1) == {key(2): ()}
    assert c.down("r-1").refused == ()
    put(c, 4)
    c.open("r-2", 4, now=0.2)
    assert sent(c) == [(1, "r-2"), (3, "r-2"), (4, "r-2")]
    assert [c.was_replayed(key(number)) for number in (1, 3, 4)] == [True, True, False]


def test_a_second_death_is_blamed_on_what_was_executed_alone_and_on_nothing_beside_it() -> None:
    c = in_flight()
    c.open("r-1", 8, now=0.0)
    put(c, 1, 2, 3)
    sent(c)
    c.down("r-1")
    assert [c.marked(key(number)) for number in (1, 2, 3)] == [1, 1, 1]
    c.open("r-2", 8, now=0.0)
    sent(c)
    c.started("r-2", [key(2)])
    assert c.down("r-2").refused == (Refusal(key(2), "r-2", 2),)
    assert [c.marked(key(number)) for number in (1, 3)] == [1, 1]


def test_marked_items_that_were_never_executed_are_not_blamed_for_a_second_death() -> None:
    c = in_flight()
    for replica in ("r-1", "r-2", "r-3", "r-4"):
        c.open(replica, 8, now=0.0)
        if replica == "r-1":
            put(c, 1, 2, 3)
        sent(c)
        assert c.down(replica).refused == ()
    assert len(c) == 3


def test_what_another_sender_had_executed_is_blamed_on_nothing_of_this_one() -> None:
    c = in_flight()
    c.open("r-1", 8, now=0.0)
    put(c, 1, 2)
    sent(c)
    c.started("r-1", [key(99)])
    assert c.down("r-1").refused == ()
    assert c.marked(key(1)) == 0
    c.open("r-2", 8, now=0.0)
    sent(c)
    c.started("r-2", [key(99)])
    c.started("r-2", [])
    c.down("r-2")
    assert c.marked(key(1)) == 1


def test_an_item_that_is_put_again_keeps_its_mark() -> None:
    c = in_flight()
    c.open("r-1", 8, now=0.0)
    put(c, 1)
    sent(c)
    c.down("r-1")
    put(c, 1)
    assert c.marked(key(1)) == 1
    assert c.was_replayed(key(1))
    c.open("r-2", 8, now=0.0)
    sent(c)
    c.started("r-2", [key(1)])
    assert c.down("r-2").refused == (Refusal(key(1), "r-2", 2),)


def test_items_that_never_left_go_elsewhere_as_if_for_the_first_time() -> None:
    c = in_flight(idempotent=False)
    c.open("r-1", 8, now=0.0)
    put(c, 1, 2)
    sent(c)
    c.returned("r-1", [key(2)])
    assert c.down("r-1").refused == (Refusal(key(1), "r-1", 0),)
    c.open("r-2", 8, now=0.0)
    assert sent(c) == [(2, "r-2")]
    assert not c.was_replayed(key(2))
    assert c.marked(key(2)) == 0


def suspect_first(c: InFlight, *, others: int = 1) -> None:
    """r-1 holds item 1 and does not answer, the others do."""
    c.open("r-1", 4, now=0.0)
    put(c, 1)
    sent(c)
    for number in range(2, 2 + others):
        c.open(f"r-{number}", 4, now=0.0)
    for number in range(100, 110):
        c.put(key(number), 10, now=0.29)
        ((_, peer),) = sent(c, 0.29)
        c.released(peer, [key(number)], now=0.3)
    c.check(now=0.4)


def test_a_silent_replica_is_suspected_while_others_answer_and_its_work_is_tried_elsewhere() -> None:
    c = in_flight()
    suspect_first(c)
    assert c.suspects() == ("r-1",)
    assert sent(c, 0.4) == [(1, "r-2")]
    assert c.released("r-2", [key(1)], now=0.5) == {key(1): ("r-1",)}
    c.check(now=0.6)
    assert c.suspects() == ("r-1",), "it still owes an answer"
    assert c.released("r-1", [key(1)], now=0.7) == {}
    c.check(now=0.7)
    assert c.suspects() == ()
    assert c.statistics().replicas["r-1"]["in_flight"] == 0


def test_a_suspect_is_offered_nothing_even_while_the_others_have_no_credit() -> None:
    c = in_flight()
    suspect_first(c)
    put(c, *range(2, 9))
    assert {peer for _, peer in sent(c, 0.4)} == {"r-2"}
    assert c.statistics().replicas["r-2"]["in_flight"] == 4


def test_an_item_that_cannot_be_tried_elsewhere_any_more_holds_nothing_up() -> None:
    c = in_flight()
    suspect_first(c)
    c.down("r-2")
    put(c, 2, 3)
    assert sent(c, 0.5) == [(2, "r-1"), (3, "r-1")]
    assert c.released("r-1", [key(1)], now=0.6) == {key(1): ()}


def test_without_others_that_answer_nobody_is_suspected() -> None:
    c = in_flight()
    c.open("r-1", 4, now=0.0)
    put(c, 1)
    sent(c)
    assert not c.check(now=10.0)
    assert c.suspects() == ()


def test_replays_of_suspects_stay_within_their_budget() -> None:
    c = in_flight()
    c.open("r-1", 1000, now=0.0)
    put(c, *range(500))
    sent(c)
    c.open("r-2", 1000, now=0.0)
    for number in range(1000, 1100):
        c.put(key(number), 10, now=0.29)
        sent(c, 0.29)
        c.released("r-2", [key(number)], now=0.3)
    c.check(now=0.4)
    assert 0 < c.num_replayed <= 0.2 * 600 + 16 + 1


def test_credit_counts_bytes_too_but_one_large_item_always_goes() -> None:
    c = InFlight(make_policy("shortest-queue", lambda n: 0), max_bytes=100)
    c.open("r-1", 8, now=0.0)
    for number, size in ((1, 500), (2, 60), (3, 60)):
        c.put(key(number), size, now=0.0)
    assert sent(c) == [(1, "r-1")]
    c.released("r-1", [key(1)], now=0.1)
    assert sent(c) == [(2, "r-1")]
    c.drop(key(2))
    assert sent(c) == [], "the replica has not given its credit back"
    c.released("r-1", [key(2)], now=0.2)
    assert sent(c) == [(3, "r-1")]


def test_answers_for_a_gateway_end_with_it() -> None:
    c = in_flight()
    c.put(key(1), 1, now=0.0, target="gateway-1")
    c.put(key(2), 1, now=0.0, target="gateway-2")
    c.open("gateway-2", 4, now=0.0)
    assert sent(c) == [(2, "gateway-2")]
    assert c.down("gateway-1").ended == (key(1),)
    assert c.down("gateway-2").ended == (key(2),)
    assert len(c) == 0


def test_parts_that_lie_at_the_wrong_replica_are_misplaced_until_they_come_back() -> None:
    c = in_flight(merging=True)
    c.open("r-1", 1000, now=0.0)
    put(c, *range(20))
    assert {peer for _, peer in sent(c)} == {"r-1"}
    c.open("r-2", 1000, now=0.0)
    misplaced = c.misplaced()
    assert 0 < len(misplaced) < 20
    c.returned("r-1", [id_ for _, id_ in misplaced])
    assert {peer for _, peer in sent(c)} == {"r-2"}
    assert c.misplaced() == []
    assert not any(c.was_replayed(id_) for _, id_ in misplaced)


def test_a_replica_that_was_slow_once_is_tried_again_when_it_is_idle() -> None:
    c = in_flight()
    suspect_first(c)
    c.released("r-1", [key(1)], now=5.0)
    now = 5.0
    peers = set()
    for number in range(200, 400, 2):
        now += 0.05
        c.check(now=now)
        put(c, number, number + 1, now=now)
        for id_, peer in sent(c, now):
            peers.add(peer)
            c.released(peer, [key(id_)], now=now + 0.005)
    assert peers == {"r-1", "r-2"}


def test_what_a_replica_has_executed_stands_in_nobodys_way_and_is_kept_all_the_same() -> None:
    c = in_flight()
    for replica in ("r-1", "r-2"):
        c.open(replica, 8, now=0.0)
    put(c, 1, 2)
    assert sent(c) == [(1, "r-1"), (2, "r-2")]
    c.executed("r-1", [key(1), key(99)], now=0.005)
    c.executed("r-1", [key(1)], now=4.0)
    assert c.statistics().replicas["r-1"]["executed"] == 1
    assert c.statistics().replicas["r-1"]["latency_s"] < 0.01, "it was learned from the first word"
    put(c, 3, 4)
    assert sent(c, 4.0) == [(3, "r-1"), (4, "r-1")], "half as much is before them there as at the other one"
    learned = c.statistics().replicas["r-1"]["latency_s"]
    c.released("r-1", [key(1)], now=9.0)
    assert c.statistics().replicas["r-1"]["executed"] == 0
    assert c.statistics().replicas["r-1"]["latency_s"] == learned
    c.executed("r-1", [key(3)], now=9.0)
    c.down("r-1")
    assert sent(c, 9.0) == [(3, "r-2"), (4, "r-2")]


def test_late_answers_of_a_suspect_do_not_make_suspicion_slower() -> None:
    c = in_flight()
    suspect_first(c)
    c.released("r-1", [key(1)], now=30.0)
    c.check(now=30.0)
    for number in range(200, 204):
        c.put(key(number), 10, now=30.0)
    held = dict(sent(c, 30.0))
    assert "r-2" in held.values()
    c.open("r-3", 4, now=30.0)
    c.put(key(300), 10, now=30.2)
    sent(c, 30.2)
    c.released("r-3", [key(300)], now=30.29)
    c.check(now=30.3)
    assert "r-2" in c.suspects()


def test_answers_wait_for_a_gateway_that_may_come_back() -> None:
    c = in_flight()
    c.open("gateway-1", 2, now=0)
    for number in range(3):
        c.put(key(number), 1, now=0, target="gateway-1")
    assert sent(c) == [(0, "gateway-1"), (1, "gateway-1")]
    assert c.down("gateway-1", is_gone=False) == Loss()
    assert sent(c) == []
    c.open("gateway-1", 8, now=1)
    assert sent(c) == [(0, "gateway-1"), (1, "gateway-1"), (2, "gateway-1")]
    c.down("gateway-1", is_gone=False)
    assert set(c.down("gateway-1").ended) == {key(0), key(1), key(2)}
    assert len(c) == 0


def test_what_waits_again_after_a_loss_has_waited_since_then() -> None:
    c = in_flight()
    c.open("x", 1, now=0)
    c.open("y", 1, now=0)
    put(c, 1, 2)
    assert len(sent(c, 0)) == 2
    assert sent(c, 20) == []
    c.down("x")
    assert c.waited_s(20.5) == 0.5


def test_before_a_stage_that_refuses_what_comes_again_nothing_is_tried_elsewhere() -> None:
    for repeatable in (True, False):
        c = in_flight(repeatable=repeatable)
        suspect_first(c)
        assert bool(c.num_replayed) == repeatable


def killed_with(c: InFlight, *numbers: int) -> None:
    """r-1 is lost with these in hand; r-2 gets them."""
    c.open("r-1", 8, now=0.0)
    put(c, *numbers)
    sent(c)
    c.down("r-1")
    c.open("r-2", 8, now=0.0)
    sent(c)


def test_what_a_lost_replica_did_not_execute_is_marked_no_more() -> None:
    c = in_flight()
    killed_with(c, 1, 2, 3)
    put(c, 4)
    assert c.learn("r-1", [key(2), key(99)]) == {"r-2": [key(1), key(3)]}
    assert [c.marked(key(number)) for number in (1, 2, 3, 4)] == [0, 1, 0, 0]
    c.started("r-2", [key(1)])
    assert c.down("r-2").refused == (), "it was marked when r-2 began it"
    assert [c.marked(key(number)) for number in (1, 2, 3, 4)] == [1, 1, 0, 0]
    assert c.learn("r-2", [key(1)]) == {}
    assert [c.marked(key(number)) for number in (1, 2)] == [1, 1]


def test_what_a_lost_replica_executed_is_refused_after_its_second_death() -> None:
    c = in_flight()
    killed_with(c, 1, 2)
    c.learn("r-1", [key(2)])
    c.started("r-2", [key(2)])
    assert c.down("r-2").refused == (Refusal(key(2), "r-2", 2),)
    assert c.learn("r-2", []) == {}
    assert c.marked(key(1)) == 0


def test_what_was_executed_may_be_known_before_the_edge_breaks() -> None:
    c = in_flight()
    c.open("r-1", 8, now=0.0)
    put(c, 1, 2)
    sent(c)
    assert c.learn("r-1", [key(2)]) == {}
    assert c.down("r-1") == Loss()
    assert [c.marked(key(number)) for number in (1, 2)] == [0, 1]
    assert c.learn("r-9", [key(2)]) == {}


def test_what_another_replica_has_since_an_edge_broke_is_cleared_when_the_next_one_breaks() -> None:
    c = in_flight()
    killed_with(c, 1, 2)  # its edge alone broke
    c.open("r-1", 8, now=0.0)
    assert c.learn("r-1", [key(1)]) == {}
    assert c.down("r-1").cleared == {"r-2": [key(2)]}


def test_an_item_is_cleared_once_so_what_kills_as_its_result_is_taken_over_costs_three_replicas() -> None:
    c = in_flight()
    killed_with(c, 1)
    put(c, 1)
    c.learn("r-1", [])
    assert c.marked(key(1)) == 0
    sent(c)
    assert c.down("r-2").refused == ()
    assert c.learn("r-2", []) == {}
    assert c.marked(key(1)) == 1
    c.open("r-3", 8, now=0.0)
    sent(c)
    c.started("r-3", [key(1)])  # that it is over has not left yet
    assert c.down("r-3").refused == (Refusal(key(1), "r-3", 2),)


def test_who_has_an_item_knows_better_than_who_sends_it_again() -> None:
    c = in_flight()
    killed_with(c, 1, 2)
    put(c, 2, is_suspected=True)
    c.learn("r-1", [])
    put(c, 1, is_suspected=True)
    assert [c.marked(key(number)) for number in (1, 2)] == [0, 0]
    c.drop(key(1))
    put(c, 1, is_suspected=True)
    assert c.marked(key(1)) == 1, "it is not here any more, and comes from elsewhere"


def test_a_death_elsewhere_that_an_item_is_suspected_of_is_none_of_the_two() -> None:
    c = in_flight()
    put(c, 1, is_suspected=True)
    for name, refused in (("r-1", ()), ("r-2", (Refusal(key(1), "r-2", 2),))):
        c.open(name, 8, now=0.0)
        assert sent(c) == [(1, name)]
        assert c.marked(key(1)) == 1
        c.started(name, [key(1)])
        assert c.down(name).refused == refused


def test_a_death_that_was_seen_here_counts_although_it_is_sent_again_from_the_start() -> None:
    c = in_flight()
    c.open("r-1", 8, now=0.0)
    put(c, 1)
    sent(c)
    c.started("r-1", [key(1)])
    c.down("r-1")
    put(c, 1, is_suspected=True)
    c.open("r-2", 8, now=0.0)
    sent(c)
    c.started("r-2", [key(1)])
    assert c.down("r-2").refused == (Refusal(key(1), "r-2", 2),)


def test_an_item_that_was_marked_from_the_beginning_stays_so() -> None:
    c = in_flight()
    c.open("r-1", 8, now=0.0)
    put(c, 1, is_suspected=True)
    sent(c)
    c.down("r-1")
    assert c.learn("r-1", []) == {}
    assert c.marked(key(1)) == 1
