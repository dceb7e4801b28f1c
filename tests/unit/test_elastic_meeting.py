"""Where agents meet, who may coordinate, what they must agree on, and the port that they share with c10d stores."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from multiworld.elastic.agreement import plan_of, what_must_agree
from multiworld.elastic.front_door import C10D, FrontDoor
from multiworld.elastic.options import Entrypoint, EntrypointKind, JobOptions, RestartBudget
from multiworld.elastic.rendezvous.base import Address, Advice
from multiworld.elastic.rendezvous.embedded import PATIENT_LOOKS, EmbeddedRendezvous, from_options
from multiworld.elastic.rendezvous.endpoint import Endpoint, find_endpoints, local_address
from multiworld.elastic.rendezvous.registry import find_rendezvous
from multiworld.elastic.succession import Roster, RosterEntry, has_quorum, line_of_succession
from multiworld.testing.deadlines import wait_until
from multiworld.wire.operation import Operation, drive
from multiworld.wire.progress import ProgressThread


def options(**given: Any) -> JobOptions:
    return JobOptions(entrypoint=Entrypoint(kind=EntrypointKind.SCRIPT, target="x.py"), **given)


# ---- endpoints


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:29500", [("127.0.0.1", 29500)]),
        ("127.0.0.1", [("127.0.0.1", 29400)]),
        ("[::1]:7", [("::1", 7)]),
        ("::1", [("::1", 29400)]),
        ("127.0.0.1:1, 127.0.0.2:2", [("127.0.0.1", 1), ("127.0.0.2", 2)]),
        ("localhost:0", [("127.0.0.1", 0)]),
    ],
)
def test_endpoints_are_read_as_people_write_them(text: str, found: list[tuple[str, int]]) -> None:
    assert [(each.host, each.port) for each in find_endpoints(text)] == found


@pytest.mark.parametrize("text", ["", "127.0.0.1:port", "127.0.0.1:70000", ":29500"])
def test_an_endpoint_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        find_endpoints(text)


def test_an_endpoint_of_this_host_is_known_as_such_unless_the_user_says_otherwise() -> None:
    assert find_endpoints("127.0.0.1:1")[0].is_here
    assert not find_endpoints("192.0.2.7:1")[0].is_here
    assert not find_endpoints("127.0.0.1:1", is_host=False)[0].is_here


def test_this_hosts_address_is_what_leads_to_the_endpoint() -> None:
    (endpoint,) = find_endpoints("127.0.0.1:1", is_host=False)
    assert local_address(endpoint, None) == "127.0.0.1"
    assert local_address(endpoint, "127.0.0.9") == "127.0.0.9"


def test_only_node_0_of_a_static_job_listens_at_the_endpoint() -> None:
    for node_rank, leads in ((0, True), (1, False)):
        rendezvous, _ = from_options(options(rdzv_endpoint="127.0.0.1:1", max_nodes=2, node_rank=node_rank))
        assert look(rendezvous, taken=False).leads is leads


def test_a_rendezvous_that_nobody_has_registered_is_refused_with_the_names_of_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"--rdzv-backend zk: .*c10d, embedded"):
        find_rendezvous("zk")


def look(rendezvous: Any, *, taken: bool) -> Advice:
    looking: Operation[Advice] = drive(rendezvous.look(lambda address: not taken))
    return looking.result()


def test_who_cannot_listen_at_the_endpoint_calls_it() -> None:
    rendezvous = EmbeddedRendezvous([Endpoint(host="127.0.0.1", port=5, is_here=True, named="here")])
    assert look(rendezvous, taken=False) == Advice(leads=True)
    assert look(rendezvous, taken=True) == Advice(call=[Address("127.0.0.1", 5)])


def test_an_agent_at_a_later_endpoint_calls_the_earlier_ones_before_it_leads() -> None:
    first = Endpoint(host="192.0.2.7", port=5, is_here=False, named="there")
    second = Endpoint(host="127.0.0.1", port=5, is_here=True, named="here")
    rendezvous = EmbeddedRendezvous([first, second])
    for _ in range(PATIENT_LOOKS):
        assert not look(rendezvous, taken=False).leads
    assert look(rendezvous, taken=False).leads


# ---- succession


def roster(*members: str, coordinator: str = "a") -> Roster:
    entries = tuple(RosterEntry(id=member, host=member, port=1) for member in members)
    return Roster(term=1, coordinator=coordinator, generation=1, store="", members=entries, active=members)


def test_the_line_of_succession_is_the_order_of_coming_without_the_lost_and_the_dead() -> None:
    line = line_of_succession(roster("a", "b", "c", "d"), {"b"})
    assert [member.id for member in line] == ["c", "d"]


@pytest.mark.parametrize(
    ("members", "votes", "dead", "coordinated", "may"),
    [
        ("abc", "bc", "", False, True),
        ("abc", "c", "", False, False),
        ("ab", "b", "", False, False),  # a may be alive, and has the casting vote
        ("ab", "a", "", True, True),
        ("ab", "b", "a", False, True),
        ("abcd", "cd", "", False, False),
        ("abcd", "ab", "", True, True),
        ("abc", "a", "", True, False),
        ("abcde", "e", "abcd", False, True),
    ],
)
def test_a_quorum_counts_those_that_may_be_alive(
    members: str, votes: str, dead: str, coordinated: bool, may: bool
) -> None:
    assert has_quorum(list(members), votes=set(votes), dead=set(dead), coordinated=coordinated) is may


def test_two_parts_of_a_cut_network_never_both_have_a_quorum() -> None:
    members = list("abcde")
    for size in range(2, 6):
        everyone = members[:size]
        for part in range(1 << size):
            one = {member for number, member in enumerate(everyone) if part >> number & 1}
            other = set(everyone) - one
            may = [has_quorum(everyone, votes=side, dead=set(), coordinated="a" in side) for side in (one, other)]
            assert may != [True, True], (one, other)


# ---- agreement


def test_times_of_the_rendezvous_come_from_its_configuration_even_in_quotes() -> None:
    plan = plan_of(options(rdzv_config={"'join_timeout": "5", "last_call_timeout": "1'"}))
    assert (plan.join_timeout_s, plan.last_call_s) == (5.0, 1.0)


def test_a_host_that_is_cut_off_waits_as_long_as_for_hosts_at_first_unless_told_otherwise() -> None:
    conf = {"join_timeout": "5"}
    plans = [plan_of(options(rdzv_config=conf, cut_off_s=given)) for given in (None, 0.0, 7.0)]
    assert [plan.cut_off_s for plan in plans] == [5.0, 0.0, 7.0]


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="join_timeout=soon: expected a number of seconds"):
        plan_of(options(rdzv_config={"join_timeout": "soon"}))


def test_agents_that_differ_in_what_matters_can_tell_in_what() -> None:
    one = what_must_agree(options(max_nodes=2))
    other = what_must_agree(options(max_nodes=3, budget=RestartBudget(max_restarts=1)))
    assert {name for name in one if one[name] != other[name]} == {"--nnodes", "--max-restarts"}


# ---- the front door


@pytest.fixture
def loop() -> Iterator[ProgressThread]:
    thread = ProgressThread("test-door")
    yield thread
    thread.stop()


@pytest.fixture
def store() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        yield server


def on(loop: ProgressThread, make: Any) -> Any:
    """Run ``make`` on the progress thread, and return what it returns."""
    done: Operation[Any] = Operation()

    def run() -> None:
        done.succeed(make())

    loop.call_soon(run)
    assert wait_until(lambda: done.done, 5)
    return done.result()


def test_agents_are_admitted_and_others_led_to_the_store(loop: ProgressThread, store: socket.socket) -> None:
    admitted: list[socket.socket] = []
    door = on(loop, lambda: FrontDoor(loop, "127.0.0.1", 0, lambda sock, _: admitted.append(sock)))
    door.store = store.getsockname()
    try:
        with socket.create_connection(("127.0.0.1", door.port)) as ours, socket.socket() as theirs:
            ours.sendall(b"M")
            theirs.settimeout(5)
            theirs.connect(("127.0.0.1", door.port))
            theirs.sendall(C10D + b"hello")
            inside, _ = store.accept()
            with inside:
                inside.settimeout(5)
                assert inside.recv(len(C10D) + 5) == C10D + b"hello"
                assert not admitted
                ours.sendall(b"W...")
                assert wait_until(lambda: bool(admitted), 5)
                assert admitted[0].recv(5) == b"MW..."
                answer = bytes(range(256)) * 8192
                sending = threading.Thread(target=inside.sendall, args=(answer,))
                sending.start()
                received = bytearray()
                while len(received) < len(answer):
                    received += theirs.recv(65536)
                sending.join()
                assert received == answer
            assert theirs.recv(1) == b""  # the store's end closes ours
    finally:
        on(loop, door.close)
        for sock in admitted:
            sock.close()


def test_without_a_store_others_are_shown_out(loop: ProgressThread) -> None:
    door = on(loop, lambda: FrontDoor(loop, "127.0.0.1", 0, lambda sock, _: sock.close()))
    try:
        with socket.create_connection(("127.0.0.1", door.port), timeout=5) as theirs:
            theirs.sendall(b"GET /")
            with pytest.raises(ConnectionResetError):
                theirs.recv(1)
    finally:
        on(loop, door.close)
