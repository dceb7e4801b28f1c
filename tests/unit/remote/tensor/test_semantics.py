"""A remote tensor is a tensor: views share memory, in-place operators write, shapes follow, failures come late."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from multiworld.remote import (
    NodeDeadError,
    PlaceMismatchError,
    RemoteOperationError,
    SyncPointError,
    UnsupportedOperationError,
    no_sync,
)
from multiworld.remote.master.node import Node

from ..fake_node import FakeNode, remote_of, values


def test_operators_wait_for_nothing_and_give_the_same_bits(fake: FakeNode) -> None:
    local = torch.randn(3, 4)
    remote = fake.node.send(local)
    result = torch.softmax(remote @ remote.t() + 1.5, -1)
    assert fake.sync_points.total == 0
    assert torch.equal(values(result), torch.softmax(local @ local.t() + 1.5, -1))
    assert fake.sync_points.total == 1


def test_a_write_through_a_view_of_a_view_is_seen_by_all(node: Node) -> None:
    remote = node.send(torch.arange(24.0).view(2, 3, 4))
    view = remote.transpose(0, 2)[1:3]
    view[:, 0].mul_(-1)
    expected = torch.arange(24.0).view(2, 3, 4)
    expected.transpose(0, 2)[1:3][:, 0].mul_(-1)
    assert torch.equal(values(remote), expected)
    assert torch.equal(values(view), expected.transpose(0, 2)[1:3])
    assert view.stride() == (1, 4, 12)


def test_operators_that_change_the_shape_in_place(node: Node) -> None:
    remote = node.send(torch.arange(6.0).view(1, 2, 3))
    view = remote[0]
    remote.squeeze_(0).t_()
    assert (remote.shape, remote.stride(), view.shape) == ((3, 2), (1, 3), (2, 3))
    remote.unsqueeze_(1)
    remote.add_(1)
    assert torch.equal(values(remote), torch.arange(1.0, 7.0).view(2, 3).t().unsqueeze(1))
    assert torch.equal(values(view), torch.arange(1.0, 7.0).view(2, 3))


def test_out_takes_the_shape_of_the_result(node: Node) -> None:
    x, out = node.send(torch.ones(2, 3)), node.send(torch.empty(0))
    returned = torch.add(x, x, out=out)
    assert returned is out
    assert torch.equal(values(out), torch.full((2, 3), 2.0))
    torch.mul(x, 3, out=out)
    assert torch.equal(values(out + 0), torch.full((2, 3), 3.0))


def test_an_operator_that_changes_the_shape_is_planned_once_and_applies_each_time(node: Node) -> None:
    for _ in range(3):
        remote = node.send(torch.zeros(2, 5))
        remote.t_()
        assert remote.shape == (5, 2)
        assert values(remote).shape == (5, 2)


def test_gradients_are_those_of_a_local_tensor(node: Node) -> None:
    torch.manual_seed(0)
    local = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    inputs = torch.randn(5, 4)
    local(inputs).square().mean().backward()
    expected = [parameter.grad for parameter in local.parameters()]
    local.zero_grad()
    remote = node.load(local)
    remote(node.send(inputs)).square().mean().backward()
    for parameter, grad in zip(remote.parameters(), expected, strict=True):
        assert grad is not None
        assert parameter.grad is not None
        assert torch.equal(values(parameter.grad), grad)


def test_values_that_shapes_depend_on_are_asked(fake: FakeNode) -> None:
    remote = fake.node.send(torch.tensor([0.0, 2.0, 0.0, 3.0]))
    assert values(remote.nonzero()).tolist() == [[1], [3]]
    assert remote[remote > 0].tolist() == [2.0, 3.0]
    assert bool((remote > 2).any())
    with no_sync(), pytest.raises(SyncPointError):
        remote.nonzero()


def test_a_failure_comes_with_the_value_that_needs_it(node: Node) -> None:
    index = node.send(torch.tensor([7]))
    lost = node.send(torch.zeros(3)).index_select(0, index)
    other = node.send(torch.ones(2)) * 3
    dependent = lost + 1
    assert other.tolist() == [3.0, 3.0]
    with pytest.raises(RemoteOperationError, match="index_select") as caught:
        values(dependent)
    assert "test_semantics.py" in caught.value.line


def test_shapes_that_do_not_fit_fail_at_once(node: Node) -> None:
    with pytest.raises(RuntimeError, match="broadcast"):
        node.send(torch.ones(2)) + node.send(torch.ones(3))


def test_a_large_tensor_of_the_master_does_not_travel_by_itself(node: Node) -> None:
    remote = node.send(torch.ones(5000))
    assert values(remote + torch.tensor(2.0))[0].item() == 3.0
    with pytest.raises(PlaceMismatchError, match=r"nodes\[1\]\.send"):
        remote + torch.ones(5000)


def test_large_tensors_come_and_go_beside_the_commands(node: Node) -> None:
    local = torch.randn(300, 100)
    remote = node.send(local)
    assert torch.equal(values(remote.t() * 2), local.t() * 2)


def test_what_is_given_up_is_freed_on_the_node(fake: FakeNode) -> None:
    remote: torch.Tensor = fake.node.send(torch.ones(2))
    for _ in range(300):
        remote = remote + 1
    assert remote.tolist() == [301.0, 301.0]
    fake.node.synchronize()
    fake.node.synchronize()
    assert fake.num_tensors == 1


def test_a_lost_node_is_named_by_the_next_wait(fake: FakeNode) -> None:
    remote = fake.node.send(torch.ones(2))
    fake.lose("the test killed it")
    with pytest.raises(NodeDeadError, match="the test killed it"):
        values(remote)


def test_a_batch_leaves_by_itself_after_a_moment(fake: FakeNode) -> None:
    fake.node.send(torch.ones(2))
    assert fake.session.stream.queue.position == 0
    fake.run_timers()
    assert fake.session.stream.queue.position > 0


async def test_a_coroutine_awaits_values(node: Node) -> None:
    assert torch.equal(await remote_of(node.send(torch.ones(2)) + 1).fetched(), torch.full((2,), 2.0))
    assert torch.equal(await remote_of(node.send(torch.ones(20_000)) + 1).fetched(), torch.full((20_000,), 2.0))


def test_a_list_of_one_result_is_a_list_each_time(node: Node) -> None:
    for _ in range(3):
        (part,) = node.send(torch.ones(1, 2)).unbind(0)
        assert torch.equal(values(part + 1), torch.full((2,), 2.0))


def test_out_that_grows_has_the_strides_of_a_new_result(node: Node) -> None:
    local = torch.arange(6.0).view(2, 3).t()
    expected = torch.neg(local, out=torch.empty(0))
    for _ in range(2):
        out = node.send(torch.empty(0))
        torch.neg(node.send(torch.arange(6.0).view(2, 3)).t(), out=out)
        assert out.stride() == expected.stride()
        assert torch.equal(values(out.t().view(-1)), expected.t().view(-1))


def test_a_batch_norm_in_evaluation_waits_for_nothing(fake: FakeNode) -> None:
    local = nn.BatchNorm1d(3).eval()
    inputs = torch.randn(4, 3)
    expected = local(inputs)
    remote = fake.node.load(local)
    results = [remote(fake.node.send(inputs)) for _ in range(2)]
    assert fake.sync_points.total == 0
    assert all(torch.equal(values(each), expected) for each in results)


def test_bags_of_embeddings_are_as_here(node: Node) -> None:
    local = nn.EmbeddingBag(5, 3, mode="sum")
    index, offsets = torch.tensor([1, 2, 4, 4]), torch.tensor([0, 2])
    expected = local(index, offsets)
    assert torch.equal(values(node.load(local)(node.send(index), node.send(offsets))), expected)


def test_sparse_tensors_are_refused_with_a_way_out(node: Node) -> None:
    with pytest.raises(UnsupportedOperationError, match=r"to_dense\(\)"):
        node.send(torch.eye(2).to_sparse())
    with pytest.raises(UnsupportedOperationError, match=r"to_sparse.*fetch\(\) the tensor"):
        node.send(torch.eye(2)).to_sparse()


def test_an_index_of_numbers_is_foreseen_and_a_mask_is_asked(fake: FakeNode) -> None:
    table = fake.node.send(torch.arange(12.0).view(4, 3))
    rows = table[fake.node.send(torch.tensor([2, 0]))]
    assert (rows.shape, fake.sync_points.total) == ((2, 3), 0)
    above = table[table > 4]
    assert (above.shape, fake.sync_points.total) == ((7,), 1)
    assert torch.equal(values(rows), torch.arange(12.0).view(4, 3)[[2, 0]])
    assert torch.equal(values(above), torch.arange(5.0, 12.0))


def test_an_index_out_of_range_is_found_by_the_node_and_told_with_its_line(fake: FakeNode) -> None:
    table = fake.node.send(torch.zeros(10))
    row = table[fake.node.send(torch.tensor([12]))]
    with pytest.raises(RemoteOperationError) as caught:
        values(row * 2)
    assert caught.value.kind == "IndexError"
    assert "test_an_index_out_of_range" in caught.value.line


def test_a_tensor_that_was_sent_grows_as_out(node: Node) -> None:
    target = node.send(torch.ones(2))
    view = target.view(2)
    parts = [target + 1, target + 2, target + 3]
    torch.cat(parts, out=target.resize_(0))
    assert values(target).tolist() == [2.0, 2.0, 3.0, 3.0, 4.0, 4.0]
    assert values(view).tolist() == [2.0, 2.0]


def test_a_view_of_a_batch_of_one_is_indexed_with_the_strides_of_plain_tensors(node: Node) -> None:
    local = torch.arange(12.0).reshape(1, 4, 3).transpose(1, 2)
    rows = torch.tensor([[0, 2], [1, 1]])
    there = node.send(local)[:, rows]
    assert there.stride() == local[:, rows].stride()
    assert torch.equal(values(there), local[:, rows])


def test_a_conjugated_view_that_overlaps_itself_arrives_in_order(node: Node) -> None:
    local = torch.arange(8.0).view(4, 2).to(torch.complex64) * (1 + 2j)
    there = node.send(local).conj().t().unfold(1, 2, 1)
    assert torch.equal(values(there), local.conj().t().unfold(1, 2, 1))


def test_an_out_that_fits_keeps_its_strides(node: Node) -> None:
    local = torch.zeros(2, 4, 3)
    target = node.send(local)[:, 1:3]
    torch.sort(node.send(torch.ones(2, 2, 3)), out=(target, node.zeros(0, dtype=torch.int64)))
    assert target.stride() == local[:, 1:3].stride()
    assert torch.equal(values(target), torch.ones(2, 2, 3))
