"""The etcd rendezvous: who claims to coordinate, what becomes of a claim, and what else may listen at its endpoint."""

from __future__ import annotations

import pickle
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from multiworld.elastic.job.options import JobOptions
from multiworld.elastic.rendezvous.base import Address, Advice
from multiworld.elastic.rendezvous.etcd import EtcdRendezvous, from_options
from multiworld.elastic.rendezvous.etcd_claim import Claim, may_replace
from multiworld.elastic.rendezvous.etcd_client import EtcdClient
from multiworld.elastic.rendezvous.etcd_gateway import (
    EtcdAccess,
    EtcdAwayError,
    EtcdError,
    EtcdGateway,
    EtcdRefusedError,
)
from multiworld.elastic.rendezvous.registry import find_rendezvous
from multiworld.process.spawn.entrypoint import Entrypoint, EntrypointKind
from multiworld.testing import scaled, wait_until
from multiworld.wire.progress.operation import drive
from multiworld.wire.progress.thread import ProgressThread
from multiworld.wire.progress.waiting import wait_blocking
from tests.unit.fake_etcd import FakeEtcd, http_answer

pytestmark = pytest.mark.usefixtures("no_leaks")

KEY = "multiworld/job/coordinator"
ME, OTHER = Address("127.0.0.1", 1001), Address("127.0.0.1", 1002)
HTML = b"<html>It works!</html>"


@pytest.fixture
def etcd() -> Iterator[FakeEtcd]:
    with FakeEtcd() as etcd:
        yield etcd


@pytest.fixture
def loop() -> Iterator[ProgressThread]:
    loop = ProgressThread("test-agent")
    yield loop
    loop.stop()


def client(*endpoints: tuple[str, int], **access: Any) -> EtcdClient:
    return EtcdClient(EtcdGateway(EtcdAccess(endpoints=endpoints, **{"timeout_s": scaled(2.0), **access})))


@contextmanager
def rendezvous(loop: ProgressThread, etcd: FakeEtcd, me: Address = ME) -> Iterator[EtcdRendezvous]:
    made = EtcdRendezvous(EtcdAccess(endpoints=(etcd.endpoint,), timeout_s=scaled(2.0)), KEY, 1)
    made.attach(loop, me)
    try:
        yield made
    finally:
        made.close()
        made.wait_closed(scaled(5.0))


def look(rendezvous: EtcdRendezvous) -> Advice:
    return wait_blocking(drive(rendezvous.look(lambda address: True)))


def claim_of(etcd: FakeEtcd) -> Claim | None:
    entry = etcd.entries.get(KEY)
    return None if entry is None else Claim.from_bytes(entry.value)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---- claims


def test_a_claim_is_read_as_it_was_written() -> None:
    claim = Claim(Address("fd00::1", 29400), 7)
    assert Claim.from_bytes(claim.to_bytes()) == claim


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"{}", b'{"host": "h", "port": "x", "term": 1}', b"[" * 99_999])
def test_what_no_agent_wrote_is_no_claim(value: bytes) -> None:
    with pytest.raises(ValueError, match="no agent has written"):
        Claim.from_bytes(value)


def test_only_a_later_term_or_its_owner_replaces_a_claim() -> None:
    assert may_replace(Claim(OTHER, 1), Claim(ME, 2))
    assert may_replace(Claim(ME, 3), Claim(ME, 2))
    assert not may_replace(Claim(OTHER, 2), Claim(ME, 2))
    assert not may_replace(Claim(OTHER, 3), Claim(ME, 2))


# ---- meeting


def test_the_first_to_look_leads_and_the_second_is_told_whom_to_call(loop: ProgressThread, etcd: FakeEtcd) -> None:
    with rendezvous(loop, etcd) as first, rendezvous(loop, etcd, OTHER) as second:
        assert look(first) == Advice(leads=True)
        assert look(second) == Advice(call=[ME])
        assert claim_of(etcd) == Claim(ME, 1)
        assert etcd.leases == {etcd.entries[KEY].lease: 1}


def test_of_many_that_look_at_once_one_leads(loop: ProgressThread, etcd: FakeEtcd) -> None:
    kept = [rendezvous(loop, etcd, Address("127.0.0.1", port)) for port in range(1001, 1006)]
    agents = [each.__enter__() for each in kept]
    try:
        looks = [drive(agent.look(lambda address: True)) for agent in agents]
        advice = [wait_blocking(each) for each in looks]
    finally:
        for each in kept:
            each.__exit__(None, None, None)
    assert sorted(each.leads for each in advice) == [False, False, False, False, True]
    (leader,) = [number for number, each in enumerate(advice) if each.leads]
    assert all(each.call == [Address("127.0.0.1", 1001 + leader)] for each in advice if not each.leads)


