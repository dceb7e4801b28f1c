"""Programs in process-group mode: each runs in every process of a job, checks what it gets, and reports."""

from __future__ import annotations

import multiprocessing
import os
import threading
from datetime import timedelta
from typing import Any

import torch

import multiworld as mw
import multiworld.distributed as dist
from multiworld.testing.worker import report, wait_command

LARGE = 200_000  # float32
COUNT = 60


def start(rank: int, size: int, url: str, backend: str, **options: Any) -> None:
    dist.init_process_group(backend, url, rank=rank, world_size=size, **options)
    assert dist.is_initialized()


def end() -> None:
    """Leave together, with time enough on a busy machine for what was sent last."""
    dist.barrier()
    dist.destroy_process_group(timeout_s=20.0)


def everything(rank: int, size: int, url: str, backend: str) -> None:
    """Three processes; each function once."""
    start(rank, size, url, backend, timeout_s=30.0)
    assert (dist.get_rank(), dist.get_world_size(), dist.get_num_processes()) == (rank, 3, 3)
    assert dist.get_backend() == backend
    following, previous = (rank + 1) % 3, (rank - 1) % 3

    sent = dist.isend(torch.full((4,), float(rank)), following)
    tensor = torch.empty(4)
    assert dist.recv(tensor, previous) == previous
    sent.wait()
    assert sent.is_completed()
    assert tensor.tolist() == [float(previous)] * 4
    coming = dist.irecv(tensor, previous, tag=3)
    anything = dist.irecv(other := torch.empty(LARGE), tag=4)
    dist.send(torch.full((4,), rank + 10.0), following, tag=3)
    large = dist.isend(torch.full((LARGE,), rank + 20.0), following, tag=4)
    assert (coming.wait(), anything.wait(), large.wait()) == (previous, previous, None)
    assert (float(tensor[0]), float(other[-1])) == (previous + 10.0, previous + 20.0)
    later = dist.irecv_tensors(previous)
    dist.send_tensors({"rank": torch.tensor(rank)}, following)
    payload = later.wait()
    assert isinstance(payload, dict)
    assert int(payload["rank"]) == previous
    dist.isend_tensors([torch.tensor(rank)], following).wait()
    assert [int(part) for part in dist.recv_tensors(previous)] == [previous]

    collectives(rank, None, [0, 1, 2])
    for ranks in ([0, 2], [2, 1], [1]):
        group = dist.new_group(ranks)
        if rank not in ranks:
            assert group is dist.GroupMember.NON_GROUP_MEMBER
            assert (dist.get_rank(group), dist.get_world_size(group)) == (-1, -1)
            refuses(ValueError, "this process is not in that group", dist.barrier, group)
        else:
            assert isinstance(group, dist.ProcessGroup)
            in_group(rank, group, sorted(ranks))
        dist.destroy_process_group(group)
    everyone = dist.new_group()
    assert isinstance(everyone, dist.ProcessGroup)
    collectives(rank, everyone, [0, 1, 2])
    collectives(rank, dist.GroupMember.WORLD, [0, 1, 2])
    end()
    assert not dist.is_initialized()
    refuses(RuntimeError, "the process group was destroyed: call init_process_group() again", dist.barrier)
    refuses(RuntimeError, "the process group was destroyed", dist.barrier, everyone)


def in_group(rank: int, group: dist.ProcessGroup, ranks: list[int]) -> None:
    place = ranks.index(rank)
    assert (dist.get_rank(group), dist.get_world_size(group)) == (place, len(ranks))
    assert dist.get_process_group_ranks(group) == ranks
    assert dist.get_group_rank(group, rank) == place
    assert dist.get_global_rank(group, place) == rank
    collectives(rank, group, ranks)
    if len(ranks) > 1:
        other = ranks[1 - place]
        request = dist.isend(torch.tensor([rank]), other, group)
        tensor = torch.tensor([-1])
        assert dist.recv(tensor, None, group) == other
        assert dist.irecv(tensor, other, group, 1).cancel()
        request.wait()
        assert int(tensor) == other
    outsider = next(other for other in range(3) if other not in ranks)
    shown = f"is not in this group: its ranks are {ranks}"
    refuses(ValueError, f"dst={outsider} {shown}", dist.send, torch.ones(1), outsider, group)
    refuses(ValueError, f"src={outsider} {shown}", dist.broadcast, torch.ones(1), outsider, group)
    refuses(ValueError, f"global_rank={outsider} {shown}", dist.get_group_rank, group, outsider)
    refuses(ValueError, f"src={rank} is this process itself", dist.recv, torch.ones(1), rank, group)
    refuses(ValueError, "the group's own ranks are 0 to", dist.get_global_rank, group, 3)
    dist.barrier(group)  # whoever leaves ends it


