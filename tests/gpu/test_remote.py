"""Remote tensors on the GPU of a node: the same results as on that GPU without a node between."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from multiworld import remote
from multiworld.remote import Nodes
from multiworld.testing import scaled
from tests.gpu.test_nccl import NUM_DEVICES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(scaled(180.0)),
    pytest.mark.skipif(NUM_DEVICES == 0, reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with remote.local(2, num_threads=1) as both:
        yield both


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in self.project(x).chunk(3, -1))
        return nn.functional.scaled_dot_product_attention(query, key, value).flatten(1).mean(-1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0].mean((1, 2))  # type: ignore[no-any-return]


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolve, self.norm = nn.Conv1d(6, 4, 3, bias=False), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.convolve(x)).relu().mean((1, 2))  # type: ignore[no-any-return]


def trained(model: nn.Module, x: Tensor, **options: bool) -> list[Tensor]:
    """Return the parameters after five steps, in the memory of the CPU."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **options)  # type: ignore[arg-type]
    for _ in range(5):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    return [each.detach().cpu() for each in model.parameters()]


@pytest.mark.parametrize("kind", [Attention, Recurrent, Convolution])
@pytest.mark.parametrize("fused", [False, True])
def test_a_model_trains_as_on_a_local_gpu(nodes: Nodes, kind: Callable[[], nn.Module], fused: bool) -> None:
    torch.manual_seed(0)
    model, x = kind(), torch.randn(4, 6, 16)
    there = nodes[1].load(copy.deepcopy(model)).cuda()
    assert {each.get_device() for each in there.parameters()} == {0}
    got = trained(there, nodes[1].send(x).cuda(), fused=fused)
    expected = trained(model.cuda(), x.cuda(), fused=fused)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_values_come_from_the_gpu_and_go_to_it(nodes: Nodes) -> None:
    assert "cuda:0" in nodes[1].devices
    x = torch.arange(100_000.0).reshape(100, 1000)
    there = nodes[1].send(x).cuda()
    assert (there.get_node(), there.get_device()) == (1, 0)
    assert torch.equal((there.t() + 1).cpu(), x.t() + 1)
    assert there[3, 5].item() == x[3, 5]
    assert torch.equal(there.cpu(), x)
    made = nodes[1].full((3,), 7.0, device="cuda")
    assert (made.get_device(), made.tolist()) == (0, [7.0] * 3)


def test_tensors_go_from_gpu_to_gpu_of_other_nodes(nodes: Nodes) -> None:
    x = torch.randn(300, 200)
    there = nodes[1].send(x).cuda().to_node(2).cuda()
    assert (there.get_node(), there.get_device()) == (2, 0)
    assert torch.equal(there.fetch(), x)
    both = [nodes[1].full((1000,), 1.0, device=0), nodes[2].full((1000,), 2.0, device=0)]
    remote.all_reduce(both)
    assert [each.get_device() for each in both] == [0, 0]
    assert all(torch.equal(each.fetch(), torch.full((1000,), 3.0)) for each in both)
    parts = remote.all_gather(both)
    assert all(torch.equal(each.fetch(), torch.full((1000,), 3.0)) for of_node in parts for each in of_node)


def test_streams_of_a_node_keep_the_order_of_events_on_its_gpu(nodes: Nodes) -> None:
    x = nodes[1].zeros(1 << 20, device=0)
    stream = nodes[1].stream()
    for step in range(20):
        x += 1
        stream.wait_stream(nodes[1].default_stream)
        with stream:
            y = x * 2
        nodes[1].default_stream.wait_stream(stream)
        assert y[step].item() == 2 * (step + 1)
    nodes[1].synchronize()


def test_a_gpu_that_is_not_there_fails_where_its_result_is_needed(nodes: Nodes) -> None:
    there = nodes[1].zeros(3, device=NUM_DEVICES)
    assert there.get_device() == NUM_DEVICES
    with pytest.raises(remote.RemoteOperationError, match=rf"no device cuda:{NUM_DEVICES}; its devices: cpu, cuda:0"):
        there.fetch()


def test_more_memory_than_a_gpu_has_names_what_is_live(nodes: Nodes) -> None:
    held = nodes[1].zeros(1 << 20, device=0)
    there = nodes[1].empty(1 << 45, dtype=torch.uint8, device=0)
    with pytest.raises(remote.NodeMemoryError, match=r"test_remote\.py"):
        there.fetch()
    assert held[0].item() == 0.0


def test_a_step_is_captured_and_replayed_on_a_gpu(nodes: Nodes) -> None:
    x, y = nodes[1].ones(8, device=0), nodes[1].full((8,), 2.0, device=0)
    with remote.capture(x, y) as step:
        step.returns((x * y + 1).sum())
    assert step(y, y).item() == 8 * 5.0


def test_tensors_of_a_gpu_come_back_on_the_next_process() -> None:
    with remote.local(1, num_threads=1) as nodes:
        remote.recoverable(every_s=0.2)
        x = nodes[1].zeros(1000, device=0)
        x += nodes[1].randn(1000, device=0)
        before = x.fetch()
        x += 1
        os.kill(nodes[1].pid, signal.SIGKILL)
        assert torch.equal(x.fetch(), before + 1)
        assert x.get_device() == 0