def test_a_claim_whose_answer_was_lost_is_known_as_our_own(loop: ProgressThread, etcd: FakeEtcd) -> None:
    etcd.after = lambda path: b"" if path == "/v3/kv/txn" else None
    with rendezvous(loop, etcd) as first:
        assert look(first) == Advice()
        assert "closed the connection" in first.why_nobody()
        etcd.after = lambda path: None
        assert look(first) == Advice(leads=True)
        assert list(etcd.leases) == [etcd.entries[KEY].lease]


def test_who_waits_hears_of_a_new_coordinator_at_once(loop: ProgressThread, etcd: FakeEtcd) -> None:
    etcd.put(KEY, Claim(OTHER, 1).to_bytes())
    with rendezvous(loop, etcd) as agent:
        assert look(agent) == Advice(call=[OTHER])
        second = drive(agent.look(lambda address: True))
        etcd.wait_until(lambda: etcd.num_watches == 1)
        assert not second.done
        successor = Address("127.0.0.1", 1003)
        etcd.put(KEY, Claim(successor, 2).to_bytes())
        assert wait_blocking(second) == Advice(call=[successor])


def test_who_waits_leads_once_the_owner_has_died(loop: ProgressThread, etcd: FakeEtcd) -> None:
    etcd.leases[77] = 5
    etcd.put(KEY, Claim(OTHER, 4).to_bytes(), lease=77)
    with rendezvous(loop, etcd) as agent:
        assert look(agent) == Advice(call=[OTHER])
        second = drive(agent.look(lambda address: True))
        etcd.wait_until(lambda: etcd.num_watches == 1)
        etcd.expire(77)
        assert wait_blocking(second) == Advice(leads=True)
        assert claim_of(etcd) == Claim(ME, 1)


def test_a_key_that_is_somebody_elses_ends_the_search(loop: ProgressThread, etcd: FakeEtcd) -> None:
    etcd.put(KEY, b"my own notes")
    with rendezvous(loop, etcd) as agent:
        with pytest.raises(EtcdRefusedError, match=f"'{KEY}' is not this job's: it holds 'my own notes'"):
            look(agent)
        assert etcd.entries[KEY].value == b"my own notes"


def test_no_answer_is_no_end_of_the_search(loop: ProgressThread, etcd: FakeEtcd) -> None:
    etcd.close()
    with rendezvous(loop, etcd) as agent:
        assert look(agent) == Advice()
        assert agent.why_nobody() == f"etcd at 127.0.0.1:{etcd.endpoint[1]}: connection refused"
        etcd.open()
        assert look(agent) == Advice(leads=True)


# ---- keeping a claim


def test_a_claim_goes_with_its_owner(loop: ProgressThread, etcd: FakeEtcd) -> None:
    with rendezvous(loop, etcd) as agent:
        look(agent)
        agent.withdraw()
        etcd.wait_until(lambda: not etcd.leases)
        assert KEY not in etcd.entries
        agent.announce(ME, 2)
        etcd.wait_until(lambda: claim_of(etcd) == Claim(ME, 2))
    assert not etcd.entries
    assert not etcd.leases


