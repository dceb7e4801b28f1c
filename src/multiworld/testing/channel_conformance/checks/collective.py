"""The collectives: torch.distributed's results, for worlds of every size."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

import multiworld as mw

from ...plays import PLAYS, Part
from ...samples import COMPLEX, FLOATS, bits, rough_tensor
from ...tasks import together
from ..arithmetic import Reduction, reductions
from ..catalogue import ANY_SIZE, SEVERAL, by_members
from ..stage import Stage
from .moving import SHAPES, SIZES_BYTES

AT_ONCE = 16  # collectives that are issued together, so that their ranks wait for each other less often
LIMIT_BYTES = {1: 9 << 20, 2: 9 << 20, 3: 2 << 20}  # by world size: what all ranks send and receive adds up
SMALL_LIMIT_BYTES = 200_000


class Case(Part):
    """One collective: its kind, type, shape and root, and what each rank gives in it."""

    def __init__(
        self, stage: Stage, world: mw.World, kind: str, number: int, shape: tuple[int, ...], reduction: Reduction
    ) -> None:
        self.stage, self.world, self.op = stage, world, reduction.op
        self.root = number % stage.size
        self._shape, self._reduction, self._number = shape, reduction, number
        form = f"{reduction.dtype}{list(shape)}"
        name = f"{reduction.name} of {form}" if "reduce" in kind else form
        self._what = f"{kind} of {name} over {stage.size} ranks, root {self.root},"

    def moved(self, rank: int, part: int = 0, more: int = 0) -> Tensor:
        shape = (torch.Size(self._shape).numel() + more,) if more else self._shape
        return self.stage.sample(shape, self._reduction.dtype, self._number, rank, part)

    def number(self, rank: int, part: int = 0) -> Tensor:
        seed = self.stage.seed_of(self._number, rank, part)
        flat = self._reduction.sample(torch.Size(self._shape).numel(), seed)
        return flat.view(self._shape).to(self.stage.device)

    def blank(self, more: int = 0) -> Tensor:
        shape = (torch.Size(self._shape).numel() + more,) if more else self._shape
        return self.stage.blank(shape, self._reduction.dtype)

    def check(self, found: Tensor, expected: Tensor, of: str = "") -> None:
        self.stage.check_same(found, expected, self._what + of)

    def check_reduced(self, found: Tensor, part: int = 0) -> None:
        inputs = [self.number(rank, part).cpu().view(-1) for rank in self.ranks]
        if wrong := self._reduction.wrong(found.cpu().view(-1), inputs):
            self.stage.fail(f"{self._what} succeeded with wrong data: {wrong}")


def _sizes(stage: Stage, dtype: torch.dtype) -> Iterator[tuple[int]]:
    """Yield shapes around every threshold that is not too large for a world of this size."""
    for size in SIZES_BYTES:
        if size <= LIMIT_BYTES.get(stage.size, SMALL_LIMIT_BYTES):
            yield (size // dtype.itemsize + stage.chance.choice((-1, 0, 1)),)


def _movements(stage: Stage) -> Iterator[tuple[tuple[int, ...], Reduction]]:
    """Yield each dtype with some shape, each shape, each size."""
    for dtype in stage.movable:
        yield stage.chance.choice(SHAPES), Reduction("", None, dtype)
    for shape in (*SHAPES, *_sizes(stage, torch.float32)):
        yield shape, Reduction("", None, torch.float32)


def _calculations(stage: Stage) -> Iterator[tuple[tuple[int, ...], Reduction]]:
    """Yield each operation on each dtype that it and the channel have, in larger worlds some of them; and each size."""
    able = [each for each in reductions() if each.makes_sense and stage.channel.can_reduce(each.name, each.dtype)]
    for reduction in able if stage.size < 4 else stage.chance.sample(able, len(able) // 3):
        yield stage.chance.choice(SHAPES), reduction
    for reduction in able:
        if reduction.name == "SUM" and reduction.dtype in (torch.float32, torch.bfloat16):
            for shape in _sizes(stage, reduction.dtype):
                yield shape, reduction


async def _play(stage: Stage, kind: str, cases: Iterator[tuple[tuple[int, ...], Reduction]]) -> None:
    world = await stage.join()
    ready = [Case(stage, world, kind, number, *case) for number, case in enumerate(cases)]
    for start in range(0, len(ready), AT_ONCE):
        await together(*(PLAYS[kind](case) for case in ready[start : start + AT_ONCE]))


@by_members(sizes=ANY_SIZE)
async def broadcast_copies_the_roots_tensor(stage: Stage) -> None:
    """broadcast copies the root's tensor into that of every rank."""
    await _play(stage, "broadcast", _movements(stage))


