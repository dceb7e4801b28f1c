"""A graph that inductor is to run: what it is given is what the graph does; what it can't do runs as before."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from multiworld.remote import RemoteOperationError
from multiworld.remote.capturing.compiling import Compiled, compile_function
from multiworld.remote.node import inductor
from multiworld.remote.node.plan import Plan
from multiworld.remote.protocol.graphs import Graph, GraphCall
from multiworld.remote.protocol.records import FIRST_PLAN
from multiworld.remote.protocol.specs import Spec
from multiworld.remote.protocol.template import TENSOR, Template
from tests.unit.remote.fake_node import FakeNode, values


class Stub:
    """In place of inductor: runs what it was given, counts, and fails if it is told to."""

    def __init__(self) -> None:
        self.num_runs = self.num_compiled = 0
        self.error: Exception | None = None
        self.num_threads: list[int] = []

    def compile(
        self, module: fx.GraphModule, given: Sequence[Spec], num_threads: int
    ) -> Callable[..., Sequence[Tensor]]:
        self.num_compiled += 1
        self.num_threads.append(num_threads)

        def run(*tensors: Tensor) -> Sequence[Tensor]:
            assert [(tuple(each.shape), each.dtype) for each in tensors] == [(spec.size, spec.dtype) for spec in given]
            self.num_runs += 1
            returned: Sequence[Tensor] = module(*tensors)
            if self.error is not None:
                raise self.error
            return returned

        return run


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    stub = Stub()
    monkeypatch.setattr(inductor, "by_inductor", stub.compile)
    return stub


def problems(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return why nodes did not compile, as it was logged."""
    head = "node 1 runs a function of remote.compile operator by operator: it could not compile it: "
    return [each.getMessage().removeprefix(head) for each in caplog.records if each.getMessage().startswith(head)]


def by_inductor(function: Callable[..., Tensor]) -> Compiled[..., Tensor]:
    return compile_function(function, backend="inductor")


def splits(x: Tensor) -> Tensor:
    first, second = torch.split(x, 3, dim=1)
    values, places = torch.max(second, dim=1)
    beside = torch.cat([first, second], 1)[:, 1:4]
    return torch.addcmul(beside, first, values.unsqueeze(1)).add(places.unsqueeze(1))


def writes(x: Tensor) -> Tensor:
    made = torch.zeros_like(x)
    made[:, 1:3].add_(x[:, :2], alpha=0.5)
    return functional.pad(made, (1, 1), value=2.5)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "perceptron": lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 6)),
    "norms": lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU()),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.4)),
    "attention": lambda: nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True),
}