def test_a_claim_goes_however_often_its_owner_is_closed(
    loop: ProgressThread, etcd: FakeEtcd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with rendezvous(loop, etcd) as agent:
        look(agent)

        def close_again(path: str) -> None:
            if path == "/v3/lease/revoke":
                agent.close()

        etcd.instead = close_again
        agent.close()
        agent.wait_closed(scaled(5.0))
    assert not etcd.entries
    assert "ends with its lease" not in caplog.text  # it has heard the answer


def test_nobody_takes_back_a_claim_of_another(loop: ProgressThread, etcd: FakeEtcd) -> None:
    with rendezvous(loop, etcd) as agent:
        look(agent)
        etcd.put(KEY, Claim(OTHER, 2).to_bytes())
    assert not etcd.leases
    assert claim_of(etcd) == Claim(OTHER, 2)


def test_a_later_term_is_written_over_an_earlier_one_and_not_the_other_way_round(
    loop: ProgressThread, etcd: FakeEtcd
) -> None:
    with rendezvous(loop, etcd) as old, rendezvous(loop, etcd, OTHER) as new:
        look(old)
        old.announce(ME, 1)
        new.announce(OTHER, 2)
        etcd.wait_until(lambda: claim_of(etcd) == Claim(OTHER, 2))
        num_calls = len(etcd.calls)
        old.announce(ME, 1)
        etcd.wait_until(lambda: "/v3/kv/range" in etcd.calls[num_calls:])
        assert claim_of(etcd) == Claim(OTHER, 2)
        assert old.lookouts() == []  # it is not for the old one to summon the new one


def test_a_claim_is_renewed_and_written_again_when_it_is_gone(loop: ProgressThread, etcd: FakeEtcd) -> None:
    with rendezvous(loop, etcd) as agent:
        look(agent)
        agent.announce(ME, 1)
        etcd.wait_until(lambda: "/v3/lease/keepalive" in etcd.calls)
        lost = etcd.entries[KEY].lease
        etcd.expire(lost)
        etcd.wait_until(lambda: claim_of(etcd) == Claim(ME, 1))
        assert etcd.entries[KEY].lease != lost


def test_a_claim_is_written_when_etcd_is_back_and_people_are_told_once(
    loop: ProgressThread, etcd: FakeEtcd, caplog: pytest.LogCaptureFixture
) -> None:
    etcd.close()
    with rendezvous(loop, etcd) as agent:
        agent.announce(ME, 3)
        assert wait_until(lambda: len(caplog.messages) == 1, timeout_s=10.0)
        agent.announce(ME, 4)
        etcd.open()
        etcd.wait_until(lambda: claim_of(etcd) == Claim(ME, 4))
        assert wait_until(lambda: len(caplog.messages) == 2, timeout_s=10.0)
    assert "connection refused; the job goes on" in caplog.messages[0]
    assert caplog.messages[1].endswith("is back")


def test_who_began_anew_while_our_claim_was_gone_is_looked_out_for(loop: ProgressThread, etcd: FakeEtcd) -> None:
    with rendezvous(loop, etcd) as agent:
        look(agent)
        etcd.put(KEY, Claim(OTHER, 1).to_bytes())
        agent.announce(ME, 1)
        assert wait_until(lambda: agent.lookouts() == [OTHER], timeout_s=10.0)
        assert claim_of(etcd) == Claim(OTHER, 1)


def test_a_claim_is_written_over_what_is_none(
    loop: ProgressThread, etcd: FakeEtcd, caplog: pytest.LogCaptureFixture
) -> None:
    etcd.put(KEY, b"my own notes")
    with rendezvous(loop, etcd) as agent:
        agent.announce(ME, 2)
        etcd.wait_until(lambda: etcd.entries[KEY].value != b"my own notes")
    assert "is written over: it holds 'my own notes'" in caplog.text


def test_the_progress_thread_waits_for_nothing_and_closing_ends_a_silent_call(
    loop: ProgressThread, etcd: FakeEtcd
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def be_silent(path: str) -> bytes:
        asked.set()
        answer.wait(scaled(30.0))
        return b""

    etcd.instead = be_silent
    try:
        with rendezvous(loop, etcd) as agent:
            search = drive(agent.look(lambda address: True))
            assert asked.wait(scaled(10.0))
            turned = threading.Event()
            loop.call_soon(turned.set)
            assert turned.wait(scaled(1.0))
            agent.close()
            agent.wait_closed(scaled(1.0))
            assert wait_blocking(search) == Advice()
    finally:
        answer.set()


# ---- what may listen there


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it does not speak HTTP"),
        (http_answer("200 OK", HTML), "its answer makes no sense"),
        (http_answer("200 OK", b"[1]"), "its answer makes no sense"),
        (http_answer("200 OK", b'{"kvs": []}'), "its answer makes no sense"),
        (http_answer("200 OK", b'{"header": 5}'), "its answer makes no sense"),
        (http_answer("200 OK", b'{"header": {"revision": "many"}}'), "its answer makes no sense"),
        (http_answer("200 OK", b'{"header": {"revision": "1"}, "kvs": 7}'), "its answer makes no sense"),
        (http_answer("200 OK", b'{"header": {"revision": "1"}, "kvs": [{"value": "%"}]}'), "its answer makes no sense"),
        (http_answer("301 Moved Permanently", b""), "it answered 301 Moved Permanently"),
        (http_answer("404 Not Found", b"404 page not found\n"), "it answered 404 Not Found"),
        (
            http_answer("400 Bad Request", b"Client sent an HTTP request to an HTTPS server.\n"),
            "give --rdzv-conf proto",
        ),
        (http_answer("403 Forbidden", b'{"code": 7, "message": "permission denied"}'), "permission denied"),
    ],
)
def test_what_is_no_etcd_is_refused(etcd: FakeEtcd, answer: bytes, reason: str) -> None:
    etcd.instead = lambda path: answer
    with pytest.raises(EtcdRefusedError, match=reason):
        client(etcd.endpoint).get(KEY)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "it closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "it closed the connection"),
        (http_answer("200 OK", b'{"header": {}', length=500), "the connection was cut within an answer"),
        (http_answer("502 Bad Gateway", HTML), "it answered 502 Bad Gateway"),
        (http_answer("503 -", b'{"code": 14, "message": "etcdserver: no leader"}'), "no leader"),
        (http_answer("200 OK", b'{"error": {"grpc_code": 8, "message": "etcdserver: no space"}}'), "no space"),
    ],
)
def test_what_may_pass_is_tried_again(etcd: FakeEtcd, answer: bytes, reason: str) -> None:
    etcd.instead = lambda path: answer
    with pytest.raises(EtcdAwayError, match=reason):
        client(etcd.endpoint).get(KEY)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("2.3.8", "it is etcd 2.3.8, and 3.4 or newer is needed"),
        ("3.3.27", "it is etcd 3.3.27, and 3.4 or newer is needed"),
        ("3.5.9", "it is etcd 3.5.9 with its JSON gateway switched off"),
    ],
)
def test_an_etcd_without_the_v3_gateway_is_told_from_other_services(etcd: FakeEtcd, version: str, reason: str) -> None:
    told = http_answer("200 OK", f'{{"etcdserver": "{version}"}}'.encode())
    missing = http_answer("404 Not Found", b"404 page not found\n")
    etcd.instead = lambda path: told if path == "/version" else missing
    with pytest.raises(EtcdRefusedError, match=reason):
        client(etcd.endpoint).get(KEY)


