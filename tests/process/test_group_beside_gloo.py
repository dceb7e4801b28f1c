"""The same calls on PyTorch's own Gloo group and on the group of a world: values, types and errors are alike.

The ranks are threads of this process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d
from torch.distributed import ReduceOp
from torch.distributed import distributed_c10d as c10d
from torch.profiler import ProfilerActivity, profile

import multiworld as mw
from multiworld.testing import scaled
from multiworld.world.process_group import names as group_names

SIZE = 2
LONG = timedelta(seconds=20)
CPU = torch.device("cpu")
native: Any = _distributed_c10d
Group = Any
Call = Callable[[int, Group], Any]


def each(work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(SIZE) as threads:
        return [future.result(scaled(40)) for future in [threads.submit(work, rank) for rank in range(SIZE)]]


def gloo_groups(timeout: timedelta = LONG) -> list[Group]:
    store = native.HashStore()

    def make(rank: int) -> Group:
        group = native.ProcessGroup(store, rank, SIZE)
        kind = native.ProcessGroup.BackendType.GLOO
        backend = native.ProcessGroupGloo(native.PrefixStore("gloo", store), rank, SIZE, timeout)
        group._set_default_backend(kind)
        group._register_backend(CPU, kind, backend)
        name = group_names.free_name(f"gloo-{rank}")
        group._set_group_name(name)
        group_names.introduce(group, name, "gloo", "cpu", {each: each for each in range(SIZE)})
        return group

    return each(make)


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[list[Group], list[Group]]]:
    """Gloo's groups, and ours."""
    theirs = gloo_groups()
    managers = [mw.WorldManager() for _ in range(SIZE)]
    try:
        url = managers[0].serve_store("tcp://127.0.0.1:0")
        worlds = each(lambda rank: managers[rank].blocking.join("w", rank, SIZE, url))
        yield theirs, each(lambda rank: worlds[rank].process_group())
    finally:
        for manager in managers:
            manager.close()
        for group in theirs:
            group_names.forget(group, group.group_name)


def own(rank: int) -> Tensor:
    return torch.full((2,), rank + 1.0)


def row() -> list[Tensor]:
    return [torch.zeros(2) for _ in range(SIZE)]


def sparse() -> Tensor:
    return torch.ones(4).to_sparse()


def future(work: Any) -> Any:
    return work.get_future().wait()


def waited(work: Any, value: Any) -> Any:
    work.wait()
    return value


def options(kind: str, **values: Any) -> Any:
    made = getattr(native, f"{kind}Options")()
    for name, value in values.items():
        setattr(made, name, value)
    return made


# ---- what succeeds

