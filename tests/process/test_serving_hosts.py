"""Host processes with real members: started, killed, stopped, left alone by their controller, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from multiworld.process.link import ControlLink
from multiworld.process.link.blocking import BlockingLinks
from multiworld.process.link.envelope import pack_answered, pack_asked
from multiworld.serving.control.client.client import ask
from multiworld.serving.control.client.questions import (
    ControllerQuestion,
    FilePiece,
    LinesOfMembers,
    MetricsTold,
    ReadFile,
    ScaleStage,
    StatusOf,
)
from multiworld.serving.control.reception import Reception
from multiworld.serving.errors import DeploymentError
from multiworld.serving.hosts.host import Host
from multiworld.serving.hosts.messages import (
    HOST_EVENTS,
    HOST_ORDERS,
    Hello,
    HostEvent,
    HostOrder,
    Refused,
    Start,
    Stopping,
)
from multiworld.serving.hosts.order import Order
from multiworld.serving.hosts.owner.start import HostHandle, start_host
from multiworld.serving.member.exit_status import IN_VAIN, Ending
from multiworld.serving.replica.black_box import carried
from multiworld.testing import Relay, scaled
from multiworld.wire.connection.frames import Kind, pack_frame

pytestmark = pytest.mark.cold

TOKEN = "a token of these tests"
HERE = "tests.process.test_serving_hosts"
Exit = tuple[str, int, list[str]]


# Programs of members.


def idle(arguments: dict[str, Any]) -> None:
    signal.pause()


def describe(arguments: dict[str, Any]) -> None:
    stdin = os.readlink("/proc/self/fd/0")
    leads = os.getsid(0) == os.getpgid(0) == os.getpid()
    told = {
        "arguments": arguments,
        "variable": os.environ.get("OF_THIS_MEMBER"),
        "threads": torch.get_num_threads(),
        "stdin": stdin,
        "leads": leads,
        "descriptors": [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and _is_open(fd)],
        "kernel_threads": len(os.listdir("/proc/self/task")),
        "random": torch.rand(1).item(),
    }
    Path(arguments["path"]).write_text(json.dumps(told), encoding="utf-8")


def die_executing(arguments: dict[str, Any]) -> None:
    box = carried()
    assert box is not None
    for number in range(arguments["number"]):
        box.begin(number.to_bytes(16, "big"))
        if number % 2:
            box.end(number.to_bytes(16, "big"))
    os.kill(os.getpid(), signal.SIGKILL)


def flood(arguments: dict[str, Any]) -> None:
    for number in range(10_000):
        sys.stderr.write(f"{number:>9} {'x' * 100}\n")
    os._exit(7)


def fail(arguments: dict[str, Any]) -> None:
    raise LookupError("no such thing")


def cannot_run_here(arguments: dict[str, Any]) -> None:
    sys.stderr.write("it needs an extra\n")
    raise SystemExit(IN_VAIN)


def with_child(arguments: dict[str, Any]) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    Path(arguments["path"]).write_text(str(child.pid), encoding="utf-8")
    signal.pause()


def finish_slowly(arguments: dict[str, Any]) -> None:
    """End 0.2 s after SIGTERM, and note when."""

    def end(*_: object) -> None:
        time.sleep(0.2)
        _note(arguments)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    _note(arguments)
    while True:
        signal.pause()


def note_end(arguments: dict[str, Any]) -> None:
    def end(*_: object) -> None:
        _note(arguments)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    _note(arguments)
    while True:
        signal.pause()


def ignore(arguments: dict[str, Any]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _note(arguments)
    while True:
        signal.pause()


def _note(arguments: dict[str, Any]) -> None:
    with open(arguments["path"], "a", encoding="utf-8") as file:
        file.write(f"{arguments['name']}\n")


def _is_open(fd: int) -> bool:
    with contextlib.suppress(OSError):
        os.fstat(fd)
        return True
    return False


# What the tests do with them.


class Desk:
    """A controller of the tests: the host processes that come to it, and what it is told."""

    def __init__(self, port: int, token: str = TOKEN, job: str = "") -> None:
        self.port = port
        self.hosts: asyncio.Queue[Host] = asyncio.Queue()
        self.exits: asyncio.Queue[Exit] = asyncio.Queue()
        self.restarts: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.lost: asyncio.Queue[Host] = asyncio.Queue()
        self.before_answer: Callable[[], object] = lambda: None
        self.reception = Reception(token, on_host=self._arrived, on_request=self._answer, job=job)

    async def __aenter__(self) -> Desk:
        self.port = await self.reception.start(("127.0.0.1", self.port))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.reception.aclose()

    async def host(self) -> Host:
        return await asyncio.wait_for(self.hosts.get(), scaled(15))

    async def exit(self) -> Exit:
        return await asyncio.wait_for(self.exits.get(), scaled(5))

    def _arrived(self, host: Host) -> None:
        host.on_exit = lambda member, end: self.exits.put_nowait((member, end.returncode, end.last_lines))
        host.on_started = lambda *told: self.restarts.put_nowait(told)
        host.on_lost = lambda: self.lost.put_nowait(host)
        self.hosts.put_nowait(host)

    async def _answer(self, question: ControllerQuestion) -> MetricsTold:
        await asyncio.to_thread(self.before_answer)
        if isinstance(question, ScaleStage):
            raise LookupError("no such stage")
        of = question.of if isinstance(question, LinesOfMembers) else ""
        return MetricsTold(gateways={"of": of})


def order(member: str, function: Any, *, keep: bool = False, **arguments: Any) -> Order:
    return Order(member=member, program=f"{HERE}:{function.__name__}", arguments=arguments, keep=keep)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def gone(pid: int, timeout_s: float) -> bool:
    """Whether a process ends in that time. It need not be a child."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        try:
            return bool(await asyncio.to_thread(poll.poll, scaled(timeout_s) * 1000))
        finally:
            os.close(pidfd)
    return True