def test_an_answer_that_does_not_come_is_given_up(etcd: FakeEtcd) -> None:
    answer = threading.Event()
    etcd.instead = lambda path: b"" if answer.wait(scaled(30.0)) else None
    try:
        with pytest.raises(EtcdAwayError, match=r"no answer within 0\.05 s"):
            client(etcd.endpoint, timeout_s=0.05).get(KEY)
    finally:
        answer.set()


def test_who_knows_nothing_but_tls_may_reset_the_connection_as_well_as_close_it() -> None:
    """The kernel resets it if the server had not read all that was asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reset() -> None:
            connection, _ = server.accept()
            connection.recv(1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

        resetting = threading.Thread(target=reset)
        resetting.start()
        with pytest.raises(EtcdAwayError, match="does it want --rdzv-conf protocol=https"):
            client(("127.0.0.1", server.getsockname()[1])).get(KEY)
        resetting.join()


def test_tls_is_not_spoken_with_who_does_not(etcd: FakeEtcd) -> None:
    with pytest.raises(EtcdRefusedError, match="TLS fails"):
        client(etcd.endpoint, tls=ssl.create_default_context()).get(KEY)


def test_endpoints_are_tried_in_turn_and_the_one_that_answered_is_asked_next(etcd: FakeEtcd) -> None:
    with FakeEtcd() as broken:

        def answer(path: str) -> bytes:
            broken.calls.append(path)
            return HTML

        broken.instead = answer
        asked = client(("127.0.0.1", free_port()), broken.endpoint, etcd.endpoint)
        asked.get(KEY)
        asked.get(KEY)
        assert broken.calls == ["/v3/kv/range"]
        assert etcd.calls == ["/v3/kv/range"] * 2


def test_all_endpoints_are_named_when_none_answers(etcd: FakeEtcd) -> None:
    etcd.instead = lambda path: HTML
    port = free_port()
    with pytest.raises(EtcdAwayError) as failed:  # one of them may come yet
        client(etcd.endpoint, ("127.0.0.1", port)).get(KEY)
    reason = "what listens there is no etcd: it does not speak HTTP"
    both = f"etcd at 127.0.0.1:{etcd.endpoint[1]}: {reason}; at 127.0.0.1:{port}: connection refused"
    assert str(failed.value) == both
    with pytest.raises(EtcdRefusedError):
        client(etcd.endpoint, etcd.endpoint).get(KEY)


@pytest.mark.parametrize("kind", [EtcdError, EtcdAwayError, EtcdRefusedError])
def test_errors_of_etcd_cross_processes(kind: type[EtcdError]) -> None:
    error = pickle.loads(pickle.dumps(kind("127.0.0.1:2379", "connection refused")))
    assert (type(error), str(error)) == (kind, "etcd at 127.0.0.1:2379: connection refused")


# ---- passwords


def test_a_user_is_authenticated_once_and_again_when_etcd_has_forgotten_it() -> None:
    with FakeEtcd(users={"me": "secret"}) as etcd:
        asked = client(etcd.endpoint, username="me", password="secret")
        asked.get(KEY)
        asked.get(KEY)
        etcd.tokens.clear()
        asked.get(KEY)
        assert etcd.calls.count("/v3/auth/authenticate") == 2


def test_a_wrong_password_and_a_missing_one_are_refused() -> None:
    with FakeEtcd(users={"me": "secret"}) as etcd:
        with pytest.raises(EtcdRefusedError, match=r"invalid user ID or password \(user 'me'\)"):
            client(etcd.endpoint, username="me", password="guess").get(KEY)
        with pytest.raises(EtcdRefusedError, match="user name is empty; give --rdzv-conf username="):
            client(etcd.endpoint).get(KEY)


def test_a_password_that_nobody_wants_does_no_harm(etcd: FakeEtcd) -> None:
    assert client(etcd.endpoint, username="me", password="secret").get(KEY).value is None


# ---- options


def options(endpoint: str, **config: str) -> JobOptions:
    entrypoint = Entrypoint(kind=EntrypointKind.SCRIPT, target="train.py")
    return JobOptions(entrypoint=entrypoint, run_id="job", rdzv_endpoint=endpoint, rdzv_config=config)


def access_of(made: object) -> EtcdAccess:
    assert isinstance(made, EtcdRendezvous)
    return made._access


@pytest.mark.parametrize("name", ["etcd", "etcd-v2"])
def test_the_names_that_torchrun_has_lead_to_it(name: str) -> None:
    made, host = find_rendezvous(name)(options("127.0.0.1"))
    assert str(made) == "etcd 127.0.0.1:2379"
    assert host == "127.0.0.1"


def test_endpoints_may_be_several_and_urls() -> None:
    made, _ = from_options(options("http://127.0.0.1:1,[::1]:2/, localhost"))
    assert access_of(made).endpoints == (("127.0.0.1", 1), ("::1", 2), ("localhost", 2379))
    assert access_of(made).tls is None


def test_https_comes_from_the_endpoint_or_the_configuration() -> None:
    for made, _ in (from_options(options("https://127.0.0.1")), from_options(options("127.0.0.1", protocol="HTTPS"))):
        tls = access_of(made).tls
        assert tls is not None
        assert tls.verify_mode is ssl.CERT_REQUIRED


def test_passwords_and_times_are_read_as_given() -> None:
    config = {"username": "me", "password": "'secret'", "read_timeout": "60", "lease_ttl": "6"}
    access = access_of(from_options(options("127.0.0.1", **config))[0])
    assert (access.username, access.password, access.timeout_s) == ("me", "secret", 3.0)  # a lease takes no longer


@pytest.mark.parametrize(
    ("endpoint", "config", "reason"),
    [
        ("", {}, "no rendezvous endpoint"),
        ("127.0.0.1:x", {}, "expected HOST:PORT"),
        ("https://127.0.0.1,http://127.0.0.1", {}, "expected https"),
        ("ftp://127.0.0.1", {}, "protocol=ftp: expected http or https"),
        ("127.0.0.1", {"lease_ttl": "0"}, "lease_ttl=0: expected seconds"),
        ("127.0.0.1", {"lease_ttl": "soon"}, "lease_ttl=soon: expected seconds"),
        ("127.0.0.1", {"password": "secret"}, "whose"),
        ("127.0.0.1", {"protocol": "https", "cacert": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
        ("127.0.0.1", {"protocol": "https", "ssl_cert": "/nowhere/c", "ssl_cert_key": "/nowhere/k"}, "/nowhere/k"),
    ],
)
def test_what_makes_no_sense_is_a_value_error(endpoint: str, config: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        from_options(options(endpoint, **config))


def test_certificates_without_https_are_ignored_aloud(caplog: pytest.LogCaptureFixture) -> None:
    with suppress(ValueError):
        from_options(options("127.0.0.1", cacert="/nowhere/ca.pem"))
    assert "only for protocol=https" in caplog.text