CALLS: dict[str, Call] = {
    # the value of futures
    "future of broadcast": lambda r, g: future(g.broadcast([own(r)], options("Broadcast", rootRank=1))),
    "future of all_reduce": lambda r, g: future(g.allreduce([own(r)])),
    "future of reduce": lambda r, g: future(g.reduce([own(r)], options("Reduce", rootRank=0)))[: 1 - r],
    "future of all_gather": lambda r, g: future(g.allgather([row()], [own(r)])),
    "future of gather": lambda r, g: future(g.gather([row()] if r == 0 else [], [own(r)], options("Gather"))),
    "future of scatter": lambda r, g: future(
        g.scatter([own(r)], [[own(1), own(0)]] if r == 0 else [], options("Scatter"))
    ),
    "future of all_to_all": lambda r, g: future(g.alltoall(row(), [own(r), own(r)])),
    "future of all_to_all_single": lambda r, g: future(
        dist.all_to_all_single(torch.empty(2), own(r), group=g, async_op=True)
    ),
    "future of barrier": lambda r, g: future(g.barrier()),
    "future of all_reduce_coalesced": lambda r, g: future(g.allreduce_coalesced([own(r), own(r)])),
    "future of all_gather_coalesced": lambda r, g: future(
        g.allgather_coalesced([[own(5), own(5)] for _ in range(SIZE)], [own(r), own(r + 1)])
    ),
    "work": lambda r, g: (lambda work: [work.wait(), work.wait(), work.is_completed()])(g.allreduce([own(r)])),
    # the forms of calls
    "broadcast by root": lambda r, g: (lambda x: waited(g.broadcast(x, root=1), x))(own(r)),
    "broadcast by position": lambda r, g: (lambda x: waited(g.broadcast(x, 1, LONG), x))(own(r)),
    "broadcast by names": lambda r, g: (
        lambda x: waited(g.broadcast(tensors=[x], opts=options("Broadcast", rootRank=1)), x)
    )(own(r)),
    "all_reduce by position": lambda r, g: (lambda x: waited(g.allreduce([x], ReduceOp.MAX), x))(own(r)),
    "all_reduce by names": lambda r, g: (lambda x: waited(g.allreduce(tensor=x, op=ReduceOp.MAX, timeout=LONG), x))(
        own(r)
    ),
    "reduce by names": lambda r, g: (lambda x: waited(g.reduce(x, root=1, op=ReduceOp.MAX), [x][:r]))(own(r)),
    "all_gather of a list": lambda r, g: (lambda out: waited(g.allgather(out, own(r), timeout=LONG), out))(row()),
    "gather of a list": lambda r, g: (lambda out: waited(g.gather(out, own(r), root=1), out))(row() if r else []),
    "scatter of a list": lambda r, g: (lambda x: waited(g.scatter(x, [own(3), own(4)] if r else [], root=1), x))(
        own(0)
    ),
    "reduce_scatter of a list": lambda r, g: (
        lambda x: waited(g.reduce_scatter(x, [own(r), own(4)], op=ReduceOp.MAX), x)
    )(own(0)),
    "all_to_all_single by names": lambda r, g: (lambda x: waited(g.alltoall_base(x, own(r), [], [], timeout=LONG), x))(
        own(0)
    ),
    "barrier by names": lambda r, g: waited(g.barrier(timeout=LONG), None),
    "monitored barrier": lambda r, g: g.monitored_barrier(LONG),
    "messages by names": lambda r, g: (
        lambda x: waited(g.recv(tensors=[x], srcRank=0, tag=3) if r else g.send(tensors=[x], dstRank=1, tag=3), x)
    )(own(r)),
    "a message of anybody": lambda r, g: (lambda x: waited(g.recv_anysource([x], 4) if r else g.send([x], 1, 4), x))(
        own(r)
    ),
    # coalesced
    "one tensor twice": lambda r, g: (lambda x: waited(g.allreduce_coalesced([x, x]), x))(own(r)),
    "tensors that overlap": lambda r, g: (lambda x: waited(g.allreduce_coalesced([x[:3], x[1:]]), x))(torch.ones(4)),
    "columns of one tensor": lambda r, g: (lambda x: waited(g.allreduce_coalesced([x[:, 0], x[:, 1]]), x))(
        torch.ones(2, 2) * (r + 1)
    ),
    "of different sizes": lambda r, g: (lambda x: waited(g.allreduce_coalesced(x), x))([own(r), torch.ones(3)]),
    "the manager's": lambda r, g: managed([own(r), own(r)], g),
    "the manager's, twice": lambda r, g: (lambda x: managed([x, x], g))(own(r)),
    "the manager's, none": lambda r, g: managed([], g),
    "all_gather of two dtypes": lambda r, g: (
        lambda out: waited(g.allgather_coalesced(out, [own(r), torch.ones(2, dtype=torch.int64)]), out)
    )([[own(0), torch.zeros(2, dtype=torch.int64)] for _ in range(SIZE)]),
    # what the group is
    "backend": lambda r, g: (lambda b: [b.rank(), b.size(), b.name() == g.name()])(g._get_backend(CPU)),
    "splitting": lambda r, g: g._get_backend(CPU).supports_splitting,
    "deadline": lambda r, g: deadline(g),
    "sequence": lambda r, g: sequence(r, g),
    "hooks": lambda r, g: g._has_hooks(),
    "device": lambda r, g: [str(device) for device in g._device_types],
    "boxed": lambda r, g: dist.ProcessGroup.unbox(g.boxed()).rank(),
}


def managed(tensors: list[Tensor], group: Group) -> list[Tensor]:
    with dist._coalescing_manager(group, async_ops=True) as manager:  # type: ignore[attr-defined]
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    if tensors:
        manager.wait()
    return tensors


def deadline(group: Group) -> timedelta:
    c10d._set_pg_timeout(LONG, group)
    timeout: timedelta = group._get_backend(CPU).options._timeout
    return timeout


def sequence(rank: int, group: Group) -> list[int]:
    before = group._get_sequence_number_for_group()
    group.barrier().wait()
    group.allreduce([own(rank)]).wait()
    (group.recv([own(rank)], 0, 6) if rank else group.send([own(rank)], 1, 6)).wait()
    return [group._get_sequence_number_for_group() - before]


# ---- what fails

