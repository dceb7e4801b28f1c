"""The original names of master-worker mode, over a node in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import multiworld.distributed as dist
from multiworld.distributed.master_worker import default
from multiworld.distributed.master_worker.sending import add_dist_send, remove_dist_send
from multiworld.remote import ConnectError, RemoteTensor
from tests.unit.remote.fake_node import FakeNode

FACTORIES = {
    dist.FloatTensor: torch.float32,
    dist.DoubleTensor: torch.float64,
    dist.HalfTensor: torch.float16,
    dist.BFloat16Tensor: torch.bfloat16,
    dist.ByteTensor: torch.uint8,
    dist.CharTensor: torch.int8,
    dist.ShortTensor: torch.int16,
    dist.IntTensor: torch.int32,
    dist.LongTensor: torch.int64,
    dist.BoolTensor: torch.bool,
}


class FakeNodes(dict[int, Any]):
    """The nodes of a master, without a launcher."""

    def __missing__(self, number: int) -> Any:
        raise ConnectError(f"there is no node {number}")

    def close(self) -> list[Exception]:
        return []


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNodes]:
    with FakeNode() as zero, FakeNode() as one:
        nodes = FakeNodes({0: zero.node, 1: one.node})
        monkeypatch.setattr(default, "connect", lambda *args, **kwargs: nodes)
        dist.init_master_worker("tcp")
        yield nodes
        if default._nodes is not None:
            dist.end_master_worker()


@pytest.mark.parametrize("factory", FACTORIES, ids=lambda factory: factory.name)
def test_each_factory_makes_its_dtype_of_sizes_and_of_values(factory: dist.TensorFactory, nodes: FakeNodes) -> None:
    sized = factory(2, 3)
    assert (sized.dtype, tuple(sized.shape)) == (FACTORIES[factory], (2, 3))
    listed = factory([[1, 0], [1, 1]])
    assert torch.equal(listed.dist_recv(), torch.tensor([[1, 0], [1, 1]], dtype=FACTORIES[factory]))


def test_a_factory_without_arguments_is_empty_and_a_size_is_no_value(nodes: FakeNodes) -> None:
    assert tuple(dist.FloatTensor().shape) == (0,)
    assert tuple(dist.FloatTensor(torch.Size((2, 3))).shape) == (2, 3)
    assert dist.FloatTensor(10, device=1).get_device() == 1
    assert dist.FloatTensor([1.0], device=0).get_device() == 0


@pytest.mark.parametrize("sizes", [(2, -1), (2, 3.5), (2, [3])])
def test_sizes_that_are_none_are_refused(sizes: tuple[Any, ...], nodes: FakeNodes) -> None:
    with pytest.raises(ValueError, match=r"FloatTensor\(2, .*: expected sizes from 0, or one list of values"):
        dist.FloatTensor(*sizes)


def test_tensors_are_made_on_the_current_node_and_node_0_is_the_default(nodes: FakeNodes) -> None:
    local: Any = torch.ones(2)
    assert dist.current_node() is nodes[0]
    with dist.node(1):
        assert dist.current_node() is nodes[1]
        sent = local.dist_send()
        assert isinstance(sent, RemoteTensor)
        assert torch.equal(sent.dist_recv(), local)
        with dist.node(0):
            assert dist.current_node() is nodes[0]
        assert dist.current_node() is nodes[1]
    assert dist.current_node() is nodes[0]
    with pytest.raises(TypeError, match="is on node 1 already"):
        sent.dist_send()  # type: ignore[attr-defined]


def test_a_node_that_is_not_there_is_refused_at_once(nodes: FakeNodes) -> None:
    with pytest.raises(ConnectError, match="there is no node 7"), dist.node(7):
        pass


def test_the_method_of_tensors_is_there_only_meanwhile(nodes: FakeNodes) -> None:
    assert hasattr(torch.Tensor, "dist_send")
    with pytest.raises(RuntimeError, match="has its nodes already: call end_master_worker"):
        dist.init_master_worker()
    dist.end_master_worker()
    assert not hasattr(torch.Tensor, "dist_send")
    with pytest.raises(RuntimeError, match="call init_master_worker"):
        dist.FloatTensor(2)


def test_a_method_of_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "dist_send", "theirs", raising=False)
    with pytest.raises(RuntimeError, match="another library has added it"):
        add_dist_send(dist.current_node)
    assert torch.Tensor.dist_send == "theirs"  # type: ignore[attr-defined]


def test_removing_what_is_not_there_is_no_error() -> None:
    remove_dist_send()
    assert not hasattr(torch.Tensor, "dist_send")


def test_a_backend_that_is_not_there_is_an_error_at_once_and_leaves_nothing() -> None:
    with pytest.raises(ValueError, match="unknown backend 'bogus'"):
        dist.init_master_worker(backend="bogus")
    assert not hasattr(torch.Tensor, "dist_send")


def test_streams_and_events_have_the_names_of_torch_cuda(nodes: FakeNodes) -> None:
    assert dist.current_stream() == dist.default_stream() == nodes[0].default_stream
    one, other, event = dist.Stream(), dist.Stream(), dist.Event()
    x = dist.FloatTensor(20, 20)
    one.wait_stream(dist.default_stream())
    with dist.stream(one):
        assert dist.current_stream() is one
        assert dist.current_stream(1) == nodes[1].default_stream
        x.fill_(4)
        event.record()
    with dist.stream(other):
        event.wait()
        x.add_(1)
    dist.default_stream().wait_stream(other)
    assert torch.equal(x.dist_recv(), torch.full((20, 20), 5.0))
    with dist.node(1), dist.stream(None):
        assert dist.current_stream() == nodes[1].default_stream
    dist.synchronize()
    assert event.query()
    with pytest.raises(ConnectError, match="there is no node 7"):
        dist.Stream(7)