@by_members(sizes=ANY_SIZE)
async def all_gather_copies_every_ranks_tensor_to_all(stage: Stage) -> None:
    """all_gather copies every rank's tensor into the lists of all, in the order of the ranks."""
    await _play(stage, "all_gather", _movements(stage))


@by_members(sizes=ANY_SIZE)
async def gather_copies_every_ranks_tensor_to_the_root(stage: Stage) -> None:
    """gather copies every rank's tensor into the root's list, in the order of the ranks, and nothing elsewhere."""
    await _play(stage, "gather", _movements(stage))


@by_members(sizes=ANY_SIZE)
async def scatter_copies_its_part_to_each_rank(stage: Stage) -> None:
    """scatter copies the n-th tensor of the root's list to rank n."""
    await _play(stage, "scatter", _movements(stage))


@by_members(sizes=ANY_SIZE)
async def all_to_all_copies_between_all_pairs(stage: Stage) -> None:
    """all_to_all copies the n-th input of rank m to the m-th output of rank n; each pair has a size of its own."""
    await _play(stage, "all_to_all", _movements(stage))


@by_members(sizes=ANY_SIZE)
async def all_reduce_reduces_to_all(stage: Stage) -> None:
    """all_reduce gives every rank the reduction of all tensors, by each operation and on each dtype that it has."""
    await _play(stage, "all_reduce", _calculations(stage))


@by_members(sizes=ANY_SIZE)
async def reduce_reduces_to_the_root(stage: Stage) -> None:
    """reduce gives the root the reduction of all tensors, and leaves those of the others as they are."""
    await _play(stage, "reduce", _calculations(stage))


@by_members(sizes=ANY_SIZE)
async def reduce_scatter_reduces_its_part_to_each_rank(stage: Stage) -> None:
    """reduce_scatter gives rank n the reduction of the n-th tensors of all, and leaves the inputs as they are."""
    await _play(stage, "reduce_scatter", _calculations(stage))


@by_members(sizes=ANY_SIZE)
async def barrier_waits_for_all(stage: Stage) -> None:
    """barrier ends on no rank before it has begun on all."""
    world = await stage.join()
    for number in range(6):
        if number % stage.size == stage.rank:
            await asyncio.sleep(0.02)
        began = time.monotonic()
        await world.barrier()
        ended = time.monotonic()
        times = await stage.exchange([began, ended])
        early = max(begin for begin, _ in times) - min(end for _, end in times)
        stage.check(early <= 0, f"barrier ended {early * 1e3:.2f} ms before a rank had begun it")


@by_members(sizes=SEVERAL)
async def outputs_may_be_the_own_input(stage: Stage) -> None:
    """An output may be the caller's own input, as in all_gather(tensors, tensors[rank])."""
    world, rank, root = await stage.join(), stage.rank, stage.size - 1
    for shape in ((5,), (3000,), (300_000,)):

        def of(rank: int, part: int = 0, shape: tuple[int, ...] = shape) -> Tensor:
            return stage.sample(shape, torch.float32, rank, part)

        def value(rank: int, part: int, shape: tuple[int, ...] = shape) -> Tensor:
            return stage.full(shape[0], rank * 10 + part)

        outputs = [of(other) if other == rank else stage.blank(shape, torch.float32) for other in stage.ranks]
        await world.all_gather(outputs, outputs[rank])
        for other in stage.ranks:
            stage.check_same(outputs[other], of(other), f"all_gather into its own input, part {other},")
        outputs = [of(other) if other == rank else stage.blank(shape, torch.float32) for other in stage.ranks]
        await world.gather(outputs[rank], outputs if rank == root else None, root)
        for other in stage.ranks if rank == root else ():
            stage.check_same(outputs[other], of(other), f"gather into its own input, part {other},")
        inputs = [of(root, part) for part in stage.ranks]
        tensor = inputs[rank] if rank == root else stage.blank(shape, torch.float32)
        await world.scatter(tensor, inputs if rank == root else None, root)
        stage.check_same(tensor, of(root, rank), "scatter from a list that holds its own output")
        inputs = [value(rank, part) for part in stage.ranks]
        await world.reduce_scatter(inputs[rank], inputs)
        total = sum(10 * other + rank for other in stage.ranks)
        stage.check_full(inputs[rank], total, "reduce_scatter into its own input")


