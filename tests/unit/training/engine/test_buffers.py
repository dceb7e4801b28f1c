"""Buffers are equal on all members after each step, whoever computed which micro-batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from multiworld.training.engine.buffers import SMALL_BYTES, Buffers

LARGE = SMALL_BYTES // 4 + 1


class Members:
    """Some members with equal buffers, whose sums are added up as a reduction does."""

    def __init__(self, buffers: list[Tensor], number: int) -> None:
        self.buffers = [[each.clone() for each in buffers] for _ in range(number)]
        self.all = [Buffers(each) for each in self.buffers]
        self.looked_at: frozenset[int] | None = None

    def step(self, *changes: list[dict[int, float]]) -> None:
        """``changes``: of each member a list with one dict a micro-batch: what is added to which buffer."""
        for each, buffers, mine in zip(self.all, self.buffers, changes, strict=True):
            each.begin_step(self.looked_at)
            for micro_batch in mine:
                each.begin_micro_batch()
                for index, amount in micro_batch.items():
                    buffers[index].add_(amount)
                each.end_micro_batch()
        num_done = sum(len(mine) for mine in changes)
        for flats in zip(*(each.buckets for each in self.all), strict=True):
            total = torch.stack([flat.sums for flat in flats]).sum(0) / num_done
            for flat in flats:
                flat.reduced.copy_(total)
        changed = frozenset().union(*(each.changed for each in self.all))
        self.looked_at = self.all[0].next_to_look_at(self.looked_at, changed)
        for each in self.all:
            each.apply()

    def value(self, index: int) -> float:
        values = {float(buffers[index].flatten()[0]) for buffers in self.buffers}
        assert len(values) == 1, f"members differ: {values}"
        return values.pop()


def test_a_step_adds_the_mean_change_of_its_micro_batches() -> None:
    members = Members([torch.zeros(3)], 2)
    members.step([{0: 1.0}, {0: 2.0}], [{0: 6.0}])
    assert members.value(0) == 3.0
    members.step([{}], [{0: 6.0}, {}])
    assert members.value(0) == 5.0


def test_each_micro_batch_begins_with_what_the_step_began_with() -> None:
    buffer = torch.zeros(1)
    buffers = Buffers([buffer])
    buffers.begin_step(None)
    for _ in range(3):
        buffers.begin_micro_batch()
        assert buffer.item() == 0.0
        buffer.add_(1.0)
        buffers.end_micro_batch()


def test_counts_stay_whole_numbers() -> None:
    members = Members([torch.tensor(0), torch.tensor(True)], 2)
    for _ in range(3):
        members.step([{0: 1}, {0: 1}], [{0: 1}])
    assert members.value(0) == 3
    assert members.buffers[0][0].dtype is torch.int64
    assert members.value(1) == 1.0


def test_a_member_without_micro_batches_gets_the_change_too() -> None:
    members = Members([torch.zeros(2)], 2)
    members.step([{0: 4.0}], [])
    assert members.value(0) == 4.0


def test_large_buffers_that_never_change_are_reduced_in_the_first_step_only() -> None:
    members = Members([torch.zeros(LARGE), torch.zeros(1)], 2)
    members.step([{1: 1.0}], [{1: 1.0}])
    members.step([{1: 1.0}], [{1: 1.0}])
    assert sum(bucket.sums.numel() for bucket in members.all[0].buckets) == 1


def test_a_small_buffer_that_changes_late_is_equal_on_all_members() -> None:
    members = Members([torch.zeros(1)], 2)
    members.step([{}], [{}])
    members.step([{0: 2.0}], [{}])
    assert members.value(0) == 1.0


def test_a_large_buffer_that_changes_late_is_equal_on_all_members_and_looked_at_from_then_on() -> None:
    members = Members([torch.zeros(LARGE)], 2)
    members.step([{}], [{}])
    members.step([{0: 2.0}], [{}])
    assert members.value(0) == 0.0  # this change came unexpected
    members.step([{}], [{}])
    members.step([{0: 2.0}, {}], [{}, {}])
    assert members.value(0) == 0.5


def test_a_large_buffer_that_a_loaded_state_changed_keeps_that_value() -> None:
    members = Members([torch.zeros(LARGE)], 2)
    members.step([{}], [{}])
    for buffers in members.buffers:
        buffers[0].fill_(7.0)
    members.step([{0: 1.0}], [{}])
    assert members.value(0) == 7.0


def test_a_micro_batch_that_did_not_end_leaves_nothing() -> None:
    small, large = torch.zeros(1), torch.zeros(LARGE)
    buffers = Buffers([small, large])
    buffers.begin_step(frozenset({0}))
    buffers.begin_micro_batch()
    small.add_(1.0)
    large.add_(1.0)
    buffers.undo()
    assert (small.item(), large[0].item()) == (0.0, 0.0)
    buffers.begin_micro_batch()
    small.add_(2.0)
    buffers.end_micro_batch()
    assert buffers.changed == {0}
    assert buffers.buckets[0].sums.tolist() == [2.0]


def test_sums_hold_one_micro_batch_only_where_a_tree_adds_them() -> None:
    buffer = torch.zeros(1)
    buffers = Buffers([buffer], separate=True)
    buffers.begin_step(None)
    for amount in (1.0, 5.0):
        buffers.begin_micro_batch()
        buffer.add_(amount)
        buffers.end_micro_batch()
        assert buffers.buckets[0].sums.tolist() == [amount]


def test_statistics_of_batch_norm_take_one_update_a_step() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3)
    inputs = [torch.randn(5, 3) for _ in range(4)]
    buffers = Buffers(list(norm.buffers()))
    buffers.begin_step(None)
    for each in inputs:
        buffers.begin_micro_batch()
        norm(each)
        buffers.end_micro_batch()
    for bucket in buffers.buckets:
        bucket.reduced.copy_(bucket.sums / 4)
    buffers.apply()
    assert norm.num_batches_tracked is not None
    assert norm.running_mean is not None
    assert norm.num_batches_tracked.item() == 1
    torch.testing.assert_close(norm.running_mean, 0.1 * torch.stack(inputs).mean((0, 1)))
