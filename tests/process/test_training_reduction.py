"""Reductions, facts and states over real worlds, all members in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import multiworld as mw
from multiworld.training.engine.buckets import lay_out
from multiworld.training.engine.commit import exchange
from multiworld.training.engine.facts import Facts
from multiworld.training.engine.gathering import INLINE_BYTES
from multiworld.training.engine.gradients import FlatBucket
from multiworld.training.engine.reduction import Reduction, SumReduction, TreeReduction
from multiworld.training.recovery import transfer
from multiworld.training.recovery.transfer import DamagedStateError, Receiving, Sending

from .one_process import in_thread, worlds

SIZES = [(3,), (0,), (2, 5), (7,)]


def on_all(group: Sequence[mw.World], call: Callable[[mw.World], Any]) -> list[Any]:
    running = [in_thread(call, world) for world in group]
    return [each.result() for each in running]


def gradient(micro_batch: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(micro_batch)
    return [torch.randn(size, generator=generator).to(dtype) for size in SIZES]


def flat_buckets(dtype: torch.dtype) -> list[FlatBucket]:
    tensors = [torch.zeros(size, dtype=dtype) for size in SIZES]
    shapes = [(each.numel(), each.element_size(), (each.dtype, each.device)) for each in tensors]
    return [FlatBucket(each, tensors) for each in lay_out(shapes, bucket_bytes=20, first_bucket_bytes=20)]


class Member:
    """Computes micro-batches as the engine does."""

    def __init__(self, reduction: Reduction, num_micro_batches: int, dtype: torch.dtype = torch.float32) -> None:
        self.reduction, self.dtype = reduction, dtype
        self.is_tree = isinstance(reduction, TreeReduction)
        self.buckets = flat_buckets(dtype)
        self.done: list[int] = []
        reduction.begin_step(self.buckets, num_micro_batches)

    def compute(self, micro_batches: Sequence[int]) -> None:
        for number in micro_batches:
            values = gradient(number, self.dtype)
            for bucket in self.buckets:
                if self.is_tree:
                    bucket.sums.zero_()
                for slot in bucket.layout.slots:
                    view = bucket.sums[slot.begin : slot.begin + slot.num_elements]
                    view.add_(values[slot.parameter].flatten())
            self.reduction.end_micro_batch(number)
            self.done.append(number)

    def reduced(self) -> Tensor:
        self.reduction.wait()
        return torch.cat([bucket.reduced.float() for bucket in self.buckets])


def reduce_over(
    shares: Sequence[Sequence[int]], make: Callable[[], Reduction], dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    num_micro_batches = sum(map(len, shares))

    def run(world: mw.World) -> Tensor:
        member = Member(make(), num_micro_batches, dtype)
        member.reduction.use(world, shares)
        member.compute(shares[world.rank])
        return member.reduced()

    with worlds(len(shares)) as group:
        found: list[Tensor] = on_all(group, run)
    return found


def sum_of(num_micro_batches: int, dtype: torch.dtype = torch.float32) -> Tensor:
    buckets = flat_buckets(dtype)
    for number in range(num_micro_batches):
        values = gradient(number, dtype)
        for bucket in buckets:
            for slot in bucket.layout.slots:
                bucket.sums[slot.begin : slot.begin + slot.num_elements].add_(values[slot.parameter].flatten())
    return torch.cat([bucket.sums.float() for bucket in buckets])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_all_members_have_the_sum_of_all_micro_batches(dtype: torch.dtype) -> None:
    first, *others = reduce_over([[0, 1], [2], []], SumReduction, dtype)
    for other in others:
        assert torch.equal(first, other)
    tolerance = 0.05 if dtype is torch.bfloat16 else 1e-6
    torch.testing.assert_close(first, sum_of(3, dtype), rtol=tolerance, atol=tolerance)


def test_the_tree_has_the_same_bits_for_any_number_of_members() -> None:
    alone = reduce_over([[0, 1, 2, 3, 4]], TreeReduction)[0]
    for shares in ([[0, 1, 2], [3, 4]], [[4, 1], [], [0, 2, 3]]):
        for found in reduce_over(shares, TreeReduction):
            assert torch.equal(found, alone)
    torch.testing.assert_close(alone, sum_of(5))


@pytest.mark.parametrize("make", [SumReduction, TreeReduction])
def test_finished_micro_batches_count_in_the_next_world(make: Callable[[], Reduction]) -> None:
    """Member 2 is lost in the reduction, so its micro-batches are computed by the others."""
    members = [Member(make(), 4) for _ in range(3)]

    def first_try(world: mw.World) -> None:
        member = members[world.rank]
        member.reduction.use(world, [[0], [1], [2, 3]])
        if world.rank == 2:
            world.abort()
            return
        member.compute([world.rank])
        with pytest.raises((mw.WorldBrokenError, mw.WorldClosedError)):
            member.reduction.wait()

    def second_try(world: mw.World) -> Tensor:
        member = members[world.rank]
        member.reduction.use(world, [[0, 2], [1, 3]])
        member.compute([2 + world.rank])
        return member.reduced()

    with worlds(3) as group:
        on_all(group, first_try)
    with worlds(2) as group:
        found = on_all(group, second_try)
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], sum_of(4))


def test_a_bucket_may_be_reduced_once_more() -> None:
    def run(world: mw.World) -> Tensor:
        member = Member(SumReduction(), 2)
        member.reduction.use(world, [[0], [1]])
        member.compute([world.rank])
        member.reduced()
        member.buckets[0].sums.add_(1.0)
        member.reduction.launch(0)
        return member.reduced()

    with worlds(2) as group:
        first, second = on_all(group, run)
    assert torch.equal(first, second)
    expected = sum_of(2)
    expected[: flat_buckets(torch.float32)[0].sums.numel()] += 2.0
    torch.testing.assert_close(first, expected)


def facts_of(rank: int, size: int) -> Facts:
    return Facts(step=3, done=tuple(range(size)), values={"loss": (0.5 * rank,) * size}, is_leaving=rank == 1)


@pytest.mark.parametrize("sizes", [(1, 2, 3), (1, 2000, 3), (0, 0, 0)])
def test_all_hear_the_facts_of_all_in_their_order(sizes: tuple[int, ...]) -> None:
    """Also those that do not fit into the first collective."""
    assert INLINE_BYTES < 2000
    with worlds(3) as group:
        heard = on_all(group, lambda world: exchange(world, facts_of(world.rank, sizes[world.rank])))
    expected = [facts_of(rank, size) for rank, size in enumerate(sizes)]
    assert heard == [expected] * 3


def test_nobody_hears_facts_if_one_is_gone_before_it_said_its_own() -> None:
    def run(world: mw.World) -> str:
        if world.rank == 2:
            world.abort()
            return "gone"
        try:
            exchange(world, facts_of(world.rank, 1))
        except mw.WorldBrokenError:
            return "broken"
        return "heard"

    with worlds(3) as group:
        assert on_all(group, run) == ["broken", "broken", "gone"]


def state_of(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    weight = torch.randn(300, 40, generator=generator)
    return {
        "step": step,
        "parts": {"model": {"w": weight, "tied": weight, "empty": torch.zeros(0), "half": torch.ones(5).bfloat16()}},
    }


@pytest.mark.parametrize("num_sources", [1, 2])
def test_newcomers_get_the_state_from_several_sources_at_once(
    num_sources: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 10_000)
    sources, newcomers = list(range(num_sources)), [num_sources, num_sources + 1]

    def run(world: mw.World) -> Any:
        if world.rank in sources:
            state = state_of(7)
            sending = Sending(world, state, sources, newcomers)
            state["parts"]["model"]["w"].zero_()  # the training goes on; what is sent is of before
            sending.wait()
            assert sending.is_done
            return None
        receiving = Receiving(world, sources)
        receiving.wait()
        assert receiving.num_sources == num_sources
        return receiving.state(state_of(0))

    with worlds(num_sources + 2) as group:
        found = on_all(group, run)
    for state, size_bytes in found[num_sources:]:
        expected = state_of(7)["parts"]["model"]
        model = state["parts"]["model"]
        assert state["step"] == 7
        assert size_bytes == 300 * 40 * 4 + 5 * 2
        assert all(torch.equal(model[name], tensor) for name, tensor in expected.items())


def test_a_source_that_is_lost_on_the_way_ends_the_transfer() -> None:
    def run(world: mw.World) -> str:
        if world.rank == 0:
            Sending(world, state_of(7), [0, 1], [2])
            return "sent"
        if world.rank == 1:
            world.abort()
            return "gone"
        with pytest.raises(mw.WorldBrokenError):  # at the start already, if the news is faster
            Receiving(world, [0, 1]).wait()
        return "broken"

    with worlds(3) as group:
        assert on_all(group, run) == ["sent", "gone", "broken"]


def test_a_state_that_was_damaged_on_the_way_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(world: mw.World) -> str:
        if world.rank == 0:
            Sending(world, state_of(7), [0], [1]).wait()
            return "sent"
        receiving = Receiving(world, [0])
        share = receiving._shares[0]
        digest = transfer._digest

        def damaged(data: Tensor) -> str:
            data[17] ^= 1
            return digest(data)

        with monkeypatch.context() as patch:
            patch.setattr(transfer, "_digest", damaged)
            with pytest.raises(DamagedStateError, match="the state from rank 0"):
                receiving.wait()
        assert share.header
        return "refused"

    with worlds(2) as group:
        first = in_thread(run, group[0])
        assert first.result() == "sent"
        assert in_thread(run, group[1]).result() == "refused"
