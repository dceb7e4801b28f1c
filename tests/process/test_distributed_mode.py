"""Process-group mode: all functions, any-source receives, kills and ways back, forks, and every wrong use refused."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import multiworld as mw
import multiworld.distributed as dist
from multiworld.testing import Worker, WorkerGroup, scaled, wait_until
from tests import warm_programs
from tests.bounds import KILL_S
from tests.process import distributed_programs as programs
from tests.process.one_process import in_thread

pytestmark = pytest.mark.usefixtures("no_leaks")

BACKENDS = ["shm", "gloo"]


def free_url() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{sock.getsockname()[1]}"


def run_all(workers: WorkerGroup, program: Callable[..., None], size: int, *args: Any) -> list[Worker]:
    url = free_url()
    return [workers.start(program, rank, size, url, *args, name=f"rank {rank}") for rank in range(size)]


def assert_all_end(members: list[Worker]) -> None:
    for member in members:
        assert member.wait(30) == 0, member.describe()
        assert member.stderr == "", member.describe()


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_function_on_all_processes_and_on_groups(backend: str) -> None:
    with WorkerGroup() as workers:
        assert_all_end(run_all(workers, programs.everything, 3, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_lines_of_the_original_design_and_of_today(backend: str) -> None:
    with WorkerGroup() as workers:
        assert_all_end(run_all(workers, programs.original_lines, 2, backend))


LAUNCHED = """
import os, sys
import torch
import multiworld as mw
import multiworld.distributed as dist

dist.init_process_group("tcp", timeout_s=20)
rank, size = dist.get_rank(), dist.get_world_size()
turn = 0
while turn < 3:
    try:
        turn = int(dist.broadcast(torch.tensor([turn]), 0))
        if rank == 1 and turn == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" and "die" in sys.argv:
            sys.exit(3)  # and is started again
        dist.all_reduce(total := torch.ones(1))
        assert float(total) == size
        turn += 1
    except mw.WorldBrokenError:
        dist.rejoin(join_timeout_s=30)
group = dist.new_group([0, 1])
if rank < 2:
    dist.all_reduce(total := torch.ones(1), group=group)