@pytest.mark.parametrize("name", MODULES)
def test_forward_and_backward_of_a_module_are_what_they_were(fake: FakeNode, stub: Stub, name: str) -> None:
    torch.manual_seed(1)
    module = MODULES[name]()
    wanted = MODULES[name]()
    wanted.load_state_dict(module.state_dict())
    inputs = torch.randn(8, 6)
    fake.node.load(module)
    fast = by_inductor(module)
    there = fake.node.send(inputs)
    for turn in range(3):
        for seed, each in ((fake.node.manual_seed, fast), (torch.manual_seed, wanted)):
            seed(turn)
            (each(there if each is fast else inputs) ** 2).sum().backward()
            fake.node.synchronize()  # the generator of the node is that of this process
    assert (stub.num_compiled, stub.num_runs) == (2, 6)  # forward and backward
    for mine, other in zip(module.parameters(), wanted.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert torch.equal(values(mine.grad), other.grad)
    for one, another in zip(module.buffers(), wanted.buffers(), strict=True):
        assert torch.equal(values(one), another)


@pytest.mark.parametrize("function", [splits, writes])
def test_operators_with_several_results_and_those_that_write_are_given_as_they_are(
    fake: FakeNode, stub: Stub, function: Callable[[Tensor], Tensor]
) -> None:
    x = torch.randn(4, 6)
    fast = by_inductor(function)
    for _ in range(2):
        assert torch.equal(values(fast(fake.node.send(x))), function(x))
    assert (stub.num_compiled, stub.num_runs) == (1, 2)


def test_what_is_written_outside_of_the_function_is_written(fake: FakeNode, stub: Stub) -> None:
    counter = fake.node.zeros(3)
    view = counter[1:]

    def count(x: Tensor) -> Tensor:
        view.add_(1)
        return x + 1

    fast = by_inductor(count)
    for _ in range(3):
        fast(fake.node.ones(2))
    assert (values(counter).tolist(), stub.num_runs) == ([0, 3, 3], 3)


def test_tensors_that_share_memory_and_are_written_run_operator_by_operator(fake: FakeNode, stub: Stub) -> None:
    memory = fake.node.zeros(4)
    low, high = memory[:3], memory[1:]

    def mix(x: Tensor) -> Tensor:
        low.add_(1)
        return torch.add(high, x)

    fast = by_inductor(mix)
    for turn in range(1, 4):
        assert values(fast(fake.node.zeros(3))).tolist() == [turn, turn, 0]
    assert stub.num_compiled == 0


def test_a_problem_is_told_once_and_all_goes_on(
    fake: FakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def without_compiler(
        module: fx.GraphModule, given: Sequence[Spec], num_threads: int
    ) -> Callable[..., Sequence[Tensor]]:
        raise RuntimeError("no C++ compiler was found\nwhich is needed")

    monkeypatch.setattr(inductor, "by_inductor", without_compiler)
    fast, other = by_inductor(lambda x: x * 2), by_inductor(lambda x: x * 3)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert values(fast(fake.node.ones(2))).tolist() == [2, 2]
            assert values(other(fake.node.ones(2))).tolist() == [3, 3]
    assert problems(caplog) == ["RuntimeError: no C++ compiler was found"]


def test_what_is_not_given_to_inductor_says_so(fake: FakeNode, stub: Stub, caplog: pytest.LogCaptureFixture) -> None:
    def resized(x: Tensor) -> Tensor:
        return x.new_zeros(3).resize_(4).zero_()

    fast = by_inductor(resized)
    for _ in range(2):
        assert values(fast(fake.node.ones(2))).tolist() == [0] * 4
    assert problems(caplog) == ["aten.resize_.default gives one of its arguments another shape"]
    assert stub.num_compiled == 0


def test_an_operator_that_keeps_a_workspace_is_not_compiled(
    fake: FakeNode, stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    lstm = nn.LSTM(4, 4)
    x = torch.randn(3, 2, 4)
    wanted = lstm(x)[0]
    fake.node.load(lstm)
    fast = by_inductor(lambda x: lstm(x)[0])
    found = fast(fake.node.send(x))
    assert torch.equal(values(found), wanted)
    assert problems(caplog) == ["aten.mkldnn_rnn_layer.default can't be compiled"]
    assert stub.num_compiled == 0


def test_an_error_of_the_compiled_code_is_one_of_the_call_and_costs_what_it_writes(fake: FakeNode, stub: Stub) -> None:
    counter = fake.node.zeros(3)

    def count(x: Tensor) -> Tensor:
        return torch.add(x, counter.add_(1))

    fast = by_inductor(count)
    fast(fake.node.ones(3))
    stub.error = IndexError("index 9 is out of bounds")
    lost, kept = fast(fake.node.ones(3)), fake.node.ones(3)
    for each in (lost, counter, lost + 1):
        with pytest.raises(
            RemoteOperationError, match=r"(?s)a compiled call failed on node 1: IndexError: .*test_inductor\.py"
        ):
            values(each)
    assert values(kept).tolist() == [1, 1, 1]


def test_code_with_indices_has_one_thread_so_that_a_bad_one_is_an_error(
    fake: FakeNode, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    table, place = fake.node.ones(4, 3), fake.node.send(torch.tensor([1, 2]))
    for function, given in (
        (lambda x: table + x, fake.node.ones(3)),
        (lambda x: table[x], place),
        (lambda x: table[x.argmax(0, keepdim=True)], fake.node.ones(3)),
    ):
        by_inductor(function)(given)
    fake.node.synchronize()
    assert stub.num_threads == [5, 1, 1]


def test_what_was_lost_before_is_not_run(fake: FakeNode, stub: Stub) -> None:
    fast = by_inductor(lambda x: x * 2)
    fast(fake.node.ones(3))
    failed = fake.node.zeros(3).index_select(0, fake.node.send(torch.tensor([7, 8, 9])))
    with pytest.raises(RemoteOperationError, match="index_select"):
        values(fast(failed))
    assert stub.num_runs == 1


def test_it_is_compiled_while_no_other_stream_can_draw_random_numbers(
    fake: FakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Inductor gives the generator back the state that it had before."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(module: fx.GraphModule, given: Sequence[Spec], num_threads: int) -> Callable[..., Sequence[Tensor]]:
        state = torch.get_rng_state()
        begun.set()
        assert go_on.wait(30)
        torch.set_rng_state(state)
        return lambda x: [x * 100]

    monkeypatch.setattr(inductor, "by_inductor", slow)
    fake.node.manual_seed(3)
    fast = by_inductor(lambda x: x * 2)
    result = fast(fake.node.ones(1))
    assert begun.wait(30)
    with fake.node.stream():  # it is opened meanwhile
        drawn = [fake.node.rand(2), fake.node.rand(2)]
        fake.session.flush()
        go_on.set()
        other = by_inductor(lambda x: x * 3)(fake.node.ones(1))
        assert values(other).item() == 3
        numbers = torch.Generator().manual_seed(3)
        for each in drawn:
            assert torch.equal(values(each), torch.rand(2, generator=numbers))
    assert values(result).item() == 100
    assert problems(caplog) == ["the node has other streams, which may draw random numbers meanwhile"]


def test_a_function_is_compiled_once_the_other_streams_are_closed(fake: FakeNode, stub: Stub) -> None:
    fast = by_inductor(lambda x: x * 2)
    stream = fake.node.stream()
    for _ in range(2):
        assert values(fast(fake.node.ones(1))).item() == 2
    assert stub.num_compiled == 0
    stream.close()
    fake.session.flush()
    fake.there.join_streams()
    for _ in range(2):
        assert values(fast(fake.node.ones(1))).item() == 2
    assert (stub.num_compiled, stub.num_runs) == (1, 2)


def test_code_that_returns_another_shape_is_an_error(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "by_inductor", lambda module, given, num_threads: lambda x: [x[:1]])
    with pytest.raises(
        RemoteOperationError, match=r"returned another tensor than the master foresaw: .*\(1,\).*not.*\(3,\)"
    ):
        values(by_inductor(lambda x: x * 2)(fake.node.ones(3)))


@pytest.mark.parametrize("name", ["a=print(1),b", "other "])
def test_a_name_that_is_no_argument_gets_into_no_code(name: str) -> None:
    """A master that is hostile must not have a node execute its text."""
    spec = Spec(size=(3,), stride=(1,), offset=0, dtype=torch.float32, device="cpu")
    template = Template(operator="aten.relu.default", args=(TENSOR,), kwargs={name: 1}, outputs=(spec,))
    call = GraphCall(FIRST_PLAN, inputs=(0,), outputs=(1,))
    graph = Graph(number=1, num_inputs=1, externals=(), constants=(), calls=(call,), statics=(), outputs=(1,))
    with pytest.raises(inductor.NotCompilableError, match=r"aten\.relu\.default has no argument"):
        inductor.built(graph, {FIRST_PLAN: Plan(template)})


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of PyTorch, when it imports inductor
def test_inductor_itself_runs_products_of_matrices_as_they_are(fake: FakeNode) -> None:
    """These need no C++ compiler."""
    one, other = torch.randn(4, 5), torch.randn(5, 6)
    weight = fake.node.send(other)
    fast = by_inductor(lambda x: torch.mm(x, weight))
    there = fake.node.send(one)
    for _ in range(2):
        assert torch.equal(values(fast(there)), one @ other)
    assert values(fast(there).mul_(0)).sum().item() == 0
    assert torch.equal(values(there), one)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown backend 'nvfuser': expected one of eager, inductor"):
        compile_function(splits, backend="nvfuser")