@by_members(sizes=(2, 3, 5))
async def results_are_the_same_bits_everywhere_and_every_time(stage: Stage) -> None:
    """A reduction of the same tensors has the same bits on every rank and in every run, whoever comes first and
    whatever else is under way.
    """
    world = await stage.join()
    able = [each for each in reductions() if each.makes_sense and stage.channel.can_reduce(each.name, each.dtype)]
    cases = [(each, 203) for each in able if each.dtype in (*FLOATS, *COMPLEX)]
    cases += [(each, numel) for each, _ in cases if each.name in ("SUM", "AVG") for numel in (20_000, 120_000)]
    first: list[str] = []
    for attempt in range(3):
        await asyncio.sleep(stage.own_chance.uniform(0, 0.005))
        traffic = asyncio.ensure_future(_traffic(stage, world)) if attempt == 1 else None
        tensors = [_rough(stage, reduction, numel) for reduction, numel in cases]
        await together(*(world.all_reduce(tensor, each.op) for tensor, (each, _) in zip(tensors, cases, strict=True)))
        if traffic is not None:
            await traffic
        digests = [hashlib.sha256(bits(tensor.cpu())).hexdigest() for tensor in tensors]
        everywhere = await stage.exchange(digests)
        first = first or digests
        for index, (reduction, numel) in enumerate(cases):
            what = f"all_reduce({reduction}[{numel}]) over {stage.size} ranks"
            found = {digests[index] for digests in everywhere}
            stage.check(len(found) == 1, f"{what} gave different bits on different ranks")
            stage.check(digests[index] == first[index], f"{what} gave other bits in another run")


def _rough(stage: Stage, reduction: Reduction, numel: int) -> Tensor:
    seed = stage.seed_of(reduction.name, reduction.dtype, numel, stage.rank)
    if reduction.dtype in COMPLEX:
        return reduction.sample(numel, seed).to(stage.device)
    return rough_tensor((numel,), reduction.dtype, seed).to(stage.device)


async def _traffic(stage: Stage, world: mw.World) -> None:
    after, before = (stage.rank + 1) % stage.size, (stage.rank - 1) % stage.size
    for _ in range(10):
        tensor = stage.full(5000, 0)
        await together(world.send(stage.full(5000, 1), after), world.recv(tensor, before))


@by_members(sizes=SEVERAL)
async def what_cannot_be_reduced_is_refused_at_once(stage: Stage) -> None:
    """A reduction that makes no sense, or that the channel has not, raises TypeError before anything is sent: on one
    rank alone, it disturbs no other.
    """
    world = await stage.join()
    if stage.rank == 0:
        for reduction in reductions():
            if reduction.makes_sense and stage.channel.can_reduce(reduction.name, reduction.dtype):
                continue
            tensor = stage.blank((4,), reduction.dtype)
            calls: Sequence[Any] = (
                world.all_reduce(tensor, reduction.op),
                world.reduce(tensor, 0, reduction.op),
                world.reduce_scatter(tensor, [tensor.clone() for _ in stage.ranks], reduction.op),
            )
            for call in calls:
                await stage.must_raise(call, TypeError, f"{call.__name__}({reduction})")
        await stage.must_raise(
            world.all_gather([stage.full(4, 0)] * stage.size, stage.full(4, 0)),
            ValueError,
            "all_gather into outputs that share memory",
        )
    tensor = stage.full(10, 1)
    await world.all_reduce(tensor)
    stage.check_full(tensor, stage.size, "the first all_reduce after those that were refused")
