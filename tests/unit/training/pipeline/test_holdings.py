"""What a process holds of a model, takes over and gives back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from multiworld.model.layers import layers_by_hand
from multiworld.training.pipeline.contents import Contents
from multiworld.training.pipeline.holdings import Holdings

EXAMPLE = torch.arange(6.0).reshape(2, 3)


def chain(seed: int = 0) -> list[nn.Module]:
    torch.manual_seed(seed)
    return [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3), nn.Linear(3, 1)]


def holdings(seed: int = 0) -> tuple[Holdings, torch.optim.Optimizer, list[nn.Module]]:
    stages = chain(seed)
    held = Holdings(Contents(layers_by_hand(stages, (EXAMPLE, EXAMPLE)).layers, {"1.running_mean", "1.running_var"}))
    optimizer = held.add_optimizer(lambda parameters: torch.optim.AdamW(parameters, lr=0.1))
    return held, optimizer, stages


def train(stages: list[nn.Module], optimizer: torch.optim.Optimizer) -> None:
    values: Tensor = EXAMPLE
    for stage in stages:
        values = stage(values)
    optimizer.zero_grad()
    values.square().mean().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def test_names_are_those_of_the_whole_model() -> None:
    held, _, _ = holdings()
    assert list(held.contents.uses_of([2])) == ["2.weight", "2.bias"]
    assert held.contents.uses == [f"{layer}.{name}" for layer in range(4) for name in ("weight", "bias")]
    assert list(held.contents.changing_buffers_of([0, 1])) == ["1.running_mean", "1.running_var"]
    assert held.contents.layers_with("1.weight") == [1]


def test_layers_that_are_not_held_have_no_memory_and_no_optimizer_state() -> None:
    held, optimizer, stages = holdings()
    train(stages, optimizer)
    held.hold([2, 3])
    assert held.held == {2, 3}
    assert not held.is_whole
    assert stages[0].weight.numel() == stages[1].running_mean.numel() == 0  # type: ignore[operator]
    assert sorted(len(group["params"]) for group in optimizer.param_groups) == [4]
    assert set(optimizer.state) == set(stages[2].parameters()) | set(stages[3].parameters())


def test_layers_of_another_process_go_on_as_they_did_there() -> None:
    theirs, their_optimizer, their_stages = holdings(seed=0)
    mine, my_optimizer, my_stages = holdings(seed=1)
    train(their_stages, their_optimizer)
    mine.hold([3])
    mine.put(copy.deepcopy(theirs.capture([0, 1, 2, 3])))
    mine.hold(range(4))
    assert mine.is_whole
    train(their_stages, their_optimizer)
    train(my_stages, my_optimizer)
    for one, other in zip(their_stages, my_stages, strict=True):
        assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def test_only_a_processs_own_layers_go_to_its_device() -> None:
    """Each copy to ``cpu:0`` is a new one, so it stands for another device."""
    stages = chain()
    held = Holdings(Contents(layers_by_hand(stages, (EXAMPLE, EXAMPLE)).layers), device=torch.device("cpu", 0))
    optimizer = held.add_optimizer(torch.optim.AdamW)
    train(stages, optimizer)
    state = {name: each.clone() for name, each in stages[3].state_dict().items()}
    held.hold_all()
    places = [{name: each.data_ptr() for name, each in stage.state_dict().items()} for stage in stages]
    held.hold([1, 3])
    for layer in (1, 3):
        for name, each in stages[layer].state_dict().items():
            assert each.data_ptr() != places[layer][name]
    assert all(torch.equal(each, state[name]) for name, each in stages[3].state_dict().items())


def test_the_same_optimizer_keeps_its_rates_for_other_layers() -> None:
    held, optimizer, _ = holdings()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    scheduler.step()
    held.hold([3])
    assert optimizer.param_groups[0]["lr"] == 0.05
    newcomer, its_optimizer, _ = holdings()
    newcomer.optimizers.load_state_dict(held.optimizers.state_dict())
    assert its_optimizer.param_groups[0]["lr"] == 0.05


def test_a_state_of_another_model_is_refused_before_anything_changes() -> None:
    held, _, stages = holdings()
    state = held.capture([0])
    before = stages[0].weight.clone()  # type: ignore[operator]
    state["parameters"] = {"0.weight": torch.zeros(5, 3), "0.bias": torch.zeros(4)}
    with pytest.raises(ValueError, match=r"0\.weight has the shape \(5, 3\) in a state, and \(4, 3\) here"):
        held.put(state)
    del state["parameters"]["0.bias"]
    with pytest.raises(ValueError, match=r"it differs in \['0\.bias'\]"):
        held.put(state)
    assert torch.equal(stages[0].weight, before)  # type: ignore[arg-type]


def test_a_factory_that_leaves_out_a_group_is_refused() -> None:
    held, _, _ = holdings()

    def grouped(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [[each for each in parameters if (each.ndim > 1) is is_matrix] for is_matrix in (True, False)]
        return torch.optim.SGD([{"params": each} for each in groups if each], lr=0.1)

    held.add_optimizer(grouped)
    with pytest.raises(ValueError, match="made 2 groups of all parameters, and 1 of those of some layers"):
        held.hold([1])


def test_what_was_forgotten_is_not_held() -> None:
    held, _, _ = holdings()
    held.forget()
    assert not held.held
    assert held.is_whole


def test_a_layer_that_comes_later_goes_on_as_where_it_came_from() -> None:
    """Its gradients are there first: for the owners that compute them, and for this process."""
    theirs, their_optimizer, their_stages = holdings(seed=0)
    mine, my_optimizer, my_stages = holdings(seed=1)
    train(their_stages, their_optimizer)
    mine.hold([3])
    mine.expect([0, 1])
    assert my_stages[0].weight.shape == (4, 3)
    assert my_stages[0].weight.untyped_storage().nbytes() == 4  # type: ignore[operator]
    state = copy.deepcopy(theirs.capture([0, 1]))
    train(their_stages, their_optimizer)
    mine.take(state)
    for name, use in mine.contents.uses_of([0, 1]).items():
        use.leaf.grad = theirs.contents.uses_of([0, 1])[name].leaf.grad
    my_optimizer.step()
    assert mine.held == {0, 1, 3}
    for layer in (0, 1):
        for one, other in zip(their_stages[layer].parameters(), my_stages[layer].parameters(), strict=True):
            assert torch.equal(one, other)
            assert torch.equal(their_optimizer.state[one]["exp_avg"], my_optimizer.state[other]["exp_avg"])


def test_who_has_a_layer_in_advance_does_not_save_it() -> None:
    theirs, _, _ = holdings()
    mine, _, _ = holdings()
    mine.hold([3])
    mine.take(copy.deepcopy(theirs.capture([0])))
    assert list(mine.capture_own()["parameters"]) == ["3.weight", "3.bias"]
    mine.hold([3], ahead=[0])
    assert list(mine.capture_own()["parameters"]) == ["3.weight", "3.bias"]
    mine.hold([0])
    assert list(mine.capture_own()["parameters"]) == ["0.weight", "0.bias"]


def test_a_layer_that_does_not_come_after_all_is_given_up() -> None:
    held, optimizer, stages = holdings()
    held.hold([3])
    held.expect([0, 1])
    stages[0].weight.grad = torch.zeros(4, 3)
    held.hold([3])
    assert stages[0].weight.numel() == stages[1].running_mean.numel() == 0  # type: ignore[operator]
    assert stages[0].weight.grad is None
    assert len(optimizer.param_groups[0]["params"]) == 2


def test_the_size_of_a_state_has_what_the_optimizer_keeps() -> None:
    held, optimizer, stages = holdings()
    train(stages, optimizer)
    assert held.size_bytes_of([0]) == 3 * 16 * 4 + 2 * 4  # two tensors with the number of steps
