"""A captured step does in each replay what its block did: bit for bit what the same steps do when they are issued."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from multiworld.remote import CaptureError, NodeDeadError, RemoteOperationError, Step
from multiworld.remote.capturing.capture import capture
from multiworld.remote.master.node import Node
from tests.unit.remote.fake_node import FakeNode, values


def test_replays_compute_with_other_inputs(node: Node) -> None:
    x, y = node.send(torch.arange(4.0)), node.send(torch.ones(4))
    with capture(x, y) as step:
        total = (x * 2 + y).sum()
        step.returns(total)
    assert values(total).item() == 16
    again = step(node.send(torch.zeros(4)), torch.full((4,), 3.0))  # the second is sent by the step
    assert values(again).item() == 12
    assert values(total).item() == 16
    assert values(step(x, y)).item() == 16
    assert "3 operations" in repr(step)


def test_a_step_returns_a_tuple_a_tensor_or_nothing(node: Node) -> None:
    x = node.send(torch.arange(4.0))
    with capture(x) as two:
        two.returns(x + 1, x)
    more, same = two(torch.ones(4))
    assert values(more).tolist() == [2, 2, 2, 2]
    assert values(same).tolist() == [1, 1, 1, 1]
    with capture(x) as nothing:
        x.add_(1)
    assert nothing(x) is None
    assert values(x).tolist() == [2, 3, 4, 5]


def test_a_step_without_inputs_writes_what_was_there_before(node: Node) -> None:
    counter = node.send(torch.zeros(2))
    with capture(node=node) as step:
        counter[0].add_(1)
    version = counter._version
    for _ in range(3):
        step()
    assert values(counter).tolist() == [4, 0]
    assert counter._version == version + 3  # autograd notices that it was written


def test_a_tensor_of_the_block_that_lives_on_gets_new_values(fake: FakeNode) -> None:
    x = fake.node.send(torch.ones(3))
    with capture(x) as step:
        doubled = x * 2
        step.returns(doubled + 1)
    step(torch.full((3,), 5.0))
    assert values(doubled).tolist() == [10, 10, 10]
    live = _num_live(fake)
    del doubled
    gc.collect()
    result = step(torch.full((3,), 7.0))
    assert values(result).tolist() == [15, 15, 15]
    assert _num_live(fake) == live  # the result of the replay, and no more what was given up


def test_temporaries_never_enter_the_table(fake: FakeNode) -> None:
    x = fake.node.send(torch.ones(3))
    with capture(x) as step:
        y: Tensor = x
        for _ in range(20):
            y = y * 1.5
        step.returns(y)
    del y
    before = _num_live(fake)
    kept = [step(x) for _ in range(5)]
    assert _num_live(fake) == before + len(kept)


def _num_live(fake: FakeNode) -> int:
    """Return how many tensors the node has, once it freed what was given up."""
    fake.node.synchronize()
    fake.node.synchronize()  # frees go behind a wait
    return fake.num_tensors


def test_constants_of_the_block_are_fixed(node: Node) -> None:
    x = node.send(torch.ones(3))
    with capture(x) as step:
        step.returns(x * torch.tensor([1.0, 2.0, 3.0]))
    assert values(step(torch.full((3,), 2.0))).tolist() == [2, 4, 6]


# ---- training


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))


Choice = Callable[[nn.Module], Optimizer]
OPTIMIZERS: dict[str, Choice] = {
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "foreach": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True),
    "fused": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("zero_at_the_start", [True, False])
def test_training_by_replay_is_bit_identical(optimizer: str, zero_at_the_start: bool) -> None:
    """With dropout: replays draw on from the generator of the node."""
    replayed = _train(OPTIMIZERS[optimizer], replays=True, zero_at_the_start=zero_at_the_start)
    issued = _train(OPTIMIZERS[optimizer], replays=False, zero_at_the_start=zero_at_the_start)
    for one, other in zip(replayed, issued, strict=True):
        assert torch.equal(one, other)


def _train(choice: Choice, *, replays: bool, zero_at_the_start: bool, num_steps: int = 50) -> list[Tensor]:
    """Return all losses, and the parameters and buffers at the end."""
    torch.manual_seed(1)  # the node shares the generator of this process: all that is drawn here is drawn before
    batches = [(torch.randn(6, 8), torch.randint(0, 4, (6,))) for _ in range(num_steps)]
    local = _model()
    with FakeNode() as fake:
        model = fake.node.load(local)
        optimizer = choice(model)
        fake.node.manual_seed(7)

        def work(x: Tensor, y: Tensor) -> Tensor:
            loss = nn.functional.cross_entropy(model(x), y)
            if zero_at_the_start:
                optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if not zero_at_the_start:
                optimizer.zero_grad()
            return loss.detach()

        losses: list[Tensor] = []
        step: Step | None = None
        for place, (inputs, labels) in enumerate(batches):
            x, y = fake.node.send(inputs), fake.node.send(labels)
            if place < 1 or not replays:
                losses.append(work(x, y))
            elif step is None:
                with capture(x, y) as step:
                    losses.append(work(x, y))
                    step.returns(losses[-1])
            else:
                losses.append(step(x, y))
        return [values(each.detach()) for each in (*losses, *model.state_dict().values())]


def test_a_recurrent_network_whose_last_state_nobody_uses_can_be_captured(node: Node) -> None:
    gru = node.load(nn.GRU(3, 3))
    weight = next(gru.parameters())
    x = node.send(torch.randn(4, 3))

    def gradient() -> Tensor:
        gru.zero_grad()
        gru(x)[0].sum().backward()
        assert weight.grad is not None
        return weight.grad

    with capture(x) as step:
        step.returns(gradient())
    assert torch.equal(values(step(x)), values(gradient()))


def test_gradients_are_those_of_the_last_replay(node: Node) -> None:
    weight = node.send(torch.ones(3)).requires_grad_()
    x = node.send(torch.ones(3))
    with capture(x) as step:
        weight.grad = None
        (weight * x).sum().backward()  # type: ignore[no-untyped-call]
    step(torch.full((3,), 4.0))
    assert weight.grad is not None
    assert values(weight.grad).tolist() == [4, 4, 4]


def test_a_scalar_varies(node: Node) -> None:
    weight = nn.Parameter(node.send(torch.ones(2)))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    x = node.send(torch.ones(2))
    with capture(x) as step:
        lr = step.scalar("lr", 0.5)
        optimizer.param_groups[0]["lr"] = lr * 0.5
        optimizer.zero_grad()
        (weight * x).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        step.returns(weight.detach() * lr)
    assert values(weight.detach()).tolist() == [0.75, 0.75]
    assert values(step(x, lr=1.0)).tolist() == [0.25, 0.25]
    step(x)
    assert values(weight.detach()).tolist() == [0.0, 0.0]
    assert lr == 0.5  # behind the block it is a number like others
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert values(x * optimizer.param_groups[0]["lr"]).tolist() == [0.25, 0.25]
    with pytest.raises(TypeError, match="no scalar 'rate'; it has: lr"):
        step(x, rate=1.0)
    with pytest.raises(TypeError, match="has to be a number"):
        step(x, lr=torch.ones(()))  # type: ignore[arg-type]


def test_generators_are_kept_and_restored_as_checkpoints_do(node: Node) -> None:
    from multiworld.remote.tensor.generators import kept, restore
    from multiworld.remote.tensor.remote_tensor import RemoteTensor

    node.manual_seed(3)
    x = node.send(torch.ones(50))
    with capture(x) as step:
        state = kept(RemoteTensor, x._session)
        one = torch.nn.functional.dropout(x)
        restore(state)
        step.returns(one, torch.nn.functional.dropout(x))
    del state, one
    first, second = step(x)
    third, _ = step(x)
    assert torch.equal(values(first), values(second))
    assert not torch.equal(values(first), values(third))


# ---- failures


def test_a_failed_operation_names_its_line_in_the_block_and_that_of_the_replay(node: Node) -> None:
    table, x = node.send(torch.arange(4.0)), node.send(torch.tensor([1]))
    with capture(x) as step:
        picked = table.index_select(0, x)
        step.returns(picked * 2, x + 1)
    bad, good = step(torch.tensor([9]))
    assert values(good).tolist() == [10]
    with pytest.raises(RemoteOperationError) as caught:
        values(bad)
    assert caught.value.operation == "aten.index_select.default"
    assert caught.value.line.count("test_step.py") == 2
    assert "replayed at" in caught.value.line
    with pytest.raises(RemoteOperationError):
        values(picked)
    again, _ = step(torch.tensor([3]))
    assert values(again).tolist() == [6]
    assert values(picked).tolist() == [3]


def test_what_a_failed_operation_writes_is_lost_until_it_is_written_whole(fake: FakeNode) -> None:
    node = fake.node
    total, x = node.send(torch.zeros(4)), node.send(torch.tensor([1]))
    view = total[1:]
    with capture(x) as step:
        total.index_add_(0, x, torch.ones(1))
    step(torch.tensor([7]))
    for each in (total, view):
        with pytest.raises(RemoteOperationError, match="index_add_"):
            values(each)
    step(torch.tensor([2]))
    with pytest.raises(RemoteOperationError, match="index_add_"):
        values(total)


def test_a_replay_on_a_lost_node_raises_at_the_next_wait(fake: FakeNode) -> None:
    x = fake.node.send(torch.ones(2))
    with capture(x) as step:
        step.returns(x + 1)
    fake.lose()
    result = step(x)
    with pytest.raises(NodeDeadError):
        values(result)
    with pytest.raises(NodeDeadError):
        step(torch.ones(2))


def test_a_step_of_an_old_generation_is_refused(node: Node) -> None:
    x = node.send(torch.ones(2))
    with capture(x) as step:
        step.returns(x + 1)
    with FakeNode() as other, pytest.raises(CaptureError, match="captured in generation 0"):
        step(other.node.send(torch.ones(2)))
    with FakeNode(2) as other, pytest.raises(ValueError, match="on node 2, and the step was captured on node 1"):
        step(other.node.send(torch.ones(2)))


def test_a_closed_step_is_forgotten(fake: FakeNode) -> None:
    x = fake.node.send(torch.ones(2))
    with capture(x) as step:
        step.returns(x + 1)
    with capture(x) as other:
        other.returns(x + 2)
    graphs = fake.there._executor._graphs._graphs
    fake.node.synchronize()
    assert len(graphs) == 2
    step.close()
    step.close()
    del other
    fake.node.synchronize()
    assert not graphs
    with pytest.raises(CaptureError, match="it was closed"):
        step(x)