def collectives(rank: int, group: Any, ranks: list[int]) -> None:
    size, root = len(ranks), ranks[-1]
    mine = torch.tensor([float(rank)])
    everyone = [torch.tensor([float(other)]) for other in ranks]
    total = float(sum(ranks))

    def empty() -> list[torch.Tensor]:
        return [torch.empty(1) for _ in ranks]

    dist.broadcast(tensor := mine.clone(), root, group)
    assert float(tensor) == root
    dist.all_reduce(tensor := mine.clone(), group=group)
    assert float(tensor) == total
    assert dist.all_reduce(tensor := mine.clone(), group=group) is tensor
    request = dist.all_reduce(tensor := mine.clone(), dist.ReduceOp.MAX, group, async_op=True)
    assert isinstance(request, dist.Request)
    request.wait()
    assert float(tensor) == root
    dist.reduce(tensor := mine.clone(), root, group=group)
    assert float(tensor) == (total if rank == root else rank)
    dist.all_gather(parts := empty(), mine, group)
    assert parts == everyone
    dist.gather(mine, parts := empty() if rank == root else None, root, group)  # type: ignore[assignment]
    assert rank != root or parts == everyone
    dist.scatter(tensor, everyone if rank == root else None, root, group)
    assert float(tensor) == rank
    dist.reduce_scatter(tensor, [mine + 10.0 * place for place in range(size)], group=group)
    assert float(tensor) == total + 10.0 * size * ranks.index(rank)
    dist.all_to_all(parts := empty(), [mine * 10 + other for other in ranks], group)
    assert [float(part) for part in parts] == [10.0 * other + rank for other in ranks]
    single_tensors(rank, group, ranks)
    dist.barrier(group)
    done = dist.barrier(group, async_op=True)
    assert done is not None
    done.wait()


def single_tensors(rank: int, group: Any, ranks: list[int]) -> None:
    size, mine = len(ranks), torch.full((2, 3), float(rank))
    for shape in ((2 * size, 3), (size, 2, 3)):
        whole = dist.all_gather_into_tensor(torch.empty(shape), mine, group)
        assert isinstance(whole, torch.Tensor)
        assert whole.view(size, -1)[:, 0].tolist() == [float(other) for other in ranks]
        part = dist.reduce_scatter_tensor(torch.empty(2, 3), whole.clone(), group=group)
        assert isinstance(part, torch.Tensor)
        assert part.tolist() == (mine * size).tolist()
    sizes = [other + 1 for other in ranks]  # what each member gets of everyone
    sent = torch.cat([torch.full((other + 1,), float(rank)) for other in ranks])
    got = dist.all_to_all_single(torch.empty(size * (rank + 1)), sent, [rank + 1] * size, sizes, group)
    assert isinstance(got, torch.Tensor)
    assert got.tolist() == [float(other) for other in ranks for _ in range(rank + 1)]
    request = dist.all_to_all_single(
        equal := torch.empty(size), torch.full((size,), float(rank)), group=group, async_op=True
    )
    assert isinstance(request, dist.Request)
    request.wait()
    assert equal.tolist() == [float(other) for other in ranks]
    wrong = torch.empty(size + 1, 7)
    refuses(ValueError, "has the shape", dist.all_gather_into_tensor, wrong, mine, group)
    refuses(ValueError, "output_split_sizes=", dist.all_to_all_single, equal, equal, [size + 1] * size, None, group)


