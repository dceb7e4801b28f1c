"""A compiled function does what the function does, forward and backward, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from multiworld.remote import CaptureError, RemoteOperationError
from multiworld.remote.capturing.capture import capture
from multiworld.remote.capturing.compiling import compile_function
from multiworld.remote.master.node import Node
from tests.unit.remote.fake_node import FakeNode, values


def test_a_function_is_traced_once_for_each_set_of_arguments(fake: FakeNode) -> None:
    calls: list[float] = []

    @compile_function
    def scaled(x: Tensor, by: float, *, plus: Tensor | None = None) -> tuple[Tensor, float]:
        """Scale."""
        calls.append(by)
        return (x * by if plus is None else x * by + plus), by

    x = fake.node.send(torch.arange(3.0))
    assert scaled.__doc__ == "Scale."
    for _ in range(3):
        result, by = scaled(x, 2.0)
        assert (values(result).tolist(), by) == ([0, 2, 4], 2.0)
    assert values(scaled(x, 3.0)[0]).tolist() == [0, 3, 6]
    assert values(scaled(x, 2.0, plus=torch.ones(3))[0]).tolist() == [1, 3, 5]
    assert values(scaled(fake.node.send(torch.ones(1)), 2.0)[0]).tolist() == [2]
    assert calls == [2.0, 3.0, 2.0, 2.0]
    assert scaled.num_traced == 4


def test_a_call_is_one_message_and_its_tracing_runs_nothing(fake: FakeNode) -> None:
    counter = fake.node.send(torch.zeros(()))

    @compile_function
    def count(x: Tensor) -> Tensor:
        counter.add_(1)
        for _ in range(30):
            x = x * 1.1
        return x

    x = fake.node.send(torch.ones(2))
    count(x)
    assert values(counter).item() == 1
    fake.session.flush()
    before = fake.session.stream.queue.position
    count(x)
    fake.session.flush()
    assert fake.session.stream.queue.position - before <= 2  # with the results of the call before, which are freed
    assert values(counter).item() == 2


Model = Callable[[], nn.Module]
MODELS: dict[str, Model] = {
    "perceptron": lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 6)),
    "norms": lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU()),
    "attention": lambda: nn.TransformerEncoderLayer(6, 2, 12, dropout=0.1, batch_first=True),
    "gru": lambda: FirstOf(nn.GRU(6, 6)),
}


class FirstOf(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("model", MODELS)
def test_training_through_a_compiled_model_is_bit_identical(model: str) -> None:
    compiled, plain = (_train(MODELS[model], is_compiled=each) for each in (True, False))
    for one, other in zip(compiled, plain, strict=True):
        assert torch.equal(one, other)


def _train(model: Model, *, is_compiled: bool) -> list[Tensor]:
    torch.manual_seed(3)
    local, batches = model(), [torch.randn(5, 6) for _ in range(8)]
    with FakeNode() as fake:
        module = fake.node.load(local)
        call: Any = compile_function(module) if is_compiled else module
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        fake.node.manual_seed(4)
        losses, gradients = [], []
        for place, batch in enumerate(batches):
            module.train(place != 5)
            x = fake.node.send(batch.unsqueeze(0) if isinstance(local, nn.TransformerEncoderLayer) else batch)
            x.requires_grad_()
            loss = functional.mse_loss(call(x), x.detach())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
            gradients.append(x.grad)
        if is_compiled:
            assert call.num_traced == 2 + 1  # to train, to evaluate, and to train again
        with torch.no_grad():
            losses.append(call(x))
        return [
            values(each.detach()) for each in (*losses, *gradients, *module.state_dict().values()) if each is not None
        ]


def test_gradients_do_not_share_memory(node: Node) -> None:
    @compile_function
    def add(a: Tensor, b: Tensor) -> Tensor:
        return a + b.t()

    a, b = (node.send(torch.ones(2, 2)).requires_grad_() for _ in range(2))
    add(a, b).sum().backward()  # type: ignore[no-untyped-call]
    assert a.grad is not None
    a.grad.mul_(5)
    assert values(a.grad).tolist() == [[5, 5], [5, 5]]
    assert values(b.grad).tolist() == [[1, 1], [1, 1]]  # type: ignore[arg-type]


def test_results_do_not_share_memory_with_arguments(node: Node) -> None:
    @compile_function
    def same(x: Tensor) -> dict[str, Tensor]:
        return {"same": x, "view": x[1:], "again": x}

    x = node.send(torch.zeros(3))
    results = same(x)
    for each in results.values():
        each.add_(1)
    assert values(x).tolist() == [0, 0, 0]
    assert [values(each).tolist() for each in results.values()] == [[1, 1, 1], [1, 1], [1, 1, 1]]


def test_what_the_backward_needs_must_not_be_written(node: Node) -> None:
    weight = nn.Parameter(node.send(torch.ones(2, 2)))
    product = compile_function(lambda x: (x @ weight).exp())
    x = node.send(torch.ones(2, 2)).requires_grad_()
    result = product(x)
    weight.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
    result = product(x)
    result.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
    result = product(x)
    result.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        result.sum().backward()


@pytest.mark.parametrize("penalty", [lambda gradient: gradient.square().sum(), lambda gradient: gradient.sum()])
def test_a_second_derivative_is_refused_and_not_left_out(node: Node, penalty: Callable[[Tensor], Tensor]) -> None:
    weight = node.send(torch.full((3,), 2.0)).requires_grad_()
    cube = compile_function(lambda x: (x * weight).pow(3).sum())
    x = node.send(torch.arange(3.0)).requires_grad_()
    (gradient,) = torch.autograd.grad(cube(x), x, create_graph=True)
    assert values(gradient).tolist() == [0, 24, 96]
    loss = penalty(gradient) + weight.sum()
    with pytest.raises(CaptureError, match=r"test_compiling\.py.* differentiated again.* without remote\.compile"):
        loss.backward()  # type: ignore[no-untyped-call]
    cube(x).backward()
    assert x.grad is not None
    assert values(x.grad).tolist() == [0, 24, 96]


def test_only_some_results_are_used(node: Node) -> None:
    @compile_function
    def two(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * 2, x * 3, x.detach()

    x = node.send(torch.ones(2)).requires_grad_()
    _, tripled, plain = two(x)
    assert not plain.requires_grad
    (tripled * torch.tensor([1.0, 2.0])).sum().backward()  # type: ignore[no-untyped-call]
    assert values(x.grad).tolist() == [3, 6]  # type: ignore[arg-type]


def test_a_parameter_that_was_replaced_or_frozen_is_traced_again(node: Node) -> None:
    linear = node.load(nn.Linear(2, 2))
    call: Any = compile_function(linear)
    x = node.send(torch.ones(1, 2))
    call(x)
    linear.weight.data = node.send(torch.zeros(2, 2))
    linear.bias.data = node.send(torch.ones(2))
    assert values(call(x).detach()).tolist() == [[1, 1]]
    linear.requires_grad_(False)
    assert not call(x).requires_grad
    assert call.num_traced == 3


def test_a_compiled_function_is_a_part_of_a_captured_step(node: Node) -> None:
    doubled = compile_function(lambda x: x * 2)
    x = node.send(torch.ones(2))
    with capture(x) as step:
        step.returns(doubled(x) + 1)
    assert values(step(torch.full((2,), 3.0))).tolist() == [7, 7]


def test_what_is_no_function_of_tensors_is_refused(node: Node) -> None:
    x = node.send(torch.ones(2))
    with pytest.raises(CaptureError, match="it waits for a value"):
        compile_function(lambda x: x if x.sum() > 1 else -x)(x)
    with pytest.raises(TypeError, match="needs a tensor of a node"):
        compile_function(lambda x: x)(torch.ones(2))
    with pytest.raises(TypeError, match="of type set"):
        compile_function(lambda x, y: x)(x, {1})
    with pytest.raises(RuntimeError, match="broadcast a dimension"):
        compile_function(lambda x: x + torch.ones(3))(x)
    with pytest.raises(CaptureError, match="writes its argument 0 in place"):
        compile_function(lambda x, w: x.mul_(w))(x, node.send(torch.ones(2)).requires_grad_())
    hooked = node.send(torch.ones(2)).requires_grad_()
    hooked.register_hook(lambda gradient: gradient)  # type: ignore[no-untyped-call]
    with pytest.raises(CaptureError, match="has hooks"):
        compile_function(lambda x: x * hooked)(x)
    assert values(x).tolist() == [1, 1]


def test_a_failed_operation_names_its_line_in_the_function(node: Node) -> None:
    table = node.send(torch.arange(4.0))
    pick = compile_function(lambda index: table.index_select(0, index))
    index = node.send(torch.tensor([1]))
    assert values(pick(index)).tolist() == [1]
    with pytest.raises(RemoteOperationError, match="replayed at") as caught:
        values(pick(node.send(torch.tensor([9]))))
    assert caught.value.operation == "aten.index_select.default"


def test_what_is_forgotten_is_forgotten_on_the_node(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiworld.remote.capturing.compiling.MAX_TRACED", 2)
    scaled = compile_function(lambda x, by: x * by)
    x = fake.node.send(torch.ones(2)).requires_grad_()
    for by in (1, 2, 3, 1):
        scaled(x, by).sum().backward()
    fake.node.synchronize()
    assert scaled.num_traced == 4
    assert len(fake.there._executor._graphs._graphs) == 2 * 3  # a forward, and backwards for two layouts of gradients


def test_a_function_that_is_gone_is_forgotten_on_the_node(fake: FakeNode) -> None:
    doubled = compile_function(lambda x: x * 2)
    result = doubled(fake.node.send(torch.ones(2)).requires_grad_())
    fake.node.synchronize()
    graphs = fake.there._executor._graphs._graphs
    assert len(graphs) == 2
    del doubled
    result.sum().backward()
    del result
    fake.node.synchronize()
    fake.node.synchronize()
    assert not graphs
