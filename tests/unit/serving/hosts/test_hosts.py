"""The parts of a host process that need no process: orders, back-off, lines, proofs, handles, files."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import resource
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from multiworld.errors import MessageError
from multiworld.process.link import CallRefusedError, ControlLink, LinkLostError
from multiworld.process.logs.console import LossyConsole, open_consoles
from multiworld.process.logs.lines import Labeller
from multiworld.process.spawn import seqpacket
from multiworld.serving.control.client import deployment_file
from multiworld.serving.control.client.deployment_file import (
    DeploymentFile,
    deployments_dir,
    find_deployment,
    list_deployments,
)
from multiworld.serving.errors import DeploymentError, HostExhaustedError
from multiworld.serving.hosts.host import Host
from multiworld.serving.hosts.messages import (
    HOST_ORDERS,
    Exited,
    Hello,
    HostEvent,
    HostOrder,
    Restarted,
    Start,
    Started,
    Stop,
)
from multiworld.serving.hosts.options import HostOptions
from multiworld.serving.hosts.order import Order
from multiworld.serving.hosts.owner.line import OwnerLine, Ready
from multiworld.serving.hosts.signals import Signals
from multiworld.serving.member.exit_status import Ending
from multiworld.wire.messages import decode, encode
from multiworld.wire.progress.operation import Operation
from multiworld.wire.progress.thread import ProgressThread
from multiworld.world.processes.restarts import Restarts

AT = ("127.0.0.1", 4711)
HELLO = Hello(host="h", address="10.0.0.1", pid=7, capacity=2, members={"a-1": 8})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"member": "", "program": "m:f"}, "a member's name"),
        ({"member": "a\nb", "program": "m:f"}, "a member's name"),
        ({"member": "a", "program": "m.f"}, "program must be 'module:function'"),
        ({"member": "a", "program": "m:f; print(1)"}, "program must be 'module:function'"),
        ({"member": "a", "program": "m:f", "threads": 0}, "threads must be"),
        ({"member": "a", "program": "m:f", "env": {"A": 1}}, "env must map"),
    ],
)
def test_order_that_means_nothing_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises((ValueError, TypeError), match=reason):
        Order(**fields)


def test_order_survives_the_way() -> None:
    order = Order(member="gateway-1", program="a.b:main", arguments={"x": [1, None]}, env={"A": "b"}, keep=True)
    assert HOST_ORDERS.decode(HOST_ORDERS.encode(Start(order=order))) == Start(order=order)


def test_gateways_end_first_and_the_controller_last() -> None:
    names = ["controller", "blocks-2", "gateway-12", "gateway"]
    phases = {name: Order(member=name, program="m:f").phase for name in names}
    assert phases == {"gateway-12": 0, "blocks-2": 1, "gateway": 1, "controller": 2}
    assert Order(member="blocks-1", program="m:f", phase=0).phase == 0


def test_options_survive_the_way() -> None:
    options = HostOptions(
        address=AT,
        token="t",
        name="here",
        preload=("a", "b"),
        members=(Order(member="m", program="m:f"),),
        paths=("/",),
    )
    assert decode(HostOptions, encode(options)) == options


@pytest.mark.parametrize("changes", [{"name": ""}, {"address": ("h", 0)}, {"grace_s": -1.0}])
def test_options_that_mean_nothing_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        HostOptions(**{"address": AT, "token": "t", "name": "here", **changes})


def test_first_restart_is_at_once_and_crash_loops_wait_up_to_5_s() -> None:
    restarts = Restarts()
    assert [restarts.ended(0.0) for _ in range(9)] == pytest.approx([0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    assert restarts.ended(10.0) == 0.0
    assert [restarts.ended(9.9) for _ in range(2)] == [0.0, 0.1]


class OwnerLineTest:
    """A host's end of the line to its owner, whose loop turns when the test wants; the owner's end is ``ours``."""

    def __init__(self) -> None:
        self.ours, theirs = seqpacket.connected_pair()
        self.told: list[object] = []
        self.loop = ProgressThread("multiworld-host", starts=False)
        self.line = OwnerLine(self.loop, theirs, on_stop=self.told.append, on_lost=lambda: self.told.append("lost"))

    def send(self, *messages: bytes) -> list[object]:
        for message in messages:
            seqpacket.send(self.ours, message)
            self.loop._turn()
        return self.told

    def __enter__(self) -> OwnerLineTest:
        return self

    def __exit__(self, *_: object) -> None:
        self.ours.close()
        self.loop.close()


@pytest.mark.parametrize("ready", [Ready(pid=1, warnings=("x\ny",)), Ready(pid=2), Ready(pid=3, warnings=("ü", ""))])
def test_an_owner_gets_what_its_host_says_as_it_was_said(ready: Ready) -> None:
    with OwnerLineTest() as test:
        test.line.say(ready)
        assert decode(Ready, test.ours.recv(1 << 20)) == ready


def test_a_host_is_stopped_by_its_owner_and_sees_its_end() -> None:
    with OwnerLineTest() as test:
        assert test.send(encode(Stop(grace_s=2.0)), encode(Stop(grace_s=0.5))) == [2.0, 0.5]
        test.ours.close()
        test.loop._turn()
        assert test.told == [2.0, 0.5, "lost"]


@pytest.mark.parametrize("message", [b"GET / HTTP/1.1", b"[1]", b"\n", b"\xff", b"[" * 60_000, b"{}"])
def test_an_owner_that_says_what_is_no_order_is_lost(message: bytes) -> None:
    with OwnerLineTest() as test:
        assert test.send(message) == ["lost"]
        test.line.say(Ready(pid=1))  # does no harm
        test.loop.call_soon(lambda: None)  # so that the turn does not wait
        test.loop._turn()
        assert test.told == ["lost"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"do": "start", "order": {"member": "", "program": "m:f"}}, "'start' is refused: order: a member's name"),
        ({"do": "start", "order": {"member": "a"}}, "'start' is refused: order"),
        ({"do": "signal", "member": "a"}, "'signal' is refused: signum"),
        ({"do": "dance"}, "'dance' is refused: do"),
    ],
)
def test_an_order_that_does_not_decode_is_refused_with_its_kind_and_field(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        HOST_ORDERS.from_json(fields)


class FakeLink:
    """Keeps what a handle says, and answers as the test wants."""

    def __init__(self) -> None:
        self.told: list[HostOrder] = []
        self.asked: list[tuple[HostOrder, Operation[Any]]] = []
        self.is_aborted = False

    def tell(self, order: HostOrder) -> bool:
        if not self.is_aborted:
            self.told.append(order)
        return not self.is_aborted

    def ask(self, order: HostOrder, answer: type[Any]) -> Operation[Any]:
        self.asked.append((order, Operation()))
        return self.asked[-1][1]

    def abort(self) -> None:
        self.is_aborted = True


def handle() -> tuple[Host, FakeLink]:
    link = FakeLink()
    return Host(HELLO, cast("ControlLink[HostOrder, HostEvent]", link)), link


async def test_handle_tells_what_became_of_each_order() -> None:
    host, link = handle()
    starts = [asyncio.ensure_future(host.start(Order(member=f"b-{n}", program="m:f"))) for n in (1, 2, 3)]
    await asyncio.sleep(0)
    answers = [answer for _, answer in link.asked]
    answers[1].fail(CallRefusedError("no memory", "HostExhaustedError"))
    answers[0].succeed(Started(pid=11))
    assert await starts[0] == 11
    with pytest.raises(HostExhaustedError, match="host h: no memory"):
        await starts[1]
    assert host.members == {"a-1": 8, "b-1": 11}
    told: list[Any] = []
    host.on_exit = lambda *end: told.append(end)
    host.on_started = lambda *start: told.append(start)
    host.on_lost = lambda: told.append("lost")
    host.take(Exited(member="a-1", pid=8, returncode=-9, last_lines=("x",), executing=("0a",)))
    host.take(Restarted(member="a-1", pid=12))
    answers[2].fail(LinkLostError("closed"))  # as the link does when it is lost
    host.lose()
    host.lose()
    assert told == [("a-1", Ending(-9, ["x"], ["0a"])), ("a-1", 12), "lost"]
    with pytest.raises(ConnectionError):
        await starts[2]
    host.kill("a-1")
    assert (len(link.asked), link.told) == (3, [])  # nobody is there to be told
    await host.stop()


async def test_start_that_is_not_answered_ends_in_time() -> None:
    host, link = handle()
    with pytest.raises(TimeoutError, match=r"host h did not start b-1 within 0\.01 s"):
        await host.start(Order(member="b-1", program="m:f"), timeout_s=0.01)
    link.asked[0][1].succeed(Started(pid=13))
    assert host.members["b-1"] == 13, "it came late, and is known all the same"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "serve"


def test_deployment_is_found_while_it_runs(folder: Path) -> None:
    assert list_deployments(folder) == []
    with DeploymentFile.claim("one", AT, "secret", folder=folder) as file:
        assert file.path.stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
        assert find_deployment(folder=folder) == find_deployment("one", folder=folder) == file.record
        with pytest.raises(DeploymentError, match=f"'one' runs already, as process {os.getpid()}"):
            DeploymentFile.claim("one", AT, "secret", folder=folder)
        with pytest.raises(DeploymentError, match=r"no deployment 'two' runs .* there are: one"):
            find_deployment("two", folder=folder)
        with DeploymentFile.claim("two", AT, "secret", folder=folder):
            assert [record.name for record in list_deployments(folder)] == ["one", "two"]
            with pytest.raises(DeploymentError, match="one, two"):
                find_deployment(folder=folder)
    with pytest.raises(DeploymentError, match="no deployment of this user runs"):
        find_deployment(folder=folder)
    assert not file.path.exists()


def test_two_deployments_do_not_answer_at_one_address(folder: Path) -> None:
    def claim(name: str, host: str, port: int) -> DeploymentFile:
        return DeploymentFile.claim(name, AT, "secret", http=(host, port), folder=folder)

    with claim("one", "127.0.0.1", 8000):
        for host in ("127.0.0.1", "0.0.0.0"):
            with pytest.raises(DeploymentError, match=f"'one', process {os.getpid()}, answers at .*:8000 already"):
                claim("two", host, 8000)
        claim("two", "127.0.0.1", 8001).remove()
        claim("two", "127.0.0.2", 8000).remove()
    claim("two", "127.0.0.1", 8000).remove()


@pytest.mark.parametrize("stale", [{"start_time": 1}, {"pid": 2**22 + 1}])
def test_file_of_a_process_that_is_gone_is_replaced(folder: Path, stale: dict[str, int]) -> None:
    file = DeploymentFile.claim("one", AT, "secret", folder=folder)
    file.path.write_text(json.dumps({**json.loads(file.path.read_text(encoding="utf-8")), **stale}), encoding="utf-8")
    assert list_deployments(folder) == []
    new = DeploymentFile.claim("one", AT, "new", folder=folder)
    file.remove()  # not the other's
    assert find_deployment(folder=folder).token == "new"
    new.remove()
    new.remove()
    (folder / "one.json").write_text("rubbish", encoding="utf-8")
    DeploymentFile.claim("one", AT, "secret", folder=folder).remove()


def rewritten(file: DeploymentFile, *without: str, **more: Any) -> None:
    """Change what it says, as another version would have written it; its process holds it on."""
    written = json.loads(file.path.read_text(encoding="utf-8")) | more
    file.path.write_text(json.dumps({name: written[name] for name in written.keys() - set(without)}), encoding="utf-8")


def test_a_deployment_of_another_version_is_found_if_it_can_be_read(folder: Path) -> None:
    file = DeploymentFile.claim("one", AT, "secret", folder=folder)
    rewritten(file, "http", "works", "process_space", "network_space")  # as of an older one
    found = find_deployment("one", folder=folder)
    assert (found.address, found.token, found.is_running) == (AT, "secret", True)
    with pytest.raises(DeploymentError, match="'one' runs already, as process"):
        DeploymentFile.claim("one", AT, "secret", folder=folder)
    rewritten(file, of_a_later_version=[1])
    assert find_deployment(folder=folder).token == "secret"
    os.close(file._descriptor)


@pytest.mark.parametrize(
    ("without", "more"),
    [("token", {}), ("address", {}), ("started", {}), ("", {"pid": "x"}), ("", {"address": ["x", 1]})],
)
def test_a_deployment_of_another_version_that_cannot_be_read_is_named(
    folder: Path, without: str, more: dict[str, Any]
) -> None:
    file = DeploymentFile.claim("one", AT, "secret", folder=folder)
    rewritten(file, without, **more)
    for name in (None, "one"):
        with pytest.raises(
            DeploymentError, match=r"another version of multiworld .*one\.json\. Use that version, or end"
        ):
            find_deployment(name, folder=folder)
    with pytest.raises(DeploymentError, match=r"no deployment of this user runs .*\)$"):
        find_deployment("two", folder=folder)
    with pytest.raises(DeploymentError, match="'one' of another version of multiworld runs already"):
        DeploymentFile.claim("one", AT, "secret", folder=folder)
    os.close(file._descriptor)  # it ends
    DeploymentFile.claim("one", AT, "secret", folder=folder).remove()


def test_a_deployment_of_another_container_keeps_its_name_as_long_as_it_lives(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment_file, "process_space", lambda: "there")
    file = DeploymentFile.claim("one", AT, "secret", http=("127.0.0.1", 8000), folder=folder)
    gone = json.loads(file.path.read_text(encoding="utf-8")) | {"name": "gone"}
    (folder / "gone.json").write_text(json.dumps(gone), encoding="utf-8")  # nobody holds it
    monkeypatch.setattr(deployment_file, "process_space", lambda: "here")
    with pytest.raises(DeploymentError, match=f"'one' runs already, as process {os.getpid()} of another container"):
        DeploymentFile.claim("one", AT, "secret", folder=folder)
    with pytest.raises(DeploymentError, match="answers at"):
        DeploymentFile.claim("two", AT, "secret", http=("0.0.0.0", 8000), folder=folder)
    assert list_deployments(folder) == [file.record]
    monkeypatch.setattr(deployment_file, "network_space", lambda: "there")
    assert list_deployments(folder) == []
    DeploymentFile.claim("two", AT, "secret", http=("0.0.0.0", 8000), folder=folder).remove()
    assert [path.name for path in folder.glob("*.json")] == ["one.json"]
    file.remove()
    DeploymentFile.claim("one", AT, "secret", folder=folder).remove()


def test_what_a_deployment_that_was_killed_left_behind_is_removed(folder: Path, tmp_path: Path) -> None:
    works = [tmp_path / name for name in ("multiworld-serving-one", "multiworld-serving-two", "other")]
    for place in works:
        (place / "works").mkdir(parents=True)
    files = [
        DeploymentFile.claim(name, AT, "secret", works=place, folder=folder)
        for name, place in zip(("one", "two", "three"), works, strict=True)
    ]
    for file in (files[0], files[2]):  # which are no more
        fields = json.loads(file.path.read_text(encoding="utf-8"))
        file.path.write_text(json.dumps({**fields, "start_time": 1}), encoding="utf-8")
    with DeploymentFile.claim("four", AT, "secret", folder=folder):
        assert [path.name for path in sorted(folder.glob("*.json"))] == ["four.json", "two.json"]
        assert [place.exists() for place in works] == [False, True, True]  # the last is no folder of ours
    files[1].remove()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    folder = tmp_path / "file" / "multiworld" / "serve"
    with pytest.raises(DeploymentError, match=r"serve cannot be used: Not a directory\. Set XDG_RUNTIME_DIR"):
        DeploymentFile.claim("one", AT, "secret", folder=folder)
    assert list_deployments(folder) == []


def test_a_folder_that_is_full_is_named_and_nothing_is_left_in_it(folder: Path) -> None:
    DeploymentFile.claim("one", AT, "secret", folder=folder).remove()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(DeploymentError, match=r"cannot be used: File too large\. Set XDG_RUNTIME_DIR"):
            DeploymentFile.claim("one", AT, "secret", folder=folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in folder.iterdir()] == [".lock"]


@pytest.mark.parametrize("signum", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_is_ignored_stays_so(signum: signal.Signals) -> None:
    before = signal.signal(signum, signal.SIG_IGN)
    try:
        signals = Signals()
        assert signal.getsignal(signum) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        signals.close()
        signals.close_descriptor()
        assert signal.getsignal(signum) == signal.SIG_IGN
        signal.signal(signum, signal.SIG_DFL)
        signals = Signals()
        assert signal.getsignal(signum) != signal.SIG_DFL
        signals.close()
        signals.close_descriptor()
    finally:
        signal.signal(signum, before)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".lock", "-x"])
def test_name_that_is_no_file_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match="a deployment's name"):
        DeploymentFile.claim(name, AT, "secret", folder=folder)


def test_folder_that_others_may_use_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    folder.chmod(0o770)
    with pytest.raises(DeploymentError, match="cannot be trusted"):
        DeploymentFile.claim("one", AT, "secret", folder=folder)
    folder.chmod(0o750)
    with pytest.raises(DeploymentError, match="can be read by others"):
        list_deployments(folder)
    folder.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(DeploymentError, match="cannot be trusted"):
        list_deployments(folder)


def test_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    assert deployments_dir() == Path("/run/user/1/multiworld/serve")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert deployments_dir() == Path(f"/tmp/multiworld-{os.geteuid()}/serve")


def test_console_that_nobody_reads_holds_up_nobody(no_leaks: None) -> None:
    read_fd, write_fd = os.pipe()
    loop = ProgressThread("multiworld-host", starts=False)
    with open(write_fd, "w", encoding="utf-8") as stream:
        console, same = open_consoles(loop, stream, stream, LossyConsole)
        assert console is same
        label, line = Labeller(b"[m] "), b"x" * 1023 + b"\n"
        for _ in range(3000):
            console.show(label, line)
        assert not console.is_full
        taken = _drain(loop, read_fd, lambda: console.owes)
        console.show(label, b"again\n")
        taken += _drain(loop, read_fd, lambda: console.owes)
        console.close()
    os.close(read_fd)
    loop.close()
    assert 1024 * 1024 < len(taken) < 2 * 1024 * 1024
    assert taken.endswith(b"bytes were not shown, because nobody read this output\n[m] again\n")


def _drain(loop: ProgressThread, fd: int, owes: Callable[[], bool]) -> bytes:
    taken = b""
    while owes() or select.select([fd], [], [], 0)[0]:
        taken += os.read(fd, 65536)
        loop.call_soon(lambda: None)  # so that the turn does not wait
        loop._turn()
    return taken


class Once:
    """Registered for one descriptor; ``then`` is called when something comes."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then, self.count = then, 0

    def on_ready(self, events: int) -> None:
        self.count += 1
        self.then()

    def on_failure(self, error: BaseException) -> None:
        raise error

    def close_descriptor(self) -> None:
        pass


def test_what_came_for_a_descriptor_that_was_closed_meanwhile_is_nobody_elses() -> None:
    loop = ProgressThread("multiworld-host", starts=False)
    ends = [os.pipe() for _ in range(2)]
    newcomer = Once(lambda: None)
    handlers: list[Once] = []

    def exchange(other: int) -> None:
        loop.unregister(other)
        loop.register(other, select.EPOLLIN, newcomer)  # as if the number had been given again

    for index in range(2):
        other = ends[1 - index][0]
        handlers.append(Once(functools.partial(exchange, other)))
        loop.register(ends[index][0], select.EPOLLIN, handlers[index])
        os.write(ends[index][1], b"x")
    loop._turn()
    assert (handlers[0].count + handlers[1].count, newcomer.count) == (1, 0)
    loop.close()
    for pair in ends:
        for fd in pair:
            os.close(fd)
