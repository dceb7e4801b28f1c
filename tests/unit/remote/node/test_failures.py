"""What fails on a node is lost, with all that shares its memory and all that needs it; the rest goes on."""

from __future__ import annotations

import sys

import pytest
import torch

from multiworld.remote import NodeMemoryError, RemoteOperationError
from multiworld.remote.master.node import Node
from multiworld.remote.node import executor, shared
from multiworld.remote.node.failing import describe_failure
from multiworld.remote.node.table import Lost, Table, lose_written
from multiworld.remote.protocol.messages import Failed

from ..fake_node import FakeNode, values

INDEX = torch.tensor([9])


def test_dependents_of_a_failure_do_not_run_and_independents_do(fake: FakeNode) -> None:
    node = fake.node
    node.manual_seed(3)
    failed = node.zeros(3).index_select(0, node.send(INDEX))
    for _ in range(50):
        failed = torch.rand_like(failed) + failed
    drawn = node.rand(4)
    with pytest.raises(RemoteOperationError, match=r"aten.index_select.default failed on node 1: .*index.*range"):
        values(failed)
    torch.manual_seed(3)
    assert torch.equal(values(drawn), torch.rand(4))  # no dependent took a number from the generator
    assert fake.session.stream.failures.total == 1


def test_a_tensor_that_was_to_be_written_is_lost_with_its_views(fake: FakeNode) -> None:
    base, other = fake.node.ones(4), fake.node.ones(4)
    view = base[:2]
    base.index_fill_(0, fake.node.send(INDEX), 2.0)
    for lost in (base, view, base + 1, other.clone().add_(base)):
        with pytest.raises(RemoteOperationError, match="index_fill_"):
            values(lost)
    assert values(other).tolist() == [1, 1, 1, 1]


def test_what_is_lost_already_is_not_searched_for_again() -> None:
    lost = Lost(Failed(stream=0, position=1, kind="IndexError", text="no"))
    base = torch.zeros(4)
    table: Table = {1: base, 2: base[1:], 3: torch.zeros(4)}
    lose_written(table, [1], lost)
    assert [type(each) for each in table.values()] == [Lost, Lost, torch.Tensor]
    later = Lost(Failed(stream=0, position=2, kind="IndexError", text="no"))
    lose_written(table, [2], later)
    assert (table[1], table[2]) == (lost, later)


@pytest.mark.sources
def test_a_small_tensor_that_cannot_be_kept_is_lost_and_the_node_goes_on(
    fake: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tensor_of(*_: object) -> torch.Tensor:
        raise MemoryError("no room")

    kept = fake.node.send(torch.ones(2))
    values(kept)
    monkeypatch.setattr(executor, "tensor_of", tensor_of)
    lost = fake.node.send(torch.ones(3))
    with pytest.raises(
        NodeMemoryError, match=r"(?s)no room.*1 tensors are live, 8 B.*issued at .*test_failures\.py"
    ) as caught:
        values(lost + 1)
    assert caught.value.operation == "send"
    assert values(kept + 1).tolist() == [2, 2]


def test_lack_of_memory_names_the_lines_that_made_what_is_live(fake: FakeNode) -> None:
    made = fake.node.ones(1 << 20)
    view = made[1:]  # has no memory of its own
    sent = fake.node.send(torch.ones(1 << 19))
    small = fake.node.ones(3)
    first = sys._getframe().f_lineno - 4
    values(sent)  # it has come
    with pytest.raises(NodeMemoryError) as caught:
        values(fake.node.empty(1 << 50))
    head, lines = caught.value.text.splitlines()
    assert "[3 tensors are live, 6,291,468 B; the largest: (1048576,) torch.float32 (4,194,304 B), (524288,)" in head
    made_at, sent_at, small_at = lines.removeprefix("  these were made at ").split(", ")
    assert f"test_failures.py:{first} in" in made_at
    assert f"test_failures.py:{first + 2} in" in sent_at
    assert small_at == "an unknown line"
    assert [values(each)[0].item() for each in (view, sent, small)] == [1, 1, 1]


def test_a_large_tensor_that_cannot_be_taken_is_lost_and_the_node_goes_on(
    fake: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(*_: object) -> torch.Tensor:
        raise RuntimeError("a tensor did not arrive")

    kept = fake.node.send(torch.ones(2))
    with monkeypatch.context() as patch:
        patch.setattr(shared, "_wait", wait)
        lost = fake.node.send(torch.ones(100_000))
        for needs in (lost + 1, lost):
            with pytest.raises(RemoteOperationError, match=r"aten.add.Tensor failed .* did not arrive"):
                values(needs)
    assert values(kept + 1).tolist() == [2, 2]


def test_what_pytorch_says_of_all_its_kernels_is_left_out() -> None:
    error = NotImplementedError(
        "Could not run 'aten::x' with arguments from the 'CPU' backend. This could be because.\n\nCPU: registered at"
    )
    assert describe_failure(error, {}) == (
        "NotImplementedError",
        "Could not run 'aten::x' with arguments from the 'CPU' backend. This could be because.",
        (),
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a node without a GPU")
def test_a_node_without_a_gpu_says_so(node: Node) -> None:
    with pytest.raises(RemoteOperationError) as told:
        values(node.ones(2).cuda())
    assert told.value.text == "the node has no device cuda:0; its devices: cpu"
    assert told.value.operation == "aten._to_copy.default"
    assert told.value.node == 1