async def text_of(path: Path, *, lines: int = 0) -> str:
    """Wait for what members write: something, or so many lines."""
    until = time.monotonic() + scaled(5)
    while not path.exists() or not (text := path.read_text(encoding="utf-8")) or text.count("\n") < lines:
        assert time.monotonic() < until, f"{path} was not written"
        await asyncio.sleep(0.005)
    return text


async def start_again_and_again(desk: Desk, host: Host) -> None:
    while True:
        await host.start(order("late-1", idle))
        host.kill("late-1")
        await desk.exit()


class PretendedHost:
    """A link of a host process that is not there, and what the reception says to it."""

    def __init__(self, desk: Desk, links: BlockingLinks, *, pid: int, space: str = "") -> None:
        self._told: queue.SimpleQueue[HostOrder] = queue.SimpleQueue()
        self.link: ControlLink[HostEvent, HostOrder] = ControlLink(
            HOST_EVENTS, HOST_ORDERS, on_message=lambda order, _: self._told.put(order)
        )
        links.connect("127.0.0.1", desk.port, TOKEN, "host", self.link)
        self.link.tell(Hello(host="there", address="::1", pid=pid, capacity=1, members={}, process_space=space))

    def refusal(self) -> str:
        order = self._told.get(timeout=scaled(5))
        assert isinstance(order, Refused)
        return order.reason


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[HostHandle, int]]:
    """A host process, and the port at which it looks for its controller. The desks of the tests follow each other."""
    port = free_port()
    handle = start_host(("127.0.0.1", port), TOKEN, name="here", preload=[HERE])
    yield handle, port
    handle.abort()


@pytest.fixture
async def desk(shared: tuple[HostHandle, int]) -> AsyncIterator[Desk]:
    async with Desk(shared[1]) as desk:
        yield desk


def command_of(pid: int | str) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def children_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")


@contextlib.contextmanager
def no_descriptors_left(pid: int) -> Iterator[None]:
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


