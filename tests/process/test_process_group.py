"""Every operation of c10d on the group of a world; what c10d knows of it; and that nothing is left of it.

The ranks are threads of this process, each with a manager.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch._C._distributed_c10d import BarrierOptions, HashStore, _make_nccl_premul_sum, _resolve_process_group
from torch.distributed import ReduceOp
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import multiworld as mw
from multiworld.testing import scaled, wait_until
from multiworld.wire.progress.operation import Operation as Finished
from multiworld.wire.progress.operation import settler
from multiworld.wire.progress.waiting import wait_blocking
from multiworld.world.process_group.group import WorldProcessGroup
from multiworld.world.process_group.mesh import WorldMesh
from tests.process.process_group_programs import BACKENDS

pytestmark = [
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning"),
]

T = TypeVar("T")
SIZE = 3
NAMES = ("dp", "tp")
JOIN_S = 30.0


def each(work: Callable[[int], T], size: int = SIZE) -> list[T]:
    """Do the work of all ranks at once; return the results, or raise the first error while others may go on."""
    threads = ThreadPoolExecutor(size)
    try:
        futures = [threads.submit(work, rank) for rank in range(size)]
        done, _ = wait(futures, scaled(JOIN_S), return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        return [future.result(0) for future in futures]
    finally:
        threads.shutdown(wait=False)


@contextmanager
def worlds_of(size: int, backend: str = "tcp") -> Iterator[list[mw.World]]:
    managers = [mw.WorldManager() for _ in range(size)]
    try:
        url = managers[0].serve_store("tcp://127.0.0.1:0")
        yield each(lambda rank: managers[rank].blocking.join("w", rank, size, url, backend), size)
    finally:
        for manager in managers:
            manager.close()


@pytest.fixture
def groups(backend: str) -> Iterator[list[WorldProcessGroup]]:
    with worlds_of(SIZE, backend) as worlds:
        yield each(lambda rank: worlds[rank].process_group())


Operation = Callable[[int, WorldProcessGroup], tuple[Any, Any]]
OPERATIONS: dict[str, Operation] = {}


def operation(function: Operation) -> Operation:
    """What it returns for (rank, group) is (what came out, what should have)."""
    OPERATIONS[function.__name__] = function
    return function


@operation
def all_reduce(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    outcomes = []
    for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT):
        tensor = torch.tensor([rank + 1.0])
        dist.all_reduce(tensor, op, group=group)
        outcomes.append(tensor.item())
    return outcomes, [6.0, 2.0, 1.0, 3.0, 6.0]


@operation
def all_reduce_of_bits_and_premultiplied(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    bits, scaled_sum = torch.tensor([1 << rank]), torch.ones(1)
    dist.all_reduce(bits, ReduceOp.BOR, group=group)
    dist.all_reduce(scaled_sum, _make_nccl_premul_sum(0.5), group=group)
    return [bits.item(), scaled_sum.item()], [7, 1.5]


@operation
def all_reduce_of_a_leaf_a_view_and_nothing(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    leaf, matrix, nothing = torch.ones(2, requires_grad=True), torch.zeros(3, 4), torch.empty(0, 5)
    matrix[:, 1] = rank
    dist.all_reduce(leaf, group=group)
    dist.all_reduce(matrix[:, 1:3], group=group)
    dist.all_reduce(nothing, group=group)
    return [leaf.tolist(), matrix.tolist()], [[3.0, 3.0], [[0.0, 3.0, 0.0, 0.0]] * 3]


@operation
def broadcast_and_reduce(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    sent, reduced = torch.tensor([float(rank)]), torch.tensor([rank + 1.0])
    dist.broadcast(sent, src=1, group=group)
    dist.broadcast(sent.clone(), group_src=1, group=group)
    dist.reduce(reduced, dst=2, group=group)
    return [sent.item(), reduced.item()], [1.0, 6.0 if rank == 2 else rank + 1.0]


@operation
def all_gather(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    rows = [torch.empty(2) for _ in range(SIZE)]
    flat, stacked, strided = torch.empty(2 * SIZE), torch.empty(SIZE, 2), torch.empty(SIZE, 3)[:, :2]
    own = torch.full((2,), float(rank))
    dist.all_gather(rows, own, group=group)
    dist.all_gather_into_tensor(flat, own, group=group)
    for output in (stacked, strided):
        dist.all_gather_into_tensor(output, own, group=group)
    expected = [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    outcome = [[row.tolist() for row in rows], flat.view(SIZE, 2).tolist(), stacked.tolist(), strided.tolist()]
    return outcome, [expected] * 4


@operation
def all_gather_into_a_tensor_that_holds_the_input(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    """As FSDP does."""
    whole = torch.zeros(2 * SIZE)
    own = whole[2 * rank : 2 * rank + 2]
    own.fill_(rank)
    dist.all_gather_into_tensor(whole, own, group=group)
    return whole.tolist(), [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


@operation
def gather_and_scatter(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    rows = [torch.empty(1) for _ in range(SIZE)] if rank == 1 else None
    part = torch.empty(1)
    dist.gather(torch.tensor([float(rank)]), rows, dst=1, group=group)
    dist.scatter(part, [torch.tensor([10.0 * index]) for index in range(SIZE)] if rank == 1 else None, 1, group)
    return [[row.item() for row in rows or ()], part.item()], [[0.0, 1.0, 2.0] if rank == 1 else [], 10.0 * rank]


@operation
def reduce_scatter(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    outputs = [torch.empty(2) for _ in range(3)]
    whole = torch.arange(6.0)
    dist.reduce_scatter(outputs[0], list(torch.split(whole, 2)), group=group)
    dist.reduce_scatter_tensor(outputs[1], whole, group=group)
    dist.reduce_scatter_tensor(outputs[2], whole.view(3, 2), op=ReduceOp.AVG, group=group)
    expected = [6.0 * rank, 6.0 * rank + 3]
    return [output.tolist() for output in outputs], [expected, expected, [2.0 * rank, 2.0 * rank + 1]]


@operation
def all_to_all(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    single, uneven = torch.empty(SIZE), torch.empty((rank + 1) * SIZE, 2)
    rows = [torch.empty(1) for _ in range(SIZE)]
    dist.all_to_all_single(single, torch.arange(3.0) + 10 * rank, group=group)
    parts = [torch.full((dst + 1, 2), 10.0 * rank + dst) for dst in range(SIZE)]
    dist.all_to_all_single(uneven, torch.cat(parts), [rank + 1] * SIZE, [1, 2, 3], group=group)
    dist.all_to_all(rows, [torch.tensor([10.0 * rank + dst]) for dst in range(SIZE)], group=group)
    came = [10.0 * src + rank for src in range(SIZE)]
    expected = [came, [value for value in came for _ in range(rank + 1)], came]
    return [single.tolist(), uneven[:, 1].tolist(), [row.item() for row in rows]], expected


@operation
def all_to_all_with_empty_parts(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    """Only rank 0 sends, only to rank 2."""
    output = torch.empty(2 if rank == 2 else 0)
    own = torch.tensor([5.0, 6.0]) if rank == 0 else torch.empty(0)
    outgoing, incoming = [0, 0, 2 if rank == 0 else 0], [2 if rank == 2 else 0, 0, 0]
    dist.all_to_all_single(output, own, incoming, outgoing, group=group)
    return output.tolist(), [5.0, 6.0] if rank == 2 else []


@operation
def barrier(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    work = dist.barrier(group=group, async_op=True)
    assert work is not None
    return [work.wait(), dist.barrier(group=group)], [True, None]


@operation
def objects(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    everyone: list[Any] = [None] * SIZE
    gathered: list[Any] | None = [None] * SIZE if rank == 2 else None
    sent, part = [{"from": rank}], [None]
    dist.all_gather_object(everyone, {"rank": rank}, group=group)
    dist.gather_object(rank, gathered, dst=2, group=group)
    dist.broadcast_object_list(sent, src=1, group=group)
    dist.scatter_object_list(part, ["a", "b", "c"] if rank == 0 else None, src=0, group=group)
    expected = [[{"rank": 0}, {"rank": 1}, {"rank": 2}], [0, 1, 2] if rank == 2 else None, [{"from": 1}], ["abc"[rank]]]
    return [everyone, gathered, sent, part], expected


@operation
def send_and_receive(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    """Two messages to the next rank, received in the other order by their tags; the world's own are another matter."""
    left, right = (rank - 1) % SIZE, (rank + 1) % SIZE
    mine = group.world.start_send(torch.tensor([-1.0]), right, 0, None)
    tensors = [torch.empty(1) for _ in range(3)]
    ops = [
        dist.P2POp(dist.isend, torch.tensor([rank + 0.1]), right, group, tag=1),
        dist.P2POp(dist.isend, torch.tensor([rank + 0.2]), group_peer=right, group=group, tag=0),
        dist.P2POp(dist.irecv, tensors[0], left, group, tag=0),
        dist.P2POp(dist.irecv, tensors[1], group_peer=left, group=group, tag=1),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    group.world.blocking.recv(tensors[2], left)
    assert mine.error is None
    return [tensor.item() for tensor in tensors], [pytest.approx(left + 0.2), pytest.approx(left + 0.1), -1.0]


@operation
def receive_from_anybody(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    if rank:
        dist.send(torch.tensor([10.0 * rank]), 0, group)
        return None, None
    tensor, came = torch.empty(1), {}
    for _ in range(2):
        src = dist.recv(tensor, group=group)
        came[src] = tensor.item()
    return came, {1: 10.0, 2: 20.0}


@operation
def functional_collectives(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    """They go through C++, which finds the group by its name."""
    own, whole = torch.full((2,), float(rank)), torch.arange(6.0)
    results: list[Any] = [
        functional.all_reduce(own, "sum", group),
        functional.all_gather_tensor(own, 0, group),
        functional.reduce_scatter_tensor(whole, "avg", 0, group),
        functional.all_to_all_single(torch.arange(3.0) + 10 * rank, None, None, group),
        functional.broadcast(own, 1, group),
        *functional.all_reduce_coalesced([own, own + 1], "max", group),
        *functional.all_gather_into_tensor_coalesced([own, own + 1], group),
        *functional.reduce_scatter_tensor_coalesced([whole, whole], "sum", [0, 0], group),
    ]
    gathered, scattered = [0.0, 0.0, 1.0, 1.0, 2.0, 2.0], [6.0 * rank, 6.0 * rank + 3]
    expected = [
        [3.0, 3.0],
        gathered,
        [2.0 * rank, 2.0 * rank + 1],
        [10.0 * src + rank for src in range(SIZE)],
        [1.0, 1.0],
        [2.0, 2.0],
        [3.0, 3.0],
        gathered,
        [value + 1 for value in gathered],
        scattered,
        scattered,
    ]
    return [_waited(result).tolist() for result in results], expected


@operation
def coalesced(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    tensors = [torch.full((length,), float(rank)) for length in (1, 2, 3)]
    with dist._coalescing_manager(group, async_ops=True) as fast:  # type: ignore[attr-defined]
        for tensor in tensors[:2]:
            dist.all_reduce(tensor, group=group)
    fast.wait()
    with dist._coalescing_manager(group, device=torch.device("cpu"), async_ops=True) as slow:  # type: ignore[attr-defined]
        dist.all_reduce(tensors[2], group=group)
    slow.wait()
    rows = [[torch.empty(1), torch.empty(2)] for _ in range(SIZE)]
    dist.all_gather_coalesced(rows, [torch.full((1,), float(rank)), torch.full((2,), rank + 0.5)], group=group)
    gathered = [[tensor[0].item() for tensor in row] for row in rows]
    return [[t[0].item() for t in tensors], gathered], [[3.0] * 3, [[0.0, 0.5], [1.0, 1.5], [2.0, 2.5]]]


@operation
def a_work_that_is_looked_at_before_and_after(rank: int, group: WorldProcessGroup) -> tuple[Any, Any]:
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    assert work is not None
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    assert work.get_future() is work.get_future()
    work.wait(timedelta(seconds=JOIN_S))
    seen = [work.is_completed(), work.is_success(), work.exception(), work.result()[0].tolist()]
    return [seen, doubled.wait().tolist()], [[True, True, None, [3.0] * 4], [6.0] * 4]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_what_it_should(groups: list[WorldProcessGroup], name: str) -> None:
    for outcome, expected in each(lambda rank: OPERATIONS[name](rank, groups[rank])):
        assert outcome == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_group_says_what_it_is(groups: list[WorldProcessGroup]) -> None:
    for rank, group in enumerate(groups):
        assert (group.rank(), group.size(), dist.get_world_size(group)) == (rank, SIZE, SIZE)
        assert dist.get_process_group_ranks(group) == list(range(SIZE))
        assert [dist.get_global_rank(group, other) for other in range(SIZE)] == list(range(SIZE))
        assert dist.get_backend(group) == f"multiworld-{group.world.backend}" == group.name()
        assert _resolve_process_group(c10d.GroupName(group.group_name)) is group
        assert group.world.process_group() is group
    assert len({group.group_name for group in groups}) == SIZE
    assert not dist.is_initialized()


@contextmanager
def default_group() -> Iterator[None]:
    """One of this process alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_the_end_of_the_default_group_is_not_that_of_others() -> None:
    with worlds_of(2) as worlds:
        before = each(lambda rank: worlds[rank].process_group(), 2)
        with default_group():
            assert dist.get_world_size() == 1
        assert not c10d._world.pg_map, "destroy_process_group() forgets all groups"
        assert each(lambda rank: worlds[rank].process_group(), 2) == before
        sums = each(lambda rank: functional.all_reduce(torch.ones(1), "sum", before[rank]).tolist(), 2)
        assert sums == [[2.0], [2.0]]


def test_one_group_can_be_destroyed_and_asked_for_again() -> None:
    with worlds_of(2) as worlds:
        groups = each(lambda rank: worlds[rank].process_group(), 2)
        dist.destroy_process_group(groups[0])
        assert groups[1] in c10d._world.pg_map
        assert groups[0] not in c10d._world.pg_map
        assert worlds[0].process_group() is groups[0]
        assert groups[0] in c10d._world.pg_map


def test_only_the_ranks_that_a_default_group_does_not_know_have_other_numbers() -> None:
    with default_group(), worlds_of(2) as worlds:
        groups = each(lambda rank: worlds[rank].process_group(), 2)
        for rank, group in enumerate(groups):
            assert dist.get_rank(group) == rank
            numbers = dist.get_process_group_ranks(group)
            assert [dist.get_group_rank(group, number) for number in numbers] == [0, 1]
            mesh = DeviceMesh.from_group(group, "cpu")
            assert mesh.get_local_rank() == rank
            assert mesh.get_coordinate() == (rank,)
        meshes = [world.device_mesh() for world in worlds]
        assert meshes[0] != meshes[1]
        assert meshes[0] == worlds[0].device_mesh()
        assert hash(meshes[0]) == hash(worlds[0].device_mesh())


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_of_a_group_is_left_after_many_generations(backend: str) -> None:
    """Left, aborted and rejoined in turn."""
    managers = [mw.WorldManager() for _ in range(2)]
    url = managers[0].serve_store("tcp://127.0.0.1:0")
    try:
        for cycle in range(6):
            gone = each(partial(_live, managers, url, backend, cycle % 3, threading.Barrier(2, timeout=scaled(10))), 2)
            assert _known_to_c10d() == [0] * 6
            assert wait_until(partial(_are_gone, gone), 5), gone  # a thread of theirs may be about to end
    finally:
        for manager in managers:
            manager.close()


def _are_gone(references: list[weakref.ref[Any]]) -> bool:
    gc.collect()
    return not any(reference() for reference in references)


def _live(
    managers: list[mw.WorldManager], url: str, backend: str, how: int, both: threading.Barrier, rank: int
) -> weakref.ref[Any]:
    """Join, use and leave; both ranks take each step together."""
    manager = managers[rank].blocking
    world = manager.join("w", rank, 2, url, backend)
    if how == 1:
        _use(world)
        both.wait()
        world = manager.rejoin("w")
    group = weakref.ref(_use(world))
    both.wait()
    if how == 2 and rank == 0:
        world.abort()
    elif how == 2:
        world.blocking.wait_broken()
    world.blocking.leave()
    return group


def _use(world: mw.World) -> WorldProcessGroup:
    group = world.process_group()
    world.device_mesh()
    work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
    assert work is not None
    work.get_future().wait()
    _waited(functional.all_reduce(torch.ones(1), "sum", group))
    return group


def _waited(tensor: Tensor) -> Tensor:
    waited: Tensor = functional.wait_tensor(tensor)  # type: ignore[no-untyped-call]
    return waited


def _known_to_c10d() -> list[int]:
    known = c10d._world
    tables: Sequence[Any] = (
        known.pg_map,
        known.pg_names,
        known.pg_group_ranks,
        known.pg_backend_config,
        known.pg_to_tag,
        known.tags_to_pg,
    )
    return [len(table) for table in tables]


def test_a_world_that_is_over_makes_no_group() -> None:
    with worlds_of(2) as worlds:
        worlds[0].abort()
        worlds[1].blocking.wait_broken()
        with pytest.raises(mw.WorldClosedError):
            worlds[0].process_group()
        with pytest.raises(mw.WorldBrokenError):
            worlds[1].process_group()


def test_forming_a_group_that_the_others_do_not_ask_for_ends_in_time() -> None:
    with worlds_of(2) as worlds, pytest.raises(mw.OperationTimeoutError):
        worlds[0].process_group(timeout_s=0.05)


def test_a_mesh_that_the_others_do_not_ask_for_ends_in_time() -> None:
    with worlds_of(2) as worlds:
        each(lambda rank: worlds[rank].process_group(), 2)
        began = time.monotonic()
        with pytest.raises(mw.OperationTimeoutError):
            worlds[0].device_mesh(timeout_s=0.05, shape=(2, 1))
        assert time.monotonic() - began < scaled(5)


def test_a_subgroup_is_a_world_of_its_own() -> None:
    """It breaks on its own, stands when the others break, and ends with destroy_process_group."""
    with worlds_of(4) as worlds:
        groups = each(lambda rank: worlds[rank].process_group(), 4)
        halves: list[Any] = each(lambda rank: groups[rank].split_group([0, 1] if rank < 2 else [3, 2]), 4)
        assert [dist.get_process_group_ranks(half) for half in halves] == [[0, 1], [0, 1], [2, 3], [2, 3]]
        assert [half.rank() for half in halves] == [0, 1, 0, 1]
        assert each(lambda rank: _all_reduced(halves[rank]).item(), 4) == [2.0] * 4
        few = each(lambda rank: groups[rank].new_group([1, 2], group_desc="few"), 4)
        assert [group is None for group in few] == [True, False, False, True]
        assert few[1] is not None
        assert few[1].group_desc == "few"
        halves[3].world.abort()
        assert isinstance(halves[2].world.blocking.wait_broken(), mw.WorldBrokenError)
        assert each(lambda rank: _all_reduced(halves[rank]).item(), 2) == [2.0] * 2
        worlds[3].abort()
        worlds[0].blocking.wait_broken()
        assert each(lambda rank: _all_reduced(halves[rank]).item(), 2) == [2.0] * 2
        each(lambda rank: dist.destroy_process_group(halves[rank]), 2)
        with pytest.raises(mw.WorldClosedError):
            halves[0].allreduce([torch.ones(1)])
        assert halves[0] not in c10d._world.pg_map


def test_members_that_mean_different_subgroups_all_get_an_error() -> None:
    def split(rank: int) -> str:
        with pytest.raises(ValueError, match="all members of a subgroup name the same ranks") as caught:
            made[rank].split_group([[0, 1], [0, 1, 2], [2]][rank])
        return str(caught.value)

    with worlds_of(3) as worlds:
        made = each(lambda rank: worlds[rank].process_group())
        assert len(set(each(split))) == 1


@pytest.mark.parametrize("call", ["merge_remote_group", "get_group_store"])
def test_what_the_group_has_not_says_so(call: str) -> None:
    """What it would inherit looks for a store of PyTorch, and ends the process."""
    with worlds_of(2) as worlds:
        group, _ = each(lambda rank: worlds[rank].process_group(), 2)
        with pytest.raises(NotImplementedError, match="world"):
            getattr(group, call)()


def test_a_mesh_of_two_dimensions_needs_no_default_group() -> None:
    def use(rank: int) -> None:
        mesh = worlds[rank].device_mesh(("dp", "tp"), shape=(2, 2))
        assert mesh == worlds[rank].device_mesh(("dp", "tp"), shape=(2, 2))
        assert mesh != worlds[rank].device_mesh()
        assert mesh.mesh.tolist() == [[0, 1], [2, 3]]
        assert mesh.get_coordinate() == divmod(rank, 2)
        assert (mesh.get_local_rank("dp"), mesh["tp"].get_local_rank()) == divmod(rank, 2)
        assert mesh["tp"].mesh.tolist() == [2 * (rank // 2), 2 * (rank // 2) + 1]
        assert mesh["dp"].get_group() is mesh.get_group(0)
        assert mesh._flatten("all").get_group() is worlds[rank].process_group()
        whole = torch.arange(16.0).view(4, 4)
        part = whole.chunk(2)[rank // 2].chunk(2, dim=1)[rank % 2].clone()
        tensor = DTensor.from_local(part, mesh, [Shard(0), Shard(1)])
        assert torch.equal(tensor.full_tensor(), whole)
        columns = tensor.redistribute(mesh, [Replicate(), Shard(1)])
        assert torch.equal(columns.to_local(), whole.chunk(2, dim=1)[rank % 2])

    with worlds_of(4) as worlds:
        each(use, 4)
        assert not dist.is_initialized()


def test_a_row_that_one_rank_has_left_is_formed_anew_by_all() -> None:
    """The other members may not know of it yet. Rows that all still have stay."""

    def mesh_groups(rank: int) -> list[Any]:
        mesh = worlds[rank].device_mesh(NAMES, timeout_s=scaled(10), shape=(2, 2))
        return [mesh.get_group("dp"), mesh.get_group("tp")]

    with worlds_of(4) as worlds:
        before = each(mesh_groups, 4)
        dist.destroy_process_group(before[0][1])
        before[3][0].world.abort()
        after = each(mesh_groups, 4)
        same = [[new is old for new, old in zip(*pair, strict=True)] for pair in zip(after, before, strict=True)]
        assert same == [[True, False], [False, False], [True, True], [False, True]]
        assert each(lambda rank: [_all_reduced(group).item() for group in after[rank]], 4) == [[2.0, 2.0]] * 4
        assert before[1][1].is_closed
        assert each(mesh_groups, 4) == after


def test_a_row_that_is_formed_while_its_world_ends_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    formed: list[mw.World] = []

    def start_beside(name: str, rank: int, world_size: int, timeout_s: float) -> Any:
        joining = start(name, rank, world_size, timeout_s)
        formed.append(wait_blocking(joining))
        worlds[0].abort()
        return joining

    with worlds_of(2) as worlds:
        each(lambda rank: worlds[rank].process_group(), 2)
        start = worlds[0].start_beside
        monkeypatch.setattr(worlds[0], "start_beside", start_beside)
        asking = partial(worlds[0].device_mesh, shape=(2, 1))
        both: list[Callable[[], Any]] = [asking, partial(worlds[1].device_mesh, shape=(2, 1))]

        def ask(rank: int) -> str:
            try:
                both[rank]()
            except (mw.WorldClosedError, mw.WorldBrokenError) as error:
                return type(error).__name__
            return "formed"

        assert each(ask, 2)[0] == "WorldClosedError"
        assert [world.state.value for world in formed] == ["closed"]


def test_the_worlds_of_a_mesh_are_left_with_theirs_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, each could take as long as all may."""
    flushing: dict[str, Any] = {}

    def flush(name: str, timeout_s: float) -> Any:
        flushing[name] = Finished()
        if len(flushing) == 3:
            for flushed in flushing.values():
                flushed.succeed(None)
        return flushing[name]

    with worlds_of(4) as worlds:
        meshes = each(lambda rank: worlds[rank].device_mesh(NAMES, shape=(2, 2)), 4)
        rows = [meshes[0].get_group(dim).world for dim in range(2)]  # type: ignore[attr-defined]
        for world in (*rows, worlds[0]):
            assert world.channel is not None
            monkeypatch.setattr(world.channel, "flush", partial(flush, world.name))
        each(lambda _: worlds[0].blocking.leave(), 1)
        assert list(flushing) == [*(row.name for row in rows), "w"]
        assert [world.state.value for world in (*rows, worlds[0])] == ["closed"] * 3
        broken = meshes[1].get_group("tp").world.blocking.wait_broken()  # type: ignore[attr-defined]
        assert isinstance(broken, mw.PeerLeftError)


def test_a_world_of_a_mesh_that_is_being_left_is_not_cut_short_when_its_parent_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flushed: Finished[None] = Finished()
    with worlds_of(4) as worlds:
        groups = [mesh.get_group("tp") for mesh in each(lambda rank: worlds[rank].device_mesh(NAMES, shape=(2, 2)), 4)]
        row: mw.World = groups[0].world  # type: ignore[attr-defined]
        assert row.channel is not None
        monkeypatch.setattr(row.channel, "flush", lambda timeout_s: flushed)
        worlds[0].on_broken(settler(flushed))
        worlds[0]._owner.close()  # type: ignore[attr-defined]
        assert isinstance(groups[1].world.blocking.wait_broken(), mw.PeerLeftError)  # type: ignore[attr-defined]


def test_worlds_that_were_joined_apart_make_a_mesh() -> None:
    def use(rank: int) -> None:
        row, column = divmod(rank, 2)
        join = managers[rank].blocking.join
        dp, tp = join(f"dp{column}", row, 2, url), join(f"tp{row}", column, 2, url)
        groups = [dp.process_group(), tp.process_group()]
        mesh = WorldMesh.from_group(groups, "cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
        assert mesh.get_coordinate() == (row, column)
        tensor = DTensor.from_local(torch.tensor([float(rank)]), mesh, [Shard(0), Shard(0)])
        assert tensor.full_tensor().tolist() == [0.0, 1.0, 2.0, 3.0]
        with pytest.raises(ValueError, match=r"the groups have \[2, 2\] ranks"):
            WorldMesh.from_group(groups, "cpu", [0, 1])

    managers = [mw.WorldManager() for _ in range(4)]
    try:
        url = managers[0].serve_store("tcp://127.0.0.1:0")
        each(use, 4)
    finally:
        for manager in managers:
            manager.close()


@pytest.mark.parametrize("how", ["wait", "options", "set_timeout"])
def test_a_deadline_ends_an_operation_and_leaves_the_world(how: str) -> None:
    with worlds_of(2) as worlds:
        group, _ = each(lambda rank: worlds[rank].process_group(), 2)
        short = timedelta(milliseconds=50)

        def run(_: int) -> None:
            if how == "wait":
                group.recv([torch.empty(1)], 1).wait(short)
            elif how == "options":
                options = BarrierOptions()
                options.timeout = short
                group.barrier(options).wait()
            else:
                group.set_timeout(short)
                group.recv([torch.empty(1)], 1).wait()

        with pytest.raises(mw.OperationTimeoutError):
            each(run, 1)
        assert worlds[0].state is mw.WorldState.ACTIVE


def test_what_is_pending_when_the_world_is_left_ends_too() -> None:
    with worlds_of(2) as worlds:
        group, _ = each(lambda rank: worlds[rank].process_group(), 2)
        tensor = torch.zeros(1)
        work = group.recv([tensor], 1)
        future = work.get_future()
        worlds[0].abort()
        for end in (work.wait, future.wait):
            with pytest.raises(mw.WorldClosedError):
                end()
        assert isinstance(work.exception(), mw.WorldClosedError)
        assert work.is_completed()
        assert not work.is_success()
        with pytest.raises(mw.WorldClosedError):
            group.broadcast([tensor])


def test_what_is_chained_to_a_future_may_block_and_holds_up_no_tensors() -> None:
    with worlds_of(2) as worlds:
        groups = each(lambda rank: worlds[rank].process_group(), 2)
        may_go_on = threading.Event()
        first = groups[0].allreduce([torch.ones(1)])
        blocked = first.get_future().then(lambda _: may_go_on.wait(JOIN_S))
        assert _all_reduced(groups[1]).item() == 2.0
        assert [tensor.item() for tensor in each(lambda rank: _all_reduced(groups[rank]), 2)] == [2.0, 2.0]
        assert not blocked.done()
        may_go_on.set()
        assert blocked.wait() is True


def _all_reduced(group: WorldProcessGroup) -> Tensor:
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    return tensor


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_cannot_be_raises_before_anything_is_sent(groups: list[WorldProcessGroup]) -> None:
    group, tensor = groups[0], torch.ones(4)
    wrong: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: group.allreduce([tensor, tensor]), ValueError, "expected one tensor"),
        (lambda: dist.all_gather_into_tensor(tensor, tensor, group=group), ValueError, "3 ranks x 4 = 12"),
        (lambda: dist.all_to_all_single(tensor, tensor, group=group), ValueError, "divide by 3"),
        (lambda: dist.all_to_all_single(tensor, tensor, [1, 1, 1], [4, 0, 0], group=group), ValueError, "add up to 4"),
        (lambda: dist.broadcast(tensor, src=3, group=group), ValueError, "3 is not part of group"),
        (lambda: group.send([tensor], 1, -1), ValueError, "tag=-1"),
        (lambda: dist.all_reduce(tensor.to_sparse(), group=group), TypeError, "dense"),
    ]
    for call, error, text in wrong:
        with pytest.raises(error, match=text):
            call()
    assert each(lambda rank: _all_reduced(groups[rank]).item()) == [3.0] * SIZE
