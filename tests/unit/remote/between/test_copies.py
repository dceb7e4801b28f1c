"""Tensors go from node to node, and not through the master; what is lost at its source is lost at its target."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from multiworld.remote.errors import NodeDeadError, RemoteOperationError
from multiworld.remote.large_memory import LargeMemory
from multiworld.remote.session.sync_points import no_sync

from ..fake_node import remote_of, values
from ..fake_nodes import FakeNodes

INDEX = torch.tensor([9])


def test_a_copy_has_the_values_and_none_goes_through_the_master(nodes: FakeNodes) -> None:
    source = nodes[1].arange(200_000).view(400, 500).t()
    with no_sync():
        copied = source.to_node(2)
        again = copied.to_node(3) + 1
    assert (copied.get_node(), copied.shape, copied.stride()) == (2, source.shape, source.stride())
    statistics = [fake.session.statistics for fake in nodes.fakes.values()]
    assert sum(each.sent_bytes + each.fetched_bytes for each in statistics) == 0
    assert torch.equal(values(again), torch.arange(200_000).view(400, 500).t() + 1)
    names = [name.rpartition("-")[0] for name in nodes.meeting.names]
    assert names == ["remote-between-1.0-2.0", "remote-between-2.0-3.0"]


def test_tensors_without_elements_with_gaps_and_of_other_types_arrive(nodes: FakeNodes) -> None:
    for made in (
        nodes[1].zeros(0, 3),
        nodes[1].arange(12).view(3, 4)[:, ::2],
        nodes[1].ones(2, dtype=torch.bfloat16),
        nodes[1].tensor([1 + 2j, 3 - 1j]).conj(),
        nodes[1].ones((), dtype=torch.bool),
    ):
        copied = remote_of(made).to_node(2)
        assert copied.dtype == made.dtype
        assert torch.equal(values(copied), values(made))


def test_one_world_serves_all_copies_of_two_nodes_in_both_directions(nodes: FakeNodes) -> None:
    for _ in range(5):
        there = nodes[1].ones(3).to_node(2)
        back = remote_of(there * 2).to_node(1)
        assert values(back).tolist() == [2, 2, 2]
    assert len(nodes.meeting.names) == 1


def test_a_write_behind_a_copy_does_not_change_the_copy(nodes: FakeNodes) -> None:
    source = nodes[1].zeros(3)
    for step in range(20):
        copied = source.to_node(2)
        source.add_(1)
        assert values(copied).tolist() == [step] * 3


def test_a_gradient_goes_back_to_the_node_of_its_tensor(nodes: FakeNodes) -> None:
    weight = nodes[1].ones(3).requires_grad_()
    with no_sync():
        (weight.to_node(2) * 5).sum().backward()
    assert weight.grad is not None
    assert (remote_of(weight.grad).get_node(), values(weight.grad).tolist()) == (1, [5, 5, 5])


def test_copy_writes_into_a_tensor_of_another_node_and_its_gradient_comes_home(nodes: FakeNodes) -> None:
    weight, target = nodes[1].ones(3).requires_grad_(), nodes[2].zeros(2, 3)
    with no_sync():
        target.copy_(weight)
        (target * 2).sum().backward()
    assert values(target.detach()).tolist() == [[1, 1, 1], [1, 1, 1]]
    assert weight.grad is not None
    assert (remote_of(weight.grad).get_node(), values(weight.grad).tolist()) == (1, [4, 4, 4])


def test_what_is_lost_at_its_source_is_lost_at_its_target_with_the_first_operation(nodes: FakeNodes) -> None:
    failed = nodes[1].zeros(3).index_select(0, nodes[1].send(INDEX))
    lost = remote_of(failed).to_node(2).to_node(3) + 1
    kept = nodes[1].ones(2).to_node(2)
    with pytest.raises(RemoteOperationError, match=r"index_select\.default failed on node 1") as caught:
        values(lost)
    assert "test_copies.py" in caught.value.line
    assert values(kept).tolist() == [1, 1]
    failures = [fake.session.stream.failures for fake in nodes.fakes.values()]
    assert [each.total for each in failures] == [1, 0, 0]
    assert not [error for each in failures for error in each.unseen_errors()]


def test_a_target_without_memory_is_told_and_the_source_is_not_kept_waiting(
    nodes: FakeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = nodes[1].ones(3)
    values(source)

    def no_room(*_: object) -> torch.Tensor:
        raise MemoryError("no room")

    monkeypatch.setattr(LargeMemory, "tensor", no_room)
    lost = source.to_node(2)
    with pytest.raises(RemoteOperationError, match=r"to_node failed on node 2.*no room"):
        values(lost)
    monkeypatch.undo()
    source.add_(1)
    assert values(source).tolist() == [2, 2, 2]


def test_the_loss_of_the_source_is_named_at_the_target_which_goes_on(nodes: FakeNodes) -> None:
    nodes.meeting.missing.add(1)  # it dies before it joins
    lost = nodes[1].ones(3).to_node(2) + 1
    nodes.lose(1)
    with pytest.raises(RemoteOperationError, match=r"node 1.* sends for to_node at .*test_copies\.py") as caught:
        values(lost)
    assert "node 1 is lost" in caught.value.text or "does not come" in caught.value.text
    assert values(nodes[2].ones(2) + 1).tolist() == [2, 2]
    assert values(nodes[2].ones(2).to_node(3)).tolist() == [1, 1]
    with pytest.raises(NodeDeadError):
        nodes[2].ones(2).to_node(1)


def test_a_world_that_does_not_form_ends_its_copies_and_the_next_copy_forms_another(nodes: FakeNodes) -> None:
    nodes.meeting.missing.add(2)
    source = nodes[1].ones(3)
    lost = source.to_node(2)
    with pytest.raises(RemoteOperationError, match="does not come"):
        values(lost)
    source.add_(1)  # does not wait for a copy that can't be
    assert values(source).tolist() == [2, 2, 2]
    nodes.meeting.missing.clear()
    nodes[1].synchronize()
    assert values(source.to_node(2)).tolist() == [2, 2, 2]


def test_worlds_that_were_not_used_for_long_are_left(nodes: FakeNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiworld.remote.between.worlds.MAX_WORLDS", 1)
    for number in (2, 3, 2):
        assert values(nodes[1].ones(2).to_node(number)).tolist() == [1, 1]
    assert len(nodes.meeting.names) == 3
    for node in nodes.values():
        node.synchronize()


def test_many_threads_copy_in_all_directions(nodes: FakeNodes) -> None:
    found: list[bool] = []

    def work(source: int, target: int) -> None:
        for step in range(20):
            copied = nodes[source].full((5000,), float(step)).to_node(target)
            found.append(bool((values(copied) == step).all()))

    threads = [threading.Thread(target=work, args=pair) for pair in ((1, 2), (2, 1), (2, 3), (3, 1), (1, 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 100


def test_what_is_sent_from_another_node_is_a_copy(nodes: FakeNodes) -> None:
    source = nodes[1].ones(3, requires_grad=True)
    with no_sync():
        there, here = nodes[2].send(source), nodes[1].send(source)
    with torch.no_grad():
        source.add_(1)
    assert (there.get_node(), here.get_node(), there.requires_grad) == (2, 1, False)
    assert values(there).tolist() == values(here).tolist() == [1, 1, 1]


def test_a_module_is_loaded_from_another_node(nodes: FakeNodes) -> None:
    net = nn.Linear(2, 2)
    nodes[1].load(net)
    weight = values(net.weight)
    nodes[2].load(net)
    assert remote_of(net.weight).get_node() == 2
    assert isinstance(net.weight, nn.Parameter)
    assert torch.equal(values(net.weight), weight)