def original_lines(rank: int, size: int, url: str, backend: str) -> None:
    """Two processes; what the original design and today's torch.distributed have besides."""
    dist.initProcessGroup(backend, init_method=url, rank=rank, world_size=size, timeout=timedelta(seconds=30))
    other = 1 - rank
    if rank == 0:
        dist.send(torch.arange(6).view(2, 3), 1)
        dist.send_tensors([torch.ones(1)], 1)
    else:
        tensor = dist.recv(0)
        assert isinstance(tensor, torch.Tensor)
        assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
        request = dist.irecv(0)
        assert [float(part) for part in request.wait()] == [1.0]
        refuses(TypeError, "names two ranks", dist.recv, 0, 0)
    tensor = torch.full((3,), float(rank + 1))
    result = dist.allReduce(tensor)
    assert result is tensor
    assert result.tolist() == [3.0] * 3
    batch = [dist.P2POp(dist.isend, tensor + rank, other), dist.P2POp(dist.irecv, got := torch.empty(3), other)]
    for request in dist.batch_isend_irecv(batch):
        request.wait()
    assert got.tolist() == [3.0 + other] * 3
    refuses(ValueError, "op must be isend or irecv", dist.P2POp, dist.send, tensor, other)
    refuses(ValueError, "at least one", dist.batch_isend_irecv, [])
    own, groups = dist.new_subgroups(1, timeout=timedelta(seconds=5))
    assert own is groups[rank]
    assert isinstance(own, dist.ProcessGroup)
    assert own.timeout_s == 5.0
    assert groups[other] is dist.GroupMember.NON_GROUP_MEMBER
    refuses(ValueError, "group_size=3 does not divide 2 processes", dist.new_subgroups, 3)
    refuses(ValueError, "the ranks [1] are in several groups", dist.new_subgroups_by_enumeration, [[0, 1], [1]])
    refuses(ValueError, "are the same: pass one of them", dist.new_group, timeout=1.0, timeout_s=1.0)
    refuses(ValueError, "must be a positive number", dist.new_group, timeout=timedelta(0))
    dist.all_reduce(tensor, group=dist.group.WORLD)
    end()


def refuses(kind: type[Exception], text: str, call: Any, *args: Any, **options: Any) -> None:
    said = None
    try:
        call(*args, **options)
    except kind as error:
        said = str(error)
    assert said is not None, f"{call} raised nothing"
    assert text in said, f"{said} does not say {text!r}"


def by_environment() -> None:
    dist.init_process_group("tcp")
    dist.all_reduce(total := torch.tensor([dist.get_rank()]))
    report("sum", value=int(total))
    dist.barrier()


