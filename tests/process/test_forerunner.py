"""Programs written for multiworld 0.2.x run unchanged, and get right what that package got wrong."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

import multiworld.manager
from multiworld.testing import Worker, WorkerGroup, scaled, wait_until
from tests import warm_programs
from tests.bounds import KILL_S

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.timeout(scaled(180))]

PROGRAMS = Path(__file__).parent / "forerunner_programs"
BACKENDS = ["gloo", "tcp"]
FORM_S = 45.0
LEASE_S = 2.0
END_S = 45.0


def free_ports(count: int) -> list[int]:
    """Ports outside the range that the kernel gives to outgoing connections."""
    ports: list[int] = []
    first = 21_000 + os.getpid() % 8_000
    for port in range(first, first + 2_000):
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise AssertionError(f"no {count} free ports from {first}")


def start(workers: WorkerGroup, program: str, *args: str, name: str) -> Worker:
    return workers.start(PROGRAMS / program, *args, name=name, env={"PYTHONUNBUFFERED": "1"})


def await_line(worker: Worker, text: str, count: int = 1, timeout_s: float = FORM_S) -> None:
    """Wait until the worker has written ``text`` so many times."""
    wait_until(lambda: worker.stdout.count(text) >= count or worker.returncode is not None, timeout_s)
    written = worker.stdout.count(text)
    assert written >= count, f"{text!r} {written} times, not {count}, in:\n{worker.stdout}\n{worker.describe()}"


def end(worker: Worker) -> str:
    """Wait for a normal end and return what it wrote."""
    assert worker.wait(END_S) == 0, worker.describe()
    return worker.stdout


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("manager", ["WorldManager"]),
        ("communicator", ["WorldCommunicator", "BrokenWorldException"]),
        ("watchdog", ["WatchDog"]),
        ("world_manager", ["WorldManager"]),
        ("world_communicator", ["WorldCommunicator", "BrokenWorldException"]),
    ],
)
def test_the_old_import_paths_lead_to_the_same_classes(module: str, names: list[str]) -> None:
    old, new = importlib.import_module(f"multiworld.{module}"), multiworld
    for name in names:
        assert getattr(old, name) is getattr(new, name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_leader_goes_on_with_the_workers_that_are_left(backend: str, fault: signal.Signals) -> None:
    port1, port2 = free_ports(2)
    with WorkerGroup() as workers:
        options = ["--backend", backend]
        both = ["--worldinfo", f"1,0,{port1}", "--worldinfo", f"2,0,{port2}"]
        leader = start(workers, "leader.py", *options, *both, name="leader")
        first = start(workers, "leader.py", *options, "--worldinfo", f"1,1,{port1}", name="first")
        second = start(workers, "leader.py", *options, "--worldinfo", f"2,1,{port2}", name="second")
        await_line(leader, "received 20 from world1")
        first.signal(fault)
        await_line(leader, "world1 is broken: True", timeout_s=LEASE_S + KILL_S)
        assert "caught an exception: BrokenWorldException: world1 broken: lost rank 1" in leader.stdout
        await_line(leader, "from world2", leader.stdout.count("from world2") + 3)
        second.kill()
        assert "world2 is broken: True\ncleaned up\n" in end(leader)


def test_a_leader_that_is_interrupted_without_cleanup_has_left_for_its_workers() -> None:
    port1, port2 = free_ports(2)
    with WorkerGroup() as workers:
        leader = start(
            workers, "leader.py", "--worldinfo", f"1,0,{port1}", "--worldinfo", f"2,0,{port2}", name="leader"
        )
        first = start(workers, "leader.py", "--worldinfo", f"1,1,{port1}", name="first")
        second = start(workers, "leader.py", "--worldinfo", f"2,1,{port2}", name="second")
        await_line(leader, "received 10 from world2")
        leader.signal(signal.SIGINT)
        for worker in (first, second):
            output = end(worker)
            assert "broken: ended because rank 0 left" in output
            assert output.endswith("got out of the loop\ncleaned up\n")


def start_collectives(workers: WorkerGroup, backend: str, num_steps: int) -> None:
    """Five processes in two worlds of three: the first is rank 0 of both."""
    port1, port2 = free_ports(2)
    memberships = [
        [f"1,0,{port1}", f"2,0,{port2}"],
        [f"1,1,{port1}"],
        [f"1,2,{port1}"],
        [f"2,1,{port2}"],
        [f"2,2,{port2}"],
    ]
    options = ["--backend", backend, "--steps", str(num_steps)]
    for number, infos in enumerate(memberships):
        joined = [part for info in infos for part in ("--worldinfo", info)]
        start(workers, "collectives.py", *options, *joined, name=f"member{number}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_collective_is_right_in_every_world_and_a_rank_may_end_right_after_its_last(backend: str) -> None:
    with WorkerGroup() as workers:
        start_collectives(workers, backend, 20)
        outputs = [end(worker) for worker in workers.workers]
        assert all("exception" not in output for output in outputs), outputs
        assert sum(output.count(": done") for output in outputs) == 6


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_is_killed_breaks_its_world_for_all_and_no_other(backend: str) -> None:
    broken = "world1: caught an exception: world1 broken: lost rank 1, which died"
    with WorkerGroup() as workers:
        start_collectives(workers, backend, 150)
        leader, victim, neighbour, other1, other2 = workers.workers
        await_line(victim, "world1: under way")
        victim.kill()
        assert broken in end(neighbour)
        for worker in (other1, other2):
            assert end(worker).endswith("world2: done\n")
        output = end(leader)
        assert broken in output
        assert output.endswith("world2: done\n")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_broken_world_is_removed_and_initialized_again_with_a_replacement(backend: str) -> None:
    ports = free_ports(3)
    with WorkerGroup() as workers:
        common = ["--backend", backend, "--ports", *map(str, ports)]
        server = start(workers, "router.py", *common, "--lives", "2", name="server")
        members = [start(workers, "router.py", *common, "--worker", str(i), name=f"worker{i}") for i in range(3)]
        await_line(server, "served")
        for life in (1, 2):
            members[1].kill()
            await_line(server, "world1: idle and broken", life, KILL_S)
            members[1] = start(workers, "router.py", *common, "--worker", "1", name=f"replacement{life}")
            await_line(server, "world1: initialized again", life)
            await_line(members[1], "initialized")
        assert "world0: idle" not in server.stdout
        assert "world2: idle" not in server.stdout
        server.kill()
        assert "received 20; world0 broken: lost rank 0, which died" in end(members[0])


def test_a_removed_world_ends_as_left_for_its_peers_with_all_that_was_sent() -> None:
    ports = free_ports(2)
    with WorkerGroup() as workers:
        common = ["--ports", *map(str, ports)]
        server = start(workers, "router.py", *common, "--requests", "50", name="server")
        members = [start(workers, "router.py", *common, "--worker", str(i), name=f"worker{i}") for i in range(2)]
        end(server)
        for i, worker in enumerate(members):
            assert f"received 25; world{i} broken: ended because rank 0 left" in end(worker)


def test_spawned_workers_that_never_clean_up_serve_a_leader_that_kills_one() -> None:
    ports = free_ports(2)
    done = warm_programs.run(
        [sys.executable, str(PROGRAMS / "spawner.py"), "--ports", *map(str, ports)],
        capture_output=True,
        text=True,
        timeout=scaled(50),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "answers: 40, right: 40" in done.stdout, done.stdout + done.stderr


async def test_a_world_gives_its_port_back_when_it_is_removed_or_could_not_be_formed() -> None:
    (port,) = free_ports(1)
    manager = multiworld.manager.WorldManager()
    with pytest.raises(multiworld.JoinError, match=r"rank 1 of 2 did not come within .*; start it, or raise timeout_s"):
        await manager.initialize_world("world1", 0, 2, backend="tcp", port=port, timeout=1)
    await manager.initialize_world("world1", 0, 1, backend="tcp", port=port)
    manager.remove_world("world1")
    await until_free(port)
    successor = multiworld.manager.WorldManager()  # it could be another process
    await successor.initialize_world("world1", 0, 1, backend="tcp", port=port)
    successor.cleanup()
    manager.cleanup()


async def until_free(port: int) -> None:
    """A removal is over soon, but not at once."""

    def is_free() -> bool:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return sock.connect_ex(("127.0.0.1", port)) != 0

    assert await asyncio.to_thread(wait_until, is_free, FORM_S)
