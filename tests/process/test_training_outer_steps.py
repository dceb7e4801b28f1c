"""Means of outer steps over real worlds: all members get the same bits, and a loss costs nothing of the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import multiworld as mw
from multiworld.training.sync.codec import Compression
from multiworld.training.sync.reduction import OuterReduction

from .one_process import in_thread, worlds

LENGTH = 5000


def payload(member: int) -> Tensor:
    return torch.randn(LENGTH, generator=torch.Generator().manual_seed(member))


def of_all(group: list[mw.World], call: Callable[[mw.World], Tensor]) -> list[Tensor]:
    running = [in_thread(call, world) for world in group]
    return [each.result() for each in running]


@pytest.mark.parametrize(("compression", "error"), [(None, 1e-6), ("bfloat16", 0.05), ("int8", 0.05)])
def test_all_members_get_the_same_mean_of_two_fragments(compression: Compression | None, error: float) -> None:
    def mean(world: mw.World) -> Tensor:
        reduction = OuterReduction(compression)
        reduction.use(world)
        reduction.send(0, payload(world.rank))
        reduction.send(1, 2 * payload(world.rank))
        means = [reduction.mean(fragment, world.world_size) for fragment in reduction.under_way]
        return torch.cat(means)

    with worlds(3) as group:
        first, *others = of_all(group, mean)
    for other in others:
        assert torch.equal(first, other)
    expected = torch.stack([payload(member) for member in range(3)]).mean(0)
    assert (first - torch.cat([expected, 2 * expected])).abs().max() <= error


@pytest.mark.parametrize("compression", [None, "int8"])
def test_what_was_sent_is_summed_up_again_by_the_survivors(compression: Compression | None) -> None:
    reductions = [OuterReduction(compression) for _ in range(2)]
    with worlds(3) as old, worlds(2) as survivors:
        for reduction, world in zip(reductions, old, strict=False):  # rank 2 sends nothing before it is lost
            reduction.use(world)
            reduction.send(0, payload(world.rank))
        waiting = [in_thread(reduction.mean, 0, 3) for reduction in reductions]
        old[2].abort()
        for each in waiting:
            with pytest.raises(mw.WorldBrokenError):
                each.result()

        def again(world: mw.World) -> Tensor:
            reductions[world.rank].use(world)
            mean = reductions[world.rank].mean(0, 2)
            reductions[world.rank].finish(0)
            return mean

        first, second = of_all(survivors, again)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, (payload(0) + payload(1)) / 2, rtol=0, atol=0.05 if compression else 1e-6)
    assert [reduction.under_way for reduction in reductions] == [(), ()]


def test_a_newcomer_takes_part_with_zeros_and_gets_the_mean_of_the_others() -> None:
    def mean(world: mw.World) -> Tensor:
        reduction = OuterReduction()
        reduction.use(world)
        reduction.send(0, torch.zeros(LENGTH) if world.rank == 2 else payload(world.rank))
        return reduction.mean(0, 2)

    with worlds(3) as group:
        for got in of_all(group, mean):
            torch.testing.assert_close(got, (payload(0) + payload(1)) / 2)
