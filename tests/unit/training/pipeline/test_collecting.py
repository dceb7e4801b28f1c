"""What finished micro-batches gave, and how another member goes on from it."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch
from torch import Tensor, nn

from multiworld.training.engine.progress import StepProgress
from multiworld.training.pipeline.accumulating import Accumulation
from multiworld.training.pipeline.collecting import Collected, packed, unpacked
from multiworld.training.pipeline.owners import Owned
from multiworld.training.pipeline.partial_step import LayerSums, Span, numbers_of
from multiworld.training.pipeline.work import Work
from multiworld.training.split_backward.put_off import PutOff

NUM_MICRO_BATCHES = 7


class Layer(nn.Module):
    """Has a parameter that is used, one that is not, and a buffer that a forward changes."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.1, 0.9, 5))
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(5))

    def forward(self, values: Tensor) -> Tensor:
        self.seen += values / 3
        return values * self.weight


class Member:
    """One that computes layers 2 and 3 of four, of which the last one has the module."""

    def __init__(self, *, exact: bool, present: Collection[int] = ()) -> None:
        self.layer = Layer()
        leaves = {"weight": self.layer.weight, "unused": self.layer.unused}
        owned = Owned(owners=(0,), computing=(0,), uses=tuple(leaves), buffers=("seen",))
        self.accumulation = Accumulation(
            owned,
            None,
            [range(NUM_MICRO_BATCHES)],
            leaves,
            {"seen": self.layer.seen},
            [self.layer],
            num_micro_batches=NUM_MICRO_BATCHES,
            exact=exact,
            skipped=present,
        )
        work = Work(tasks=(), arrivals=())
        by_layer: dict[int, Collection[int]] = {2: present, 3: present}
        self.collected = Collected(5, [self.accumulation], by_layer, StepProgress(), work, is_last=True)

    def compute(self, numbers: Collection[int], num_ahead: int = 0, *, split: bool = False) -> None:
        """Compute these, and the forwards of so many more. ``split``: first all backwards, then what they put off."""
        in_flight: list[tuple[int, Tensor]] = []
        more = range(max(numbers, default=-1) + 1, NUM_MICRO_BATCHES)[:num_ahead]
        for number in (*numbers, *more):
            self.collected.begin_forward(number)
            loss = self.layer(torch.full((5,), 0.1 * (number + 1))).sum()
            self.collected.end_forward(number)
            in_flight.append((number, loss))
        put_off: list[PutOff] = []
        for number, loss in in_flight[: len(numbers)]:
            self.collected.begin_backward(number)
            loss.backward()  # type: ignore[no-untyped-call]
            if split:
                put_off.append(PutOff())
                self.collected.put_off(number, put_off[-1])
                continue
            self.collected.end_backward(number)
            self.collected.lost(number, float(loss.detach()))
        for (number, loss), weights in zip(in_flight, put_off, strict=False):
            assert all(number not in numbers_of(each.micro_batches) for each in self.collected.partial_step().sums)
            self.collected.begin_weights(number)
            weights.compute()
            self.collected.end_backward(number)
            self.collected.lost(number, float(loss.detach()))

    def result(self) -> tuple[list[float], list[float], dict[int, float]]:
        """Return the mean gradient, the buffer after the step, and the losses."""
        self.accumulation.launch()
        self.accumulation.wait()
        self.accumulation.apply(NUM_MICRO_BATCHES, self.accumulation.unused, skips=False)
        assert self.layer.weight.grad is not None
        assert self.layer.unused.grad is None
        progress = self.collected.progress
        losses = dict(zip(progress.done, progress.values["loss"], strict=True))
        return self.layer.weight.grad.tolist(), self.layer.seen.tolist(), dict(sorted(losses.items()))


@pytest.mark.parametrize("exact", [True, False])
def test_one_that_gets_sums_ends_with_what_one_has_that_computed_all(exact: bool) -> None:
    alone = Member(exact=exact)
    alone.compute(range(NUM_MICRO_BATCHES))
    expected = alone.result()

    first, second = Member(exact=exact), Member(exact=exact)
    first.compute([0, 1, 2], num_ahead=2)
    second.compute([4, 5], num_ahead=1)
    third = Member(exact=exact, present=[0, 1, 2, 4, 5])
    names = {"weight", "unused", "seen"}
    third.collected.begin_with(
        {2: {0, 1, 2, 4, 5}, 3: {0, 1, 2, 4, 5}},
        [unpacked(packed(first.collected.sums(names))), second.collected.sums(names)],
        [first.collected.losses([2, 3]), second.collected.losses([3])],
    )
    third.compute([2, 3, 6])  # 2 is there already
    found = third.result()
    if exact:
        assert found == expected
    else:
        assert found[0] == pytest.approx(expected[0], rel=1e-6)
        assert found[1] == pytest.approx(expected[1], rel=1e-6)
        assert found[2] == expected[2]


@pytest.mark.parametrize("exact", [True, False])
def test_gradients_that_come_after_other_backwards_are_in_the_same_sums(exact: bool) -> None:
    whole, split = Member(exact=exact), Member(exact=exact)
    whole.compute(range(NUM_MICRO_BATCHES))
    split.compute(range(NUM_MICRO_BATCHES), split=True)
    assert split.result() == whole.result()


def test_what_is_in_flight_is_begun_and_in_no_sum() -> None:
    member = Member(exact=False, present=[1])
    member.compute([0, 1], num_ahead=2)
    said = member.collected.partial_step()
    assert said.sums == (LayerSums(first=2, end=4, micro_batches=(Span(0, 1),)),)
    assert said.begun == (Span(0, 4),)
    assert member.collected.losses([3]).keys() == {0}
    assert member.collected.losses([2]) == {}  # the last layer stays with this member


def test_the_same_micro_batches_are_never_taken_twice() -> None:
    first, second = Member(exact=True), Member(exact=True)
    first.compute([0])
    second.compute([0])
    with pytest.raises(ValueError, match="two sums hold"):
        second.accumulation.add(first.collected.sums({"weight"}))


@pytest.mark.parametrize("exact", [True, False])
def test_an_owner_that_does_not_compute_adds_nothing(exact: bool) -> None:
    """It computes other layers meanwhile."""
    layer = Layer()
    leaves = {"weight": layer.weight}
    owned = Owned(owners=(0, 1), computing=(1,), uses=tuple(leaves), buffers=("seen",))
    shares: list[Collection[int]] = [(), range(NUM_MICRO_BATCHES)]
    idle = Accumulation(
        owned,
        None,
        shares,
        leaves,
        {"seen": layer.seen},
        [layer],
        num_micro_batches=NUM_MICRO_BATCHES,
        exact=exact,
        computes=False,
    )
    idle.begin_step()
    for number in range(NUM_MICRO_BATCHES):
        idle.begin_forward()
        idle.end_forward(number)
        idle.begin_backward()
        idle.end_backward(number)
    assert all(not part.any() for each in idle.sums().values() for part in each.parts.values())
    assert not any(number >= 0 and len(each.parts) for number, each in enumerate(idle.sums().values()) if exact)
    assert idle.unused == ["weight"]