dist.barrier()
dist.destroy_process_group()
print(f"rank {rank} of {size}: {turn} turns", flush=True)
"""


@pytest.mark.parametrize("command", ["run", "exec"])
def test_the_launcher_gives_place_and_store(tmp_path: Path, command: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(LAUNCHED)
    if command == "run":
        words = ["-m", "multiworld.run", "--nproc-per-node", "3", "--no-page", "--max-restarts", "1", str(path), "die"]
    else:
        words = [
            "-m",
            "multiworld",
            "exec",
            "-n",
            "3",
            sys.executable,
            str(path),
        ]
    done = warm_programs.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=scaled(50),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(3):
        assert f"rank {rank} of 3: 3 turns" in done.stdout


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_receives_from_three_senders_in_their_orders(backend: str) -> None:
    with WorkerGroup() as workers:
        assert_all_end(run_all(workers, programs.collect, 4, backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("victim", "again"), [(0, "rejoin"), (2, "init")])
def test_survivors_of_a_kill_come_back_with_a_replacement(backend: str, victim: int, again: str) -> None:
    """Rank 0 hosts the store; its replacement serves it again."""
    with WorkerGroup() as workers:
        url = free_url()
        members = [workers.start(programs.survive, rank, 3, url, backend, again, name=str(rank)) for rank in range(3)]
        for member in members:
            member.await_event("working", turn=1)
        killed_at = members[victim].kill()
        replacement = workers.start(programs.survive, victim, 3, url, backend, again, name="replacement")
        replacement_starts_working_with(members, victim, killed_at)
        members[victim] = replacement
        for member in members:
            member.await_event("done")
        assert_all_end_but_for_what_they_log(members)


def replacement_starts_working_with(members: list[Worker], victim: int, killed_at: float) -> None:
    for rank, member in enumerate(members):
        if rank != victim:
            broken = member.await_event("broken")
            assert (broken["error"], broken["rank"]) == ("PeerDiedError", victim)
            assert broken.at - killed_at < KILL_S


def assert_all_end_but_for_what_they_log(members: list[Worker]) -> None:
    for member in members:
        assert member.wait(30) == 0, member.describe()


def test_groups_break_and_stand_one_by_one() -> None:
    with WorkerGroup() as workers:
        url = free_url()
        members = [workers.start(programs.groups_apart, rank, 3, url, "tcp", name=str(rank)) for rank in range(3)]
        for member in members:
            member.await_event("ready")
        members[2].kill()
        for member in members[:2]:
            member.await_event("apart")
        members[2] = workers.start(programs.replace_in_groups_apart, 2, 3, url, "tcp", name="replacement")
        assert_all_end_but_for_what_they_log(members)


def test_processes_that_mean_different_groups_learn_it_at_once() -> None:
    with WorkerGroup() as workers:
        assert_all_end(run_all(workers, programs.disagree, 3, "tcp"))


def test_a_forked_child_is_told_and_harms_nothing() -> None:
    with WorkerGroup() as workers:
        members = run_all(workers, programs.forks, 2, "tcp")
        for member in members:
            member.await_event("parent went on")
        assert_all_end(members)


def test_the_environment_says_where_and_who() -> None:
    with WorkerGroup() as workers:
        port = free_url().rpartition(":")[2]
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
        members = [workers.start(programs.by_environment, env={**env, "RANK": str(rank)}) for rank in range(2)]
        assert [member.await_event("sum")["value"] for member in members] == [1, 1]
        assert_all_end(members)


# ---- in this process, alone: what is refused


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("tcp", free_url(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


OPERATIONS: list[Callable[[], object]] = [
    dist.get_rank,
    dist.get_world_size,
    dist.get_num_processes,
    dist.get_backend,
    dist.get_process_group_ranks,
    lambda: dist.get_group_rank(None, 0),
    lambda: dist.get_global_rank(None, 0),
    lambda: dist.send(torch.ones(1), 1),
    lambda: dist.recv(torch.ones(1)),
    lambda: dist.isend(torch.ones(1), 1),
    lambda: dist.irecv(torch.ones(1), 1),
    lambda: dist.send_tensors([torch.ones(1)], 1),
    lambda: dist.recv_tensors(1),
    lambda: dist.isend_tensors([torch.ones(1)], 1),
    lambda: dist.irecv_tensors(1),
    lambda: dist.broadcast(torch.ones(1), 0),
    lambda: dist.all_reduce(torch.ones(1)),
    lambda: dist.reduce(torch.ones(1), 0),
    lambda: dist.all_gather([torch.ones(1)], torch.ones(1)),
    lambda: dist.gather(torch.ones(1), [torch.ones(1)]),
    lambda: dist.scatter(torch.ones(1), [torch.ones(1)]),
    lambda: dist.reduce_scatter(torch.ones(1), [torch.ones(1)]),
    lambda: dist.all_to_all([torch.ones(1)], [torch.ones(1)]),
    dist.barrier,
    lambda: dist.recv(1),
    lambda: dist.all_gather_into_tensor(torch.ones(1), torch.ones(1)),
    lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(1), 1)]),
    lambda: dist.new_subgroups(1),
    dist.new_group,
    dist.rejoin,
    dist.destroy_process_group,
]


def test_nothing_works_before_and_nothing_after() -> None:
    assert not dist.is_initialized()
    for operation in OPERATIONS:
        with pytest.raises(RuntimeError, match=r"call init_process_group\(\)"):
            operation()
    dist.init_process_group("tcp", free_url(), rank=0, world_size=1)
    group = dist.new_group()
    dist.destroy_process_group()
    for operation in OPERATIONS:
        with pytest.raises(RuntimeError, match=r"the process group was destroyed: call init_process_group\(\) again"):
            operation()
    with pytest.raises(RuntimeError, match=r"the process group was destroyed"):
        dist.get_rank(group)
    dist.init_process_group("tcp", free_url(), rank=0, world_size=1)
    with pytest.raises(RuntimeError, match=r"the process group was destroyed"):
        dist.barrier(group)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_second_init_is_refused_and_the_first_stands() -> None:
    with pytest.raises(RuntimeError, match=r"there is a process group already: call destroy_process_group\(\) first"):
        dist.init_process_group("tcp", free_url(), rank=0, world_size=1)
    dist.barrier()


def test_one_thread_at_a_time_may_init_and_one_that_fails_leaves_nothing() -> None:
    url = free_url()
    first = in_thread(lambda: dist.init_process_group("tcp", url, rank=0, world_size=2, join_timeout_s=scaled(1)))

    def refused() -> bool:
        try:
            dist.init_process_group("tcp", url, rank=0, world_size=2)
        except RuntimeError as error:
            return "init_process_group() is under way in another thread" in str(error)
        raise AssertionError("a second one was begun")

    assert wait_until(refused, 5)
    with pytest.raises(mw.JoinTimeoutError, match="rank"):
        first.result()
    assert not dist.is_initialized()
    dist.init_process_group("tcp", url, rank=0, world_size=1)
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"init_method": "file:///x"}, ValueError, "expected 'env://' or 'tcp://HOST:PORT'"),
        ({"init_method": "tcp://127.0.0.1:1"}, ValueError, "needs rank=: only 'env://' reads the environment"),
        ({"init_method": "tcp://127.0.0.1:1", "rank": 0}, ValueError, "needs world_size="),
        ({"init_method": "tcp://127.0.0.1", "rank": 0, "world_size": 1}, ValueError, "expected tcp://HOST:PORT"),
        ({"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1}, ValueError, "port 0 names no store"),
        ({"init_method": "tcp://127.0.0.1:1", "rank": 2, "world_size": 2}, ValueError, "rank=2 is out of range"),
        ({"init_method": "tcp://127.0.0.1:1", "rank": "0", "world_size": 2}, TypeError, "rank must be an int"),
        ({"backend": "carrier", "init_method": "tcp://127.0.0.1:1", "rank": 0, "world_size": 1}, ValueError, "carrier"),
        ({}, ValueError, "reads MASTER_ADDR from the environment, where it is not set"),
        ({"timeout_s": 0, "init_method": "tcp://127.0.0.1:1", "rank": 0, "world_size": 1}, ValueError, "timeout_s"),
        ({"join_timeout_s": -1, "init_method": "tcp://127.0.0.1:1", "rank": 0, "world_size": 1}, ValueError, "-1"),
        ({"lease_s": 0.0, "init_method": "tcp://127.0.0.1:1", "rank": 0, "world_size": 1}, ValueError, "lease_s"),
    ],
)
def test_init_refuses_what_makes_no_sense_and_may_be_tried_again(
    options: dict[str, Any], kind: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(kind) as caught:
        dist.init_process_group(**options)
    assert text in str(caught.value)
    assert not dist.is_initialized()


@pytest.mark.usefixtures("alone")
def test_groups_refuse_what_makes_no_sense() -> None:
    for ranks, kind, text in (
        ([], ValueError, "ranks=[]: a group has at least one member"),
        ([0, 0], ValueError, "ranks=[0, 0]: a rank is named twice"),
        ([1], ValueError, "ranks=[1]: 1 is not one of the ranks 0 to 0"),
        (["0"], TypeError, "holds '0'"),
        ([True], TypeError, "holds True"),
        ("0", TypeError, "ranks must be a list of ranks (ints), got '0'"),
        (0, TypeError, "ranks must be a list of ranks (ints), got 0"),
    ):
        with pytest.raises(kind) as caught:
            dist.new_group(ranks)  # type: ignore[arg-type]
        assert text in str(caught.value)
    with pytest.raises(ValueError, match="timeout_s must be a positive number"):
        dist.new_group(timeout_s=-1)
    for wrong in (0, "world", torch.distributed.group):
        with pytest.raises(TypeError, match=r"group must be what new_group\(\) returned, or None"):
            dist.barrier(wrong)  # type: ignore[arg-type]
    group = dist.new_group([0])
    dist.destroy_process_group(group)
    for again in (dist.barrier, dist.get_rank, dist.destroy_process_group):
        with pytest.raises(RuntimeError, match=r"this group was destroyed: make another with new_group\(\)"):
            again(group)
    dist.barrier()


@pytest.mark.usefixtures("alone")
def test_operations_refuse_what_makes_no_sense() -> None:
    one = torch.ones(1)
    cases: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: dist.send(one, 1), ValueError, "dst=1 is not in this group: its ranks are [0]"),
        (lambda: dist.send(one, 0), ValueError, "dst=0 is this process itself"),
        (lambda: dist.recv(one, True), TypeError, "src must be a rank (int), got True"),
        (lambda: dist.recv(one), ValueError, "has no other rank to receive from"),
        (lambda: dist.broadcast(one, None), TypeError, "src must be a rank (int), got None"),  # type: ignore[arg-type]
        (lambda: dist.reduce(one, -1), ValueError, "dst=-1 is not in this group"),
        (lambda: dist.all_reduce("x"), TypeError, "tensor must be a tensor, got str"),  # type: ignore[arg-type]
        (lambda: dist.all_reduce(one, dist.ReduceOp.BAND), TypeError, "BAND"),
        (lambda: dist.all_gather([], one), ValueError, "tensor_list holds 0 tensors, but the world has 1 ranks"),
        (lambda: dist.gather(one), ValueError, "gather_list is missing"),
        (lambda: dist.scatter(one), ValueError, "scatter_list is missing"),
        (lambda: dist.barrier(timeout_s=0), ValueError, "timeout_s must be a positive number"),
        (lambda: dist.barrier(timeout_s=math.nan), ValueError, "timeout_s must be a positive number"),
    ]
    for call, kind, text in cases:
        with pytest.raises(kind) as caught:
            call()
        assert text in str(caught.value), caught.value
    dist.all_reduce(one, timeout_s=math.inf)
    assert float(one) == 1.0


def test_a_group_has_a_deadline_for_operations_that_set_none() -> None:
    url = free_url()
    other: list[mw.World] = []
    manager = mw.WorldManager(job="process-group")
    joining = threading.Thread(target=lambda: other.append(manager.blocking.join("default", 1, 2, url, "tcp")))
    joining.start()
    dist.init_process_group("tcp", url, rank=0, world_size=2, timeout_s=0.05)
    joining.join()
    for call in (lambda: dist.recv(torch.ones(1), 1), lambda: dist.irecv(torch.ones(1)).wait(), dist.barrier):
        with pytest.raises(mw.OperationTimeoutError, match=r"deadline of 0\.05 s"):
            call()
    with pytest.raises(mw.OperationTimeoutError, match=r"deadline of 0\.01 s"):
        dist.recv(torch.ones(1), 1, timeout_s=0.01)
    endless = dist.irecv(torch.zeros(1), 1, timeout_s=math.inf)
    with pytest.raises(TimeoutError, match="it goes on"):
        endless.wait(0.2)
    endless.cancel()
    dist.destroy_process_group()
    manager.close()


@pytest.mark.usefixtures("alone")
def test_operations_of_other_threads_end_when_the_group_is_destroyed() -> None:
    url = free_url()
    dist.destroy_process_group()
    manager = mw.WorldManager(job="process-group")
    joining = in_thread(lambda: manager.blocking.join("default", 1, 2, url, "tcp"))
    dist.init_process_group("tcp", url, rank=0, world_size=2)
    joining.result()
    request = dist.irecv(torch.zeros(1), 1)
    waiting = [in_thread(request.wait), in_thread(dist.recv, torch.zeros(1), None, None, 5)]
    assert wait_until(lambda: len([t for t in threading.enumerate() if "_run" in t.name]) >= 2, 5)
    dist.destroy_process_group()
    for thread in waiting:
        with pytest.raises((mw.WorldClosedError, RuntimeError)):
            thread.result()
    manager.close()


def test_importing_it_changes_nothing() -> None:
    program = """
import os, signal, threading, logging
import torch
before = (dict(os.environ), threading.active_count(), list(logging.root.handlers), sorted(os.listdir("/proc/self/fd")),
          [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)])
import multiworld.distributed as dist
after = (dict(os.environ), threading.active_count(), list(logging.root.handlers), sorted(os.listdir("/proc/self/fd")),
         [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)])
assert before == after, (before, after)
assert not dist.is_initialized() and not torch.distributed.is_initialized()
assert not [name for name in dist.__all__ if not hasattr(dist, name)]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