DTYPES = [torch.ones(2), torch.ones(2, dtype=torch.int64)]
BAD: dict[str, Call] = {
    "no tensor": lambda r, g: g.allreduce([]),
    "no list": lambda r, g: g.allreduce(3),
    "no tensors": lambda r, g: g.allreduce([1]),
    "bits of floats": lambda r, g: g.allreduce([own(r)], ReduceOp.BAND).wait(),
    "uint16": lambda r, g: g.allreduce([torch.ones(2, dtype=torch.uint16)]).wait(),
    "float8": lambda r, g: g.allreduce([torch.ones(2, dtype=torch.float8_e4m3fn)]).wait(),
    "complex maximum": lambda r, g: dist.all_reduce(torch.ones(2, dtype=torch.complex64), ReduceOp.MAX, group=g),
    "quantized": lambda r, g: g.allreduce([torch.quantize_per_tensor(own(r), 0.1, 0, torch.quint8)]),
    "sparse broadcast": lambda r, g: g.broadcast([sparse()]),
    "sparse reduce": lambda r, g: g.reduce([sparse()], options("Reduce")),
    "sparse coalesced": lambda r, g: g.allreduce_coalesced([sparse(), sparse()]),
    "sparse beside dense": lambda r, g: g.allreduce_coalesced([own(r), sparse()]),
    "sparse input to gather": lambda r, g: dist.all_gather_into_tensor(torch.empty(8), sparse(), group=g),
    "sparse output of all": lambda r, g: dist.all_gather_into_tensor(torch.ones(8).to_sparse(), torch.ones(4), group=g),
    "sparse message": lambda r, g: g.send([sparse()], 1 - r, 0),
    "root": lambda r, g: g.broadcast([own(r)], options("Broadcast", rootRank=7)),
    "root below 0": lambda r, g: g.broadcast([own(r)], options("Broadcast", rootRank=-1)),
    "root tensor": lambda r, g: g.broadcast([own(r)], options("Broadcast", rootTensor=1)),
    "root of a reduce": lambda r, g: g.reduce([own(r)], options("Reduce", rootRank=7)),
    "root of a gather": lambda r, g: g.gather([], [own(r)], options("Gather", rootRank=5)),
    "root of a scatter": lambda r, g: g.scatter([own(r)], [], options("Scatter", rootRank=5)),
    "src": lambda r, g: dist.broadcast(own(r), src=9, group=g),
    "group_src": lambda r, g: dist.broadcast(own(r), group_src=9, group=g),
    "few outputs": lambda r, g: g.allgather([[own(0)]], [own(r)]),
    "outputs of another shape": lambda r, g: g.allgather([[torch.empty(3), torch.empty(3)]], [own(r)]),
    "outputs of another dtype": lambda r, g: g.allgather([[DTYPES[1], DTYPES[1].clone()]], [own(r)]),
    "two lists of outputs": lambda r, g: g.allgather([row(), row()], [own(r)]),
    "no list of outputs": lambda r, g: g.allgather([], [own(r)]),
    "no input": lambda r, g: g.allgather([row()], []),
    "outputs elsewhere": lambda r, g: g.allgather([[torch.empty(2, device="meta") for _ in row()]], [own(r)]),
    "outputs in no list": lambda r, g: dist.all_gather(cast("Any", own(0)), own(r), group=g),
    "a small output": lambda r, g: dist.all_gather_into_tensor(torch.empty(3), own(r), group=g),
    "an output of integers": lambda r, g: dist.all_gather_into_tensor(
        torch.empty(4, dtype=torch.int64), own(r), group=g
    ),
    "a large output": lambda r, g: dist.reduce_scatter_tensor(torch.empty(3), own(r), group=g),
    "no list to gather": lambda r, g: g.gather([], [own(r)], options("Gather", rootRank=r)),
    "a list elsewhere": lambda r, g: g.gather([row()], [own(r)], options("Gather", rootRank=1 - r)),
    "a short list to gather": lambda r, g: g.gather([[own(0)]], [own(r)], options("Gather", rootRank=r)),
    "no list to scatter": lambda r, g: g.scatter([own(r)], [], options("Scatter", rootRank=r)),
    "a list to scatter elsewhere": lambda r, g: g.scatter([own(r)], [row()], options("Scatter", rootRank=1 - r)),
    "parts of another shape": lambda r, g: g.scatter(
        [own(r)], [[torch.ones(3), torch.ones(3)]], options("Scatter", rootRank=r)
    ),
    "few inputs": lambda r, g: g.reduce_scatter([own(r)], [[own(0)]]),
    "inputs of another shape": lambda r, g: g.reduce_scatter([own(r)], [[torch.ones(3), torch.ones(3)]]),
    "few to all": lambda r, g: g.alltoall([own(0)], [own(0)]),
    "sizes that do not add up": lambda r, g: dist.all_to_all_single(own(0), own(r), [1, 2], [1, 2], group=g),
    "one size": lambda r, g: dist.all_to_all_single(own(0), own(r), [2], [2], group=g),
    "to itself": lambda r, g: g.send([own(r)], r, 0),
    "from itself": lambda r, g: g.recv([own(r)], r, 0),
    "a tag below 0": lambda r, g: g.send([own(r)], 1 - r, -1),
    "a tag of text": lambda r, g: g.recv([own(r)], 1 - r, "a"),
    "a message of two": lambda r, g: g.send([own(r), own(r)], 1 - r, 0),
    "a message of text": lambda r, g: dist.send("x", 1 - r, group=g),  # type: ignore[arg-type]
    "none coalesced": lambda r, g: g.allreduce_coalesced([]),
    "none coalesced, by torch": lambda r, g: dist.all_reduce_coalesced([], group=g),
    "two dtypes": lambda r, g: g.allreduce_coalesced(DTYPES),
    "two dtypes, by torch": lambda r, g: dist.all_reduce_coalesced(DTYPES, group=g),
    "two dtypes, by the manager": lambda r, g: managed(DTYPES, g),
    "none gathered": lambda r, g: g.allgather_coalesced([[] for _ in range(SIZE)], []),
    "none gathered into one": lambda r, g: g.allgather_into_tensor_coalesced([], []),
    "one gathered into two": lambda r, g: g.allgather_into_tensor_coalesced([torch.empty(4), torch.empty(4)], [own(r)]),
    "gathered from few": lambda r, g: g.allgather_coalesced([[own(0)]], [own(r)]),
    "gathered in part": lambda r, g: g.allgather_coalesced([[own(0), own(0)], [own(0)]], [own(r), own(r)]),
    "none scattered": lambda r, g: g.reduce_scatter_tensor_coalesced([], []),
    "one scattered into two": lambda r, g: g.reduce_scatter_tensor_coalesced(
        [torch.empty(1), torch.empty(1)], [own(r)]
    ),
    "the backend of another device": lambda r, g: g._get_backend(torch.device("cuda")),
    "pending works": lambda r, g: g._wait_for_pending_works(),
    "subgroup of nobody": lambda r, g: g.split_group([]),
    "subgroup with one twice": lambda r, g: g.split_group([0, 0]),
}