def collect(rank: int, size: int, url: str, backend: str) -> None:
    """Rank 0 receives from any source what three others send in turn, small and large."""
    start(rank, size, url, backend)
    if rank:
        for number in range(COUNT):
            numel = LARGE if number % 15 == 0 else 3
            dist.send(torch.full((numel,), float(number)), 0, tag=numel)
        end()
        return
    numbers: dict[int, list[float]] = {1: [], 2: [], 3: []}
    large: dict[int, list[float]] = {1: [], 2: [], 3: []}

    def receive_large() -> None:
        for _ in range(3 * (COUNT // 15)):
            tensor = torch.empty(LARGE)
            source = dist.recv(tensor, tag=LARGE)
            assert bool((tensor == tensor[0]).all())
            large[source].append(float(tensor[0]))

    thread = threading.Thread(target=receive_large)
    thread.start()
    window = [(tensor := torch.empty(3), dist.irecv(tensor, tag=3)) for _ in range(4)]
    for index in range(3 * (COUNT - COUNT // 15)):
        tensor, request = window.pop(0)
        numbers[request.wait()].append(float(tensor[0]))
        if index + 4 < 3 * (COUNT - COUNT // 15):
            window.append((tensor := torch.empty(3), dist.irecv(tensor, tag=3)))
    thread.join()
    for source in (1, 2, 3):
        assert numbers[source] == [float(number) for number in range(COUNT) if number % 15]
        assert large[source] == [float(number) for number in range(0, COUNT, 15)]
    report("collected")
    end()


def survive(rank: int, size: int, url: str, backend: str, again: str) -> None:
    """Work until somebody dies, tell which error came, come back by ``rejoin`` or from the start, and go on.

    A replacement runs it as well; ``ends`` tells all to stop.
    """
    start(rank, size, url, backend)
    pair = dist.new_group([0, 1])
    generation = 1
    while True:
        try:
            report("working", turn=generation)
            while True:
                dist.all_reduce(ended := torch.tensor([float(generation > 1)]))
                if float(ended):
                    break
                dist.recv(torch.empty(1), (rank + 1) % size)  # nobody sends: all are inside when one dies
            break
        except mw.WorldBrokenError as error:
            report("broken", error=type(error).__name__, rank=error.rank)
        if again == "rejoin":
            dist.rejoin()
        else:
            dist.destroy_process_group()
            start(rank, size, url, backend)
        generation += 1
        pair = dist.new_group([0, 1])
    dist.all_reduce(total := torch.tensor([1.0]))
    assert float(total) == size
    if isinstance(pair, dist.ProcessGroup):
        dist.all_reduce(total := torch.tensor([1.0]), group=pair)
        assert float(total) == 2.0
    report("done")
    end()


def groups_apart(rank: int, size: int, url: str, backend: str) -> None:
    """A group goes on while the default group is broken, and after it is formed again; one that broke is over."""
    start(rank, size, url, backend)
    healthy, mortal = dist.new_group([0, 1]), dist.new_group([1, 2])
    report("ready")
    if rank == 2:
        wait_command()
    refuses(mw.PeerDiedError, "lost rank 2", dist.recv, torch.empty(1))
    assert dist.is_initialized()
    refuses(mw.PeerDiedError, "lost rank 2", dist.barrier)
    refuses(mw.PeerDiedError, "lost rank 2", dist.new_group)
    for _ in range(20):
        dist.all_reduce(total := torch.tensor([1.0]), group=healthy)
        assert float(total) == 2.0
    if rank == 1:
        assert isinstance(mortal, dist.ProcessGroup)
        refuses(mw.PeerDiedError, "lost rank 1", dist.recv, torch.empty(1), 2, mortal)  # its rank in that world
    report("apart")
    dist.rejoin()
    dist.all_reduce(total := torch.tensor([1.0]))
    assert float(total) == 3.0
    dist.all_reduce(total := torch.tensor([1.0]), group=healthy)
    assert float(total) == 2.0
    if rank == 1:
        refuses(RuntimeError, "this group broke before rejoin(): make it again", dist.barrier, mortal)
    mortal = dist.new_group([1, 2])
    if rank == 1:
        dist.all_reduce(total := torch.tensor([1.0]), group=mortal)
        assert float(total) == 2.0
    end()


def replace_in_groups_apart(rank: int, size: int, url: str, backend: str) -> None:
    start(rank, size, url, backend)
    dist.all_reduce(total := torch.tensor([1.0]))
    assert float(total) == 3.0
    mortal = dist.new_group([1, 2])
    dist.all_reduce(total := torch.tensor([1.0]), group=mortal)
    end()


def disagree(rank: int, size: int, url: str, backend: str) -> None:
    """All raise at once when they mean different groups, and can agree afterwards."""
    start(rank, size, url, backend)
    mine = [0, 1] if rank < 2 else [0, 2]
    refuses(ValueError, f"new_group({mine}) was called here, but rank", dist.new_group, mine)
    other = "gloo" if rank == 0 else "tcp"
    refuses(ValueError, "asks for another backend than", dist.new_group, backend=other)
    if rank == 1:
        refuses(ValueError, "ranks=[0, 9]: 9 is not one of the ranks 0 to 2", dist.new_group, [0, 9])
    group = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(total := torch.tensor([1.0]), group=group)
        assert float(total) == 2.0
    refuses(mw.OperationTimeoutError, "deadline of 0.05 s", dist.recv, torch.empty(1), timeout_s=0.05)
    end()


def forks(rank: int, size: int, url: str, backend: str) -> None:
    """A forked child has no process group, may not use the parent's, and may have its own; the parent goes on."""
    start(rank, size, url, backend)
    group = dist.new_group()
    pending = dist.irecv(torch.zeros(1), tag=9)
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_in_child, args=(group, pending))
    child.start()
    child.join()
    assert child.exitcode == 0
    dist.all_reduce(total := torch.tensor([1.0]), group=group)
    assert float(total) == size
    pending.cancel()
    report("parent went on")
    end()


def _in_child(group: Any, pending: Any) -> None:
    assert not dist.is_initialized()
    shown = "this process was forked from one with a process group"
    refuses(RuntimeError, shown, dist.get_rank)
    refuses(RuntimeError, shown, dist.barrier)
    refuses(RuntimeError, shown, dist.barrier, group)
    refuses(RuntimeError, shown, dist.destroy_process_group)
    refuses(RuntimeError, "belongs to the parent of this forked process", pending.wait)
    refuses(mw.WorldClosedError, "is closed in this process", group.world.blocking.barrier)
    own_group()
    os._exit(0)


def own_group() -> None:
    with mw.WorldManager() as manager:
        port = manager.serve_store("tcp://127.0.0.1:0").rpartition(":")[2]  # free in a moment
    dist.init_process_group("tcp", f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    dist.all_reduce(total := torch.tensor([1.0]))
    assert float(total) == 1.0
    dist.destroy_process_group()
