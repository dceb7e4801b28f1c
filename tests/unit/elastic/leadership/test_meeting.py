"""Where agents meet, who may coordinate, what they must agree on, and the port that they share with c10d stores."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multiworld.elastic.agent.shared_port import C10D, SharedPort
from multiworld.elastic.job.agreement import plan_of, what_must_agree
from multiworld.elastic.job.options import JobOptions, RestartBudget
from multiworld.elastic.job.roster import Roster, RosterEntry
from multiworld.elastic.leadership.election import has_quorum, line_of_succession
from multiworld.elastic.leadership.meeting import Call, Place, Reminder, Strangers
from multiworld.elastic.rendezvous.base import Address, Advice
from multiworld.elastic.rendezvous.embedded import PATIENT_LOOKS, EmbeddedRendezvous, from_options
from multiworld.elastic.rendezvous.endpoint import Endpoint, find_endpoints, local_address
from multiworld.elastic.rendezvous.registry import find_rendezvous
from multiworld.process.facts import find_listener
from multiworld.process.spawn.entrypoint import Entrypoint, EntrypointKind
from multiworld.testing.deadlines import wait_until
from multiworld.wire.progress.operation import Operation, drive
from multiworld.wire.progress.thread import ProgressThread


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
        (" localhost ", [("127.0.0.1", 29400)]),
        ("[::1]", [("::1", 29400)]),
        ("::1:29500", [("::1", 29500)]),  # as torchrun reads it
        ("fd00::10:2:29500", [("fd00::10:2", 29500)]),
        ("fd00::10:a", [("fd00::10:a", 29400)]),
        ("fd00:1:2:3:4:5:6:7", [("fd00:1:2:3:4:5:6:7", 29400)]),
        ("fd00:1:2:3:4:5:6:7:80", [("fd00:1:2:3:4:5:6:7", 80)]),
    ],
)
def test_endpoints_are_read_as_people_write_them(text: str, found: list[tuple[str, int]]) -> None:
    assert [(each.host, each.port) for each in find_endpoints(text)] == found


@pytest.mark.parametrize("text", ["", "127.0.0.1:port", "127.0.0.1:70000", ":29500", "a..b:1", "no.such.invalid:1"])
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


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the resolver knows beside numbers."""
    known = {"localhost": "127.0.0.1", "host0": "127.0.1.1", "service0": "192.0.2.7"}

    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (known[host], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return known


def test_a_host_that_has_its_own_name_at_a_loopback_address_listens_where_others_come(names: dict[str, str]) -> None:
    own, here = find_endpoints("host0:1", for_others=True)[0], find_endpoints("localhost:1", for_others=True)[0]
    assert (own.is_here, own.listens_at) == (True, "0.0.0.0")
    assert (here.is_here, here.listens_at) == (True, "127.0.0.1")
    assert find_endpoints("host0:1")[0].listens_at == "127.0.1.1"  # nobody else comes


def test_an_address_that_leads_to_this_host_but_is_none_of_its_own_is_listened_for_at_all_of_them(
    names: dict[str, str],
) -> None:
    (endpoint,) = find_endpoints("service0:1", is_host=True, for_others=True)
    assert (endpoint.host, endpoint.listens_at) == ("192.0.2.7", "0.0.0.0")
    with pytest.raises(ValueError, match="service0:1 is no address of this host: give one with --master-addr"):
        from_options(options(rdzv_backend="static", rdzv_endpoint="service0:1", node_rank=0))


def test_a_static_job_meets_at_torchruns_port_for_it_and_others_at_theirs() -> None:
    for backend, port in (("static", 29500), ("c10d", 29400)):
        rendezvous, _ = from_options(options(rdzv_backend=backend, rdzv_endpoint="127.0.0.1", max_nodes=2))
        assert rendezvous.lookouts() == [Address("127.0.0.1", port)]


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_port_0_is_any_for_one_host_and_refused_for_several(backend: str) -> None:
    assert look(from_options(options(rdzv_backend=backend, rdzv_endpoint="127.0.0.1:0"))[0], taken=False).leads
    with pytest.raises(ValueError, match=r"127.0.0.1:0: port 0 is any free port of a host, and the other hosts do not"):
        from_options(options(rdzv_backend=backend, rdzv_endpoint="127.0.0.1:0", max_nodes=2))


def test_a_file_to_meet_in_is_not_needed_on_one_host_and_refused_for_several() -> None:
    config = {"store_type": "file"}
    one = options(rdzv_backend="c10d", rdzv_endpoint="/shared/file", rdzv_config=config)
    assert look(from_options(one)[0], taken=False).leads
    with pytest.raises(ValueError, match="store_type=file: agents of several hosts meet at an address"):
        from_options(options(rdzv_backend="c10d", rdzv_endpoint="/shared/file", rdzv_config=config, max_nodes=2))


@pytest.mark.parametrize(("given", "is_here"), [("'0'", False), ("true", True), ("No", False), ("t", True)])
def test_the_user_may_say_whether_this_is_the_host(given: str, is_here: bool) -> None:
    job = options(rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:1", rdzv_config={"is_host": given}, max_nodes=2)
    assert look(from_options(job)[0], taken=False).leads is is_here


def test_an_is_host_that_is_neither_yes_nor_no_is_refused() -> None:
    job = options(rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:1", rdzv_config={"is_host": "maybe"})
    with pytest.raises(ValueError, match="--rdzv-conf is_host=maybe: expected 1 or 0"):
        from_options(job)


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
    here = Address("127.0.0.1", 5)
    assert look(rendezvous, taken=True) == Advice(call=[here], taken=[here])


def test_only_an_address_of_this_host_counts_as_taken_by_another_listener() -> None:
    first = Endpoint(host="192.0.2.7", port=5, is_here=False, named="there")
    second = Endpoint(host="127.0.0.1", port=5, is_here=True, named="here")
    rendezvous = EmbeddedRendezvous([first, second])
    for _ in range(PATIENT_LOOKS):
        assert look(rendezvous, taken=True).taken == []
    assert look(rendezvous, taken=True).taken == [Address("127.0.0.1", 5)]


def test_an_agent_at_a_later_endpoint_calls_the_earlier_ones_before_it_leads() -> None:
    first = Endpoint(host="192.0.2.7", port=5, is_here=False, named="there")
    second = Endpoint(host="127.0.0.1", port=5, is_here=True, named="here")
    rendezvous = EmbeddedRendezvous([first, second])
    for _ in range(PATIENT_LOOKS):
        assert not look(rendezvous, taken=False).leads
    assert look(rendezvous, taken=False).leads


# ---- strangers, and whom we wait for


@pytest.mark.parametrize("place", list(Place))
def test_a_stranger_that_answers_wrongly_is_named_after_two_seconds_unless_an_agent_takes_its_place(
    place: Place,
) -> None:
    strangers = Strangers()
    strangers.met([(Call.STRANGE, place)], 0.0)
    assert strangers.why_hopeless(1.9) is None
    strangers.met([(Call.DEAD, place)], 1.95)  # an agent that has just ended
    strangers.met([(Call.STRANGE, place)], 2.0)
    assert strangers.why_hopeless(2.1) is None
    strangers.met([(Call.STRANGE, place)], 4.0)
    assert strangers.why_hopeless(4.0) == "it does not answer as one"


@pytest.mark.parametrize(
    ("call", "place", "patience_s"),
    [
        (Call.SILENT, Place.OURS, 2.0),
        (Call.SILENT, Place.HERE, 10.0),  # it may be an agent that is stopped
        (Call.CLOSED, Place.OURS, 2.0),
        (Call.CLOSED, Place.HERE, 2.0),
    ],
)
def test_one_that_says_nothing_where_this_host_wants_to_listen_is_named_after_a_while(
    call: Call, place: Place, patience_s: float
) -> None:
    strangers = Strangers()
    for at in (0.0, patience_s - 0.1):
        strangers.met([(Call.UNKNOWN, Place.ELSEWHERE), (call, place)], at)
        assert strangers.why_hopeless(at) is None
    does = "closes them" if call is Call.CLOSED else "says nothing"
    assert strangers.why_hopeless(patience_s) == f"it takes connections, and {does}"


@pytest.mark.parametrize(("call", "does"), [(Call.CLOSED, "closes them"), (Call.SILENT, "says nothing")])
def test_one_that_says_nothing_elsewhere_may_be_a_proxy_of_an_agent_that_comes_later(call: Call, does: str) -> None:
    strangers = Strangers()
    for second in range(600):
        strangers.met([(call, Place.ELSEWHERE), (Call.DEAD, Place.HERE)], second)
    assert strangers.why_hopeless(600) is None
    assert strangers.what_is_there == f"something takes connections there and {does}"
    strangers.met([(Call.DEAD, Place.ELSEWHERE)], 601)
    assert strangers.what_is_there is None


def test_a_wait_is_told_after_5_seconds_and_then_after_gaps_that_grow() -> None:
    reminder, told = Reminder(), []
    for second in range(1000):
        waited_s = reminder.look(100.0 + second, is_waiting=True)
        told += [] if waited_s is None else [waited_s]
    assert told == [5, 15, 35, 75, 155, 315, 615, 915]
    assert reminder.look(2000.0, is_waiting=False) is None
    assert reminder.look(2001.0, is_waiting=True) is None
    assert reminder.look(2006.0, is_waiting=True) == 5


def test_the_process_that_listens_at_a_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listener = find_listener(server.getsockname()[1])
        assert listener is not None
        assert listener.pid == os.getpid()
        assert listener.name == Path("/proc/self/comm").read_text().strip()
    assert find_listener(server_port_of_nobody()) is None


def server_port_of_nobody() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


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


@pytest.mark.parametrize(("backend", "patience_s"), [("static", 7.0), ("etcd", 7.0), ("c10d", 600.0)])
def test_a_timeout_means_the_joining_to_those_for_whom_it_does_under_torchrun(backend: str, patience_s: float) -> None:
    assert plan_of(options(rdzv_backend=backend, rdzv_config={"timeout": "7"})).join_timeout_s == patience_s


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="join_timeout=soon: expected a number of seconds"):
        plan_of(options(rdzv_config={"join_timeout": "soon"}))


def test_agents_that_differ_in_what_matters_can_tell_in_what() -> None:
    one = what_must_agree(options(max_nodes=2))
    other = what_must_agree(options(max_nodes=3, budget=RestartBudget(max_restarts=1)))
    assert {name for name in one if one[name] != other[name]} == {"--nnodes", "--max-restarts"}


# ---- the shared port


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
    door = on(loop, lambda: SharedPort(loop, "127.0.0.1", 0, lambda sock, _: admitted.append(sock)))
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
    door = on(loop, lambda: SharedPort(loop, "127.0.0.1", 0, lambda sock, _: sock.close()))
    try:
        with socket.create_connection(("127.0.0.1", door.port), timeout=5) as theirs:
            theirs.sendall(b"GET /")
            with pytest.raises(ConnectionResetError):
                theirs.recv(1)
    finally:
        on(loop, door.close)
