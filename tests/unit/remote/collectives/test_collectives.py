"""Collectives of nodes: as those of a world, with nothing that waits; a member that fails spoils the outputs only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from multiworld import remote
from multiworld.errors import PeerDiedError
from multiworld.remote.errors import RemoteOperationError
from multiworld.remote.session.sync_points import no_sync

from ..fake_node import PATIENCE_S, values
from ..fake_nodes import FakeNodes

INDEX = torch.tensor([9])


def three(nodes: FakeNodes) -> list[Any]:
    """Return [1, 2], [2, 4], [3, 6] on the nodes 1 to 3."""
    return [nodes[number].arange(1.0, 3.0) * number for number in nodes]


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("sum", [6, 12]),
        ("avg", [2, 4]),
        ("min", [1, 2]),
        ("max", [3, 6]),
        ("product", [6, 48]),
        (dist.ReduceOp.MAX, [3, 6]),
    ],
)
def test_all_reduce_reduces_in_place_and_nothing_waits(nodes: FakeNodes, op: Any, expected: list[float]) -> None:
    tensors = three(nodes)
    views = [tensor[1:] for tensor in tensors]
    with no_sync():
        remote.all_reduce(tensors, op)
    assert [values(each).tolist() for each in tensors] == [expected] * 3
    assert [values(each).tolist() for each in views] == [expected[1:]] * 3


def test_broadcast_and_reduce_have_a_root(nodes: FakeNodes) -> None:
    tensors = three(nodes)
    remote.reduce(tensors, dst=1)
    assert [values(each).tolist() for each in tensors] == [[1, 2], [6, 12], [3, 6]]
    remote.broadcast(tensors, src=2)
    assert [values(each).tolist() for each in tensors] == [[3, 6]] * 3


def test_all_gather_gather_and_scatter(nodes: FakeNodes) -> None:
    tensors = three(nodes)
    gathered = remote.all_gather(tensors)
    assert [[each.get_node() for each in row] for row in gathered] == [[1] * 3, [2] * 3, [3] * 3]
    assert [[values(each).tolist() for each in row] for row in gathered] == [[[1, 2], [2, 4], [3, 6]]] * 3
    parts = remote.gather(tensors, dst=2)
    assert [(each.get_node(), values(each).tolist()) for each in parts] == [(3, [1, 2]), (3, [2, 4]), (3, [3, 6])]
    remote.scatter(tensors, parts[::-1], src=2)
    assert [values(each).tolist() for each in tensors] == [[3, 6], [2, 4], [1, 2]]


def test_reduce_scatter_and_all_to_all(nodes: FakeNodes) -> None:
    lists = [[nodes[number].full((2,), float(10 * number + place)) for place in range(3)] for number in nodes]
    reduced = remote.reduce_scatter(lists)
    assert [(each.get_node(), values(each)[0].item()) for each in reduced] == [(1, 60), (2, 63), (3, 66)]
    got = remote.all_to_all(lists)
    assert [[values(each)[0].item() for each in row] for row in got] == [[10, 20, 30], [11, 21, 31], [12, 22, 32]]


def test_many_collectives_of_several_threads_run_in_one_order_on_all_nodes(nodes: FakeNodes) -> None:
    wrong: list[Any] = []

    def work(number: int) -> None:
        for step in range(10):
            tensors = [nodes[each].full((3,), float(number * 100 + step)) for each in nodes]
            remote.all_reduce(tensors)
            got = [values(each)[0].item() for each in tensors]
            if got != [3.0 * (number * 100 + step)] * 3:
                wrong.append(got)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_input_that_is_lost_spoils_the_outputs_of_all_with_its_own_error(nodes: FakeNodes) -> None:
    failed = nodes[2].zeros(3).index_select(0, nodes[2].send(INDEX)).expand(2).clone()
    tensors = [nodes[1].ones(2), failed, nodes[3].ones(2)]
    remote.all_reduce(tensors)
    made = remote.all_gather([nodes[1].ones(2), failed, nodes[3].ones(2)])
    for lost in (*tensors, *made[0], tensors[0] + 1):
        with pytest.raises(RemoteOperationError, match=r"index_select\.default failed on node 2"):
            values(lost)
    kept = three(nodes)
    remote.all_reduce(kept)  # the same world goes on
    assert values(kept[0]).tolist() == [6, 12]
    assert len(nodes.meeting.names) == 1
    assert [len(fake.session.unseen_errors()) for fake in nodes.fakes.values()] == [0, 0, 0]


def failing(nodes: FakeNodes, number: int) -> Any:
    """Return a tensor with 2 elements whose operation failed."""
    return nodes[number].zeros(3).index_select(0, nodes[number].send(INDEX)).expand(2).clone()


def test_a_lost_input_spoils_only_what_depends_on_it(nodes: FakeNodes) -> None:
    tensors = [nodes[1].ones(2), failing(nodes, 2), nodes[3].zeros(2)]
    remote.broadcast(tensors, src=0)
    assert [values(tensors[place]).tolist() for place in (0, 2)] == [[1, 1]] * 2
    inputs = [nodes[1].ones(2), failing(nodes, 2), nodes[3].ones(2)]
    remote.reduce(inputs, dst=2)
    assert values(inputs[0]).tolist() == [1, 1]
    lost = [tensors[1], inputs[1], inputs[2], *remote.gather([nodes[1].ones(2), failing(nodes, 2), nodes[3].ones(2)])]
    roots = [nodes[1].ones(2), failing(nodes, 2), nodes[3].ones(2)]
    remote.broadcast(roots, src=1)
    for each in (*lost, *roots):
        with pytest.raises(RemoteOperationError, match=r"index_select\.default failed on node 2"):
            values(each)
    assert len(nodes.meeting.names) == 1


def test_with_several_lost_inputs_all_members_tell_the_same_one(nodes: FakeNodes) -> None:
    tensors = [failing(nodes, 1), nodes[2].ones(2), failing(nodes, 3)]
    remote.all_reduce(tensors)
    for each in tensors:
        with pytest.raises(RemoteOperationError, match=r"index_select\.default failed on node 3"):
            values(each)


def test_a_dead_member_spoils_the_outputs_and_the_others_go_on(nodes: FakeNodes) -> None:
    first = three(nodes)
    remote.all_reduce(first)
    assert [values(each).tolist() for each in first] == [[6, 12]] * 3
    (worlds,) = nodes.meeting.worlds

    def die(*_: object) -> None:
        nodes.meeting.lose(2)
        raise PeerDiedError("between", 0, 1, "its process has ended")

    worlds[2].start_all_reduce = die  # type: ignore[method-assign, assignment]
    kept = nodes[1].ones(2)
    tensors = three(nodes)
    remote.all_reduce(tensors)
    with pytest.raises(RemoteOperationError, match=r"(?s)all_reduce failed on node 1: .*node 2 is lost") as caught:
        values(tensors[0])
    assert "test_collectives.py" in caught.value.line
    with pytest.raises(RemoteOperationError, match="all_reduce failed on node 3"):
        values(tensors[2])
    nodes.lose(2)
    assert [len(fake.session.unseen_errors()) for fake in nodes.fakes.values()] == [0, 0, 0]
    others = [kept, nodes[3].ones(2)]
    remote.all_reduce(others)
    assert values(kept).tolist() == [2, 2]


def test_what_one_node_can_not_do_ends_the_collective_for_all(nodes: FakeNodes) -> None:
    tensors = three(nodes)
    remote.all_reduce(tensors)
    values(tensors[0])
    (worlds,) = nodes.meeting.worlds

    issued = threading.Event()

    def refuse(*_: object) -> None:
        assert issued.wait(PATIENCE_S)
        raise MemoryError("no room for a copy")

    worlds[3].start_broadcast = refuse  # type: ignore[method-assign, assignment]
    remote.broadcast(tensors)
    next_ones = three(nodes)
    with no_sync():
        remote.all_reduce(next_ones)  # in the same world, before the news of its end
    issued.set()
    with pytest.raises(RemoteOperationError, match="no room for a copy"):
        values(tensors[2])
    with pytest.raises(RemoteOperationError, match=r"broadcast at .* failed before on this node: MemoryError: no room"):
        values(next_ones[2])
    with pytest.raises(RemoteOperationError, match=r"(?s)broadcast failed on node 1: .*node 3 gave up"):
        values(tensors[0])
    again = three(nodes)
    remote.all_reduce(again)
    assert values(again[1]).tolist() == [6, 12]


def mistakes(nodes: FakeNodes) -> list[tuple[Callable[[], object], type[Exception], str]]:
    one, other = nodes[1].ones(2), nodes[2].ones(2)
    return [
        (lambda: remote.all_reduce([]), TypeError, "a list of remote tensors"),
        (lambda: remote.all_reduce([one, torch.ones(2)]), TypeError, "tensor 1 is a Tensor, which is on no node"),
        (lambda: remote.all_reduce([one, nodes[1].ones(2)]), ValueError, "tensors 0 and 1 are both on node 1"),
        (lambda: remote.all_reduce([one, nodes[2].ones(3)]), ValueError, r"tensor 1 is torch.float32\[3\]"),
        (lambda: remote.all_reduce([one, other.double()]), ValueError, "all must be alike"),
        (lambda: remote.all_reduce([one, other], "mean"), ValueError, 'expected one of "sum", "avg"'),
        (lambda: remote.all_reduce([one.long(), other.long()], "avg"), TypeError, "AVG makes fractions"),
        (lambda: remote.all_reduce([one[:1].expand(2), other]), ValueError, "share memory"),
        (lambda: remote.broadcast([one, other], src=2), ValueError, "src=2: expected the place of a tensor"),
        (lambda: remote.all_to_all([[one], [other]]), ValueError, "list 0 has 1 tensors for 2 nodes"),
        (lambda: remote.all_to_all([[one, other], [other, other]]), ValueError, "list 0 are on the nodes"),
        (lambda: remote.scatter([one, other], [one]), ValueError, "a list of 2 parts"),
    ]


@pytest.mark.parametrize("number", range(12))
def test_a_mistake_is_told_at_once_and_no_node_hears_of_it(nodes: FakeNodes, number: int) -> None:
    call, error, text = mistakes(nodes)[number]
    with pytest.raises(error, match=text):
        call()
    assert not nodes.meeting.names


def test_a_tensor_that_backward_needs_may_not_be_reduced_in_place(nodes: FakeNodes) -> None:
    weight = nodes[1].ones(2).requires_grad_()
    factor, other = nodes[1].ones(2), nodes[2].ones(2)
    loss = (weight * factor).sum()
    remote.all_reduce([factor, other])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