def described(value: Any) -> Any:
    """Return what can be compared."""
    if isinstance(value, Tensor):
        return str(value.dtype), value.tolist()
    return [described(each) for each in value] if isinstance(value, list | tuple) else value


def outcomes(groups: list[Group], call: Call) -> list[Any]:
    def run(rank: int) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return described(call(rank, groups[rank]))
        except Exception as error:  # of whatever kind: that is the question
            return error

    return each(run)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_what_gloo_gives(both: tuple[list[Group], list[Group]], name: str) -> None:
    theirs, ours = (outcomes(groups, CALLS[name]) for groups in both)
    assert not any(isinstance(outcome, Exception) for outcome in theirs), theirs
    assert ours == theirs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_raises_what_gloo_raises(both: tuple[list[Group], list[Group]], name: str) -> None:
    theirs, ours = (outcomes(groups, BAD[name]) for groups in both)
    for their, our in zip(theirs, ours, strict=True):
        assert isinstance(their, Exception), their
        assert isinstance(our, type(their)), f"{their!r} but {our!r}"
    assert outcomes(both[1], CALLS["barrier by names"]) == [None, None]


@pytest.mark.filterwarnings("ignore")
def test_a_deadline_raises_what_gloos_does(both: tuple[list[Group], list[Group]]) -> None:
    for group in (gloo_groups()[0], both[1][0]):
        with pytest.raises(RuntimeError, match=r"[Tt]imed out"):
            group.recv([own(0)], 1, 99).wait(timedelta(milliseconds=20))
        if group is not both[1][0]:
            group_names.forget(group, group.group_name)


def events_of(groups: list[Group]) -> set[tuple[str, str]]:
    """Return names and shapes of what rank 0 does: a process has one profiler at a time."""

    def do(rank: int) -> None:
        group = groups[rank]
        group.allreduce([own(rank)]).wait()
        group.allgather([row()], [own(rank)]).wait()
        group.broadcast([own(rank)]).wait()
        group.alltoall(row(), row()).wait()
        (group.recv([own(rank)], 0, 8) if rank else group.send([own(rank)], 1, 8)).wait()
        group.barrier().wait()

    def watch(rank: int) -> set[tuple[str, str]]:
        if rank:
            do(rank)
            return set()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            do(rank)
        named = [(event.name.partition(":"), str(event.input_shapes)) for event in profiler.events()]
        return {(name, shapes) for (backend, _, name), shapes in named if backend in ("gloo", "multiworld")}

    found: set[tuple[str, str]] = each(watch)[0]
    return found


@pytest.mark.filterwarnings("ignore")
def test_the_profiler_shows_operations_as_it_shows_gloos(both: tuple[list[Group], list[Group]]) -> None:
    theirs, ours = map(events_of, both)
    assert ("all_reduce", "[[2]]") in theirs
    assert theirs <= ours