async def test_members_are_started_once_their_host_has_descriptors_for_them(desk: Desk) -> None:
    host = await desk.host()
    kept = await host.start(order("kept-1", idle, keep=True))
    with no_descriptors_left(host.pid):
        starting = asyncio.create_task(host.start(order("late-1", idle)))
        os.kill(kept, signal.SIGKILL)
        assert (await desk.exit())[0] == "kept-1"
        await asyncio.wait({starting}, timeout=0.2)
        assert not starting.done()
        assert desk.restarts.empty()
    assert await asyncio.wait_for(starting, scaled(5)) > 0
    member, _ = await asyncio.wait_for(desk.restarts.get(), scaled(5))
    assert member == "kept-1"
    for name in ("kept-1", "late-1"):
        host.kill(name)
        await desk.exit()


@pytest.mark.alone
async def test_member_starts_as_ordered_at_once(desk: Desk, tmp_path: Path) -> None:
    host = await desk.host()
    ordered = order("blocks-1", describe, path=str(tmp_path / "told"), number=3)
    started = time.monotonic()
    pid = await host.start(replace(ordered, threads=2, env={"OF_THIS_MEMBER": "yes"}))
    took_s = time.monotonic() - started
    member, returncode, _ = await desk.exit()
    told = json.loads((tmp_path / "told").read_text(encoding="utf-8"))
    assert (member, returncode, pid > 0) == ("blocks-1", 0, True)
    assert took_s < scaled(0.2)  # 10 ms where nothing else runs
    assert told["arguments"] == {"path": str(tmp_path / "told"), "number": 3}
    assert (told["variable"], told["threads"], told["stdin"], told["leads"]) == ("yes", 2, "/dev/null", True)
    assert told["descriptors"] == []
    await host.start(order("blocks-2", describe, path=str(tmp_path / "other")))
    await desk.exit()
    other = json.loads((tmp_path / "other").read_text(encoding="utf-8"))
    assert (other["threads"], other["kernel_threads"], other["variable"]) == (1, 1, None)
    assert other["random"] != told["random"]
    assert host.members == {}


async def test_what_a_member_was_executing_outlives_it(desk: Desk) -> None:
    host = await desk.host()
    told: asyncio.Queue[tuple[str, Ending]] = asyncio.Queue()
    host.on_exit = lambda *end: told.put_nowait(end)
    for number, expected in ((6, ["2", "4"]), (0, []), (1200, None)):
        await host.start(order("b-1", die_executing, number=number))
        member, ending = await asyncio.wait_for(told.get(), scaled(5))
        assert (member, ending.returncode) == ("b-1", -9)
        executing = ending.executing
        assert (executing if executing is None else [text.lstrip("0") for text in executing]) == expected


@pytest.mark.alone
async def test_kept_member_is_back_at_once_under_its_name(desk: Desk, tmp_path: Path) -> None:
    host = await desk.host()
    pid = await host.start(order("gateway-1", idle, keep=True))
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    member, returncode, _ = await desk.exit()
    assert (member, returncode) == ("gateway-1", -9)
    member, new_pid = await asyncio.wait_for(desk.restarts.get(), scaled(0.5))
    assert time.monotonic() - killed_at < scaled(0.5)
    assert (member, new_pid != pid) == ("gateway-1", True)
    assert host.members == {"gateway-1": new_pid}
    await host.start(order("done-1", note_end, keep=True, path=str(tmp_path / "notes"), name="done"))
    await text_of(tmp_path / "notes")
    os.kill(host.members["done-1"], signal.SIGTERM)  # it ends by itself, with 0
    assert (await desk.exit())[:2] == ("done-1", 0)
    await host.start(order("vain-1", cannot_run_here, keep=True))
    assert await desk.exit() == ("vain-1", IN_VAIN, ["it needs an extra"])
    host.kill("gateway-1")  # an order to end is one
    assert (await desk.exit())[1] == -9
    assert await gone(new_pid, 1.0)
    assert desk.restarts.empty()


def test_kept_member_that_is_stopped_for_long_is_started_again() -> None:
    command = [sys.executable, "-m", "tests.process.stopped_member_host"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            first = int(process.stdout.readline())
            os.kill(first, signal.SIGSTOP)
            assert int(process.stdout.readline()) != first
        finally:
            process.kill()


async def test_kept_member_that_its_controller_kills_is_back_too(desk: Desk) -> None:
    host = await desk.host()
    pid = await host.start(order("gateway-1", idle, keep=True))
    host.signal("gateway-1", signal.SIGKILL)
    assert (await desk.exit())[:2] == ("gateway-1", -9)
    member, new_pid = await asyncio.wait_for(desk.restarts.get(), scaled(2))
    assert (member, new_pid != pid) == ("gateway-1", True)
    host.kill("gateway-1")
    assert (await desk.exit())[1] == -9
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(desk.restarts.get(), 1.5)


async def test_members_outlive_their_controller_and_are_named_to_the_next(shared: tuple[HostHandle, int]) -> None:
    async with Desk(shared[1]) as desk:
        host = await desk.host()
        pids = {name: await host.start(order(name, idle, keep=name == "kept-1")) for name in ("a-1", "b-1", "kept-1")}
    assert host.is_lost
    with pytest.raises(ConnectionError):
        await host.start(order("c-1", idle))
    for name in ("b-1", "kept-1"):
        os.kill(pids[name], signal.SIGKILL)
        assert await gone(pids[name], 1.0)
    async with Desk(shared[1]) as desk:
        host = await desk.host()
        assert host.pid == shared[0].pid
        assert host.members.keys() == {"a-1", "kept-1"}
        assert host.members["a-1"] == pids["a-1"]
        assert host.members["kept-1"] != pids["kept-1"]
        for name in list(host.members):
            host.kill(name)
            await desk.exit()


async def test_members_of_another_deployment_end_before_their_host_is_let_in(shared: tuple[HostHandle, int]) -> None:
    _, port = shared
    async with Desk(port, job="old") as desk:
        host = await desk.host()
        old, kept = await host.start(order("a-1", idle, job="old")), await host.start(order("b-1", idle, keep=True))
    async with Desk(port, job="old") as desk:
        host = await desk.host()
        assert host.members == {"a-1": old, "b-1": kept}
    async with Desk(port, job="new") as desk:
        host = await desk.host()
        assert host.members == {}
        assert await gone(old, 1.0)
        assert await gone(kept, 1.0)
        pid = await host.start(order("a-1", idle, job="new"))
        host.kill("a-1")
        assert (await desk.exit())[0] == "a-1"
        assert await gone(pid, 1.0)


async def test_last_lines_of_a_member_come_with_its_end(desk: Desk) -> None:
    host = await desk.host()
    descriptors, children = os.listdir(f"/proc/{host.pid}/fd"), children_of(host.pid)
    await host.start(order("loud-1", flood))
    member, returncode, lines = await desk.exit()
    assert (member, returncode, len(lines)) == ("loud-1", 7, 20)
    assert [int(line.split()[0]) for line in lines] == list(range(9980, 10_000))
    await host.start(order("broken-1", fail))
    member, returncode, lines = await desk.exit()
    assert (member, returncode) == ("broken-1", 1)
    assert lines[-1] == "LookupError: no such thing"
    await host.start(Order(member="missing-1", program="no.such.module:main"))
    _, returncode, lines = await desk.exit()
    assert (returncode, lines[-1]) == (1, "ModuleNotFoundError: No module named 'no'")
    assert os.listdir(f"/proc/{host.pid}/fd") == descriptors
    assert children_of(host.pid) == children


async def test_members_outlive_the_fork_server_and_others_are_started_by_the_next(desk: Desk, tmp_path: Path) -> None:
    host = await desk.host()
    before = await host.start(order("before-1", idle))
    (server,) = (
        int(pid)
        for pid in children_of(host.pid).split()
        if int(pid) != before and command_of(pid) == command_of(host.pid)
    )
    os.kill(server, signal.SIGKILL)
    pid = await host.start(order("after-1", describe, path=str(tmp_path / "told")), timeout_s=scaled(30))
    assert (await desk.exit())[:2] == ("after-1", 0)
    told = json.loads((tmp_path / "told").read_text(encoding="utf-8"))
    assert (told["descriptors"], told["leads"], pid != before) == ([], True, True)
    assert host.members == {"before-1": before}
    host.kill("before-1")
    assert (await desk.exit())[:2] == ("before-1", -9)


async def test_killed_member_takes_along_what_it_started(desk: Desk, tmp_path: Path) -> None:
    host = await desk.host()
    pid = await host.start(order("parent-1", with_child, path=str(tmp_path / "pid")))
    child = int(await text_of(tmp_path / "pid"))
    with pytest.raises(DeploymentError, match=f"parent-1 runs already, as process {pid}"):
        await host.start(order("parent-1", idle))
    os.kill(pid, signal.SIGKILL)
    await desk.exit()
    assert await gone(child, 1.0)


async def test_strangers_get_nothing(shared: tuple[HostHandle, int]) -> None:
    """Neither a controller with another token from a host process, nor a command from a controller."""
    async with Desk(shared[1], token="another") as desk:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(desk.hosts.get(), 1.2)
        with pytest.raises(DeploymentError, match="the job tokens differ"):
            await asyncio.to_thread(ask, ("127.0.0.1", shared[1]), TOKEN, StatusOf(), MetricsTold)
        silent = socket.create_connection(("127.0.0.1", shared[1]))
        silent.sendall(b"GET / HTTP/1.1\r\n\r\n")
        silent.settimeout(scaled(2))
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(silent.recv, 100) == b""
        silent.close()
    async with Desk(shared[1]) as desk:
        await desk.host()


async def test_an_order_that_is_put_in_on_the_way_is_not_obeyed(
    shared: tuple[HostHandle, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who is on the path needs no token for that: it waits for the handshake to go through."""
    async with Desk(0) as desk:
        with Relay("127.0.0.1", desk.port, port=shared[1]) as relay:
            host = await desk.host()
            put_in = order("stranger-1", note_end, path=str(tmp_path / "obeyed"), name="stranger")
            frame = pack_frame(Kind.CONTROL, pack_asked(999, HOST_ORDERS.to_json(Start(order=put_in))))
            await asyncio.to_thread(relay.inject, frame, "to_client")
            assert await asyncio.wait_for(desk.lost.get(), scaled(5)) is host
            again = await desk.host()  # by itself, and what is said now comes through
            assert again.pid == host.pid == shared[0].pid
            await again.start(order("member-1", note_end, path=str(tmp_path / "told"), name="member"))
            assert await text_of(tmp_path / "told") == "member\n"
            stopping = pack_frame(Kind.CONTROL, pack_asked(0, HOST_EVENTS.to_json(Stopping())))
            await asyncio.to_thread(relay.inject, stopping, "to_server")
            assert await asyncio.wait_for(desk.lost.get(), scaled(5)) is again
            assert not again.is_stopping
            assert "closing connection from 127.0.0.1:" in caplog.text
            assert "does not verify: on its way it was changed, put in, repeated" in caplog.text
            last = await desk.host()
            last.kill("member-1")
            await desk.exit()
        assert not (tmp_path / "obeyed").exists()


async def test_an_answer_that_is_put_in_on_the_way_is_not_believed() -> None:
    """As a piece of a pickled work, which a member on another host fetches so."""
    async with Desk(0) as desk:
        with Relay("127.0.0.1", desk.port) as relay:
            answer = pack_frame(Kind.CONTROL, pack_answered(1, "answer", {"piece": "Y29kZQ=="}))
            desk.before_answer = lambda: relay.inject(answer, "to_client")
            with pytest.raises(DeploymentError, match="cannot be trusted: record 0 does not verify"):
                await asyncio.to_thread(ask, (relay.host, relay.port), TOKEN, ReadFile(name="x", offset=0), FilePiece)


async def test_no_order_carries_the_token_and_programs_have_it_all_the_same(desk: Desk, tmp_path: Path) -> None:
    """Whoever reads what flows to other hosts would have it, and be one of the job from then on."""
    host = await desk.host()
    await host.start(replace(order("taker-1", describe, path=str(tmp_path / "told")), takes_token=True))
    await desk.exit()
    told = json.loads((tmp_path / "told").read_text(encoding="utf-8"))
    assert told["arguments"] == {"path": str(tmp_path / "told"), "token": TOKEN}


async def test_hosts_of_one_name_are_kept_apart(no_leaks: None) -> None:
    async with Desk(0) as desk:
        with BlockingLinks("test-hosts") as links:

            async def come(pid: int, space: str = "") -> PretendedHost:
                return await asyncio.to_thread(PretendedHost, desk, links, pid=pid, space=space)

            await come(1)
            host = await desk.host()
            second = await come(2)
            refused = await asyncio.to_thread(second.refusal)
            assert refused == "there is a host 'there' already: process 1; use another --name"
            third = await come(1, "another container")
            assert "process 1; use another" in await asyncio.to_thread(third.refusal)
            assert (host.is_lost, desk.hosts.empty()) == (False, True)
            await come(1)  # it came back before its loss was seen
            assert await asyncio.wait_for(desk.lost.get(), scaled(1)) is host
            assert desk.reception.hosts == {"there": await desk.host()}


async def test_command_gets_an_answer_or_says_why_not(no_leaks: None) -> None:
    async with Desk(0) as desk:
        at = ("127.0.0.1", desk.port)
        answer = await asyncio.to_thread(ask, at, TOKEN, LinesOfMembers(of="x" * 100_000), MetricsTold)
        assert answer.gateways["of"] == "x" * 100_000
        with pytest.raises(DeploymentError, match="no such stage"):
            await asyncio.to_thread(ask, at, TOKEN, ScaleStage(stage="a", replicas=1), MetricsTold)
    with pytest.raises(DeploymentError, match=r"no controller can be reached at .*refused"):
        ask(at, TOKEN, StatusOf(), MetricsTold)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        with pytest.raises(DeploymentError, match=r"did not answer within 0\.2 s"):
            ask(deaf.getsockname(), TOKEN, StatusOf(), MetricsTold, timeout_s=0.2)


async def test_killed_host_process_takes_all_members_along_and_what_they_started(
    tmp_path: Path, no_leaks: None
) -> None:
    async with Desk(0) as desk:
        handle = start_host(("127.0.0.1", desk.port), TOKEN, preload=[HERE, "no_such_module"])
        try:
            assert await handle.wait_ready() == [
                "no_such_module was not preloaded: ModuleNotFoundError: No module named 'no_such_module'"
            ]
            host = await desk.host()
            names = [order("plain-1", idle), order("kept-1", idle, keep=True), order("stopped-1", idle)]
            names.append(order("deaf-1", ignore, path=str(tmp_path / "deaf"), name="deaf"))
            names.append(order("parent-1", with_child, path=str(tmp_path / "child")))
            pids = [await host.start(one) for one in names]
            pids.append(int(await text_of(tmp_path / "child")))  # this desk ends no orphans: the guard does
            os.kill(host.members["stopped-1"], signal.SIGSTOP)
            await text_of(tmp_path / "deaf")
            os.kill(handle.pid, signal.SIGKILL)
            assert await asyncio.wait_for(desk.lost.get(), scaled(1)) is host
            assert all(await asyncio.gather(*(gone(pid, 1.0) for pid in pids)))
        finally:
            handle.abort()
        assert handle.returncode == -9


@pytest.mark.alone
async def test_stop_lets_gateways_finish_before_the_rest(tmp_path: Path, no_leaks: None) -> None:
    async with Desk(0) as desk:
        path = tmp_path / "notes"
        kinds = (("controller", note_end), ("blocks-1", note_end), ("gateway-1", finish_slowly), ("deaf-1", ignore))
        orders = [order(name, function, keep=True, path=str(path), name=name) for name, function in kinds]
        handle = start_host(("127.0.0.1", desk.port), TOKEN, preload=[HERE], members=orders, log_dir=tmp_path / "logs")
        try:
            host = await desk.host()
            assert host.members.keys() == {name for name, _ in kinds}
            await text_of(path, lines=len(kinds))
            started = time.monotonic()
            await handle.stop(grace_s=1.0)
            assert time.monotonic() - started < scaled(4.0)
            assert handle.returncode == 0
            assert host.is_stopping  # it said so, so that nobody is replaced
        finally:
            handle.abort()
        assert path.read_text(encoding="utf-8").splitlines()[len(kinds) :] == ["gateway-1", "blocks-1", "controller"]
        ends = {(await desk.exit())[:2] for _ in kinds}
        assert ends == {("gateway-1", 0), ("blocks-1", 0), ("controller", 0), ("deaf-1", -9)}
        assert {file.name for file in (tmp_path / "logs").iterdir()} == {f"{name}.log" for name, _ in kinds}


async def test_all_ends_with_the_process_that_started_it(tmp_path: Path, no_leaks: None) -> None:
    async with Desk(0) as desk:
        script = (
            "import asyncio, sys, time\n"
            "from multiworld.serving.hosts.owner.start import start_host\n"
            f"handle = start_host(('127.0.0.1', {desk.port}), {TOKEN!r}, preload=[{HERE!r}])\n"
            "print(handle.pid, flush=True)\n"
            "time.sleep(1000)\n"
        )
        user = subprocess.Popen([sys.executable, "-c", script])
        try:
            host = await desk.host()
            pid = await host.start(order("parent-1", with_child, path=str(tmp_path / "pid")))
            child = int(await text_of(tmp_path / "pid"))
        finally:
            user.kill()
            user.wait()
        assert await gone(pid, 1.0)
        assert await gone(child, 1.0)
        assert await gone(host.pid, 1.0)


@pytest.mark.alone
async def test_replicas_of_a_host_that_is_stopped_are_left_to_the_controller_for_a_while(
    tmp_path: Path, no_leaks: None
) -> None:
    async with Desk(0) as desk:
        command = [sys.executable, "-m", "multiworld.serving.hosts", f"127.0.0.1:{desk.port}", "--grace", "1.0"]
        process = subprocess.Popen([*command, "--preload", HERE], env={**os.environ, "MULTIWORLD_TOKEN": TOKEN})
        try:
            host = await desk.host()
            stopping = asyncio.Event()
            host.on_stopping = stopping.set
            path = tmp_path / "notes"
            for name in ("drained-1", "held-1"):
                await host.start(order(name, note_end, path=str(path), name=name))
            await text_of(path, lines=2)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(stopping.wait(), scaled(1.0))
            host.signal("drained-1", signal.SIGTERM)  # as one that is told to leave
            assert (await desk.exit())[:2] == ("drained-1", 0)
            assert time.monotonic() - began < 1.0
            assert (await desk.exit())[:2] == ("held-1", 0)  # when the time was over
            assert 1.0 <= time.monotonic() - began < scaled(2.0)
            assert path.read_text(encoding="utf-8").splitlines()[2:] == ["drained-1", "held-1"]
            assert await asyncio.to_thread(process.wait, scaled(5)) == 0
        finally:
            process.kill()
            process.wait()


async def test_host_process_in_the_foreground_ends_by_signals(tmp_path: Path, no_leaks: None) -> None:
    async with Desk(0) as desk:
        command = [sys.executable, "-m", "multiworld.serving.hosts", f"127.0.0.1:{desk.port}", "--name", "there"]
        process = subprocess.Popen(
            [*command, "--preload", HERE], env={**os.environ, "MULTIWORLD_TOKEN": TOKEN}, start_new_session=True
        )
        try:
            host = await desk.host()
            assert (host.name, host.pid, host.address) == ("there", process.pid, "127.0.0.1")
            path = tmp_path / "notes"
            pid = await host.start(order("gateway-1", ignore, path=str(path), name="deaf"))
            await text_of(path)
            process.send_signal(signal.SIGINT)
            with pytest.raises(DeploymentError, match="about to end"):
                await start_again_and_again(desk, host)  # until the signal was heard
            assert not await gone(pid, 0.1)
            process.send_signal(signal.SIGTERM)
            assert await gone(pid, 1.0)
            assert await asyncio.to_thread(process.wait, scaled(5)) == 130
        finally:
            process.kill()
            process.wait()
