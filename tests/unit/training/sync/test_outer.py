"""Several members in one process, against the formulas of the papers written out on plain tensors."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from multiworld.training.sync.outer import OuterStep, PseudoGradients, make_outer_step
from multiworld.training.sync.strategies import DiLoCo, LocalSGD

INNER_LR, OUTER_LR, MOMENTUM = 0.05, 0.7, 0.9
WEIGHTS = ("0.weight", "0.bias", "2.weight", "2.bias")


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()


def make_members(strategy: LocalSGD | DiLoCo, num: int = 3) -> tuple[list[nn.Module], list[OuterStep]]:
    models = [make_model() for _ in range(num)]
    return models, [make_outer_step(strategy, [model]) for model in models]


def inputs_of(member: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * member + step)
    return torch.randn(5, 4, generator=generator, dtype=torch.float64)


def inner_step(model: nn.Module, member: int, step: int) -> None:
    inputs = inputs_of(member, step)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    grads = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for param, grad in zip(model.parameters(), grads, strict=True):
            param.sub_(INNER_LR * grad)


def train(
    strategy: LocalSGD | DiLoCo, steps: int, *, total: int | None = None
) -> tuple[list[nn.Module], list[OuterStep]]:
    """Do what the members of a job do, with a sum in place of the collective."""
    models, outers = make_members(strategy)
    table = strategy.timetable(total)
    sent: dict[int, Tensor] = {}
    for step in range(steps):
        for member, model in enumerate(models):
            inner_step(model, member, step)
        due = table.due(step)
        for fragment in due.send:
            sent[fragment] = torch.stack([outer.payload(fragment) for outer in outers]).mean(0)
        for fragment in due.apply:
            mean = sent.pop(fragment)
            for outer in outers:
                outer.apply(fragment, mean, is_last=due.is_last)
    return models, outers


def reference(
    strategy: DiLoCo, fragments: Sequence[Sequence[str]], steps: int
) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
    """Algorithm 2 of arXiv 2501.18512, with Nesterov momentum as in arXiv 2311.08105; with P = 1, DiLoCo itself."""
    every, count, overlap, alpha = strategy.every, strategy.fragments, strategy.inner_overlap, strategy.share_kept
    models = [make_model() for _ in range(3)]
    anchor = {name: value.clone() for name, value in models[0].state_dict().items()}
    velocity: dict[str, Tensor] = {}
    deltas: dict[str, Tensor] = {}
    for done in range(1, steps + 1):
        for member, model in enumerate(models):
            inner_step(model, member, done - 1)
        local = [model.state_dict() for model in models]
        for index, names in enumerate(fragments):
            place = (index + 1) * every // count
            if (done + overlap - place) % every == 0:
                for name in names:
                    deltas[name] = sum(anchor[name] - values[name] for values in local) / 3
            if (done - place) % every == 0:
                for name in names:
                    velocity[name] = MOMENTUM * velocity.get(name, torch.zeros(())) + deltas[name]
                    anchor[name] = anchor[name] - OUTER_LR * (deltas[name] + MOMENTUM * velocity[name])
                    for values in local:
                        values[name].copy_(alpha * values[name] + (1 - alpha) * anchor[name])
    return [model.state_dict() for model in models], anchor


@pytest.mark.parametrize(
    "strategy",
    [
        DiLoCo(every=5),
        DiLoCo(every=6, fragments=2, overlap=0),
        DiLoCo(every=6, fragments=2, overlap=2, alpha=0.0),
        DiLoCo(every=9, fragments=3, overlap=1, alpha=0.5),
    ],
)
def test_members_train_as_the_formulas_say(strategy: DiLoCo) -> None:
    steps = 3 * strategy.every + 2
    models, outers = train(strategy, steps)
    assert isinstance(outers[0], PseudoGradients)
    local, anchor = reference(strategy, outers[0].fragments, steps)
    for member, (model, outer) in enumerate(zip(models, outers, strict=True)):
        for name in WEIGHTS:
            torch.testing.assert_close(model.state_dict()[name], local[member][name], rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(outer.state_dict()["anchors"][name], anchor[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("fragments", [1, 2, 4])
def test_the_payloads_of_a_period_are_as_many_bytes_as_the_model_has(fragments: int) -> None:
    strategy = DiLoCo(every=50, fragments=fragments)
    table = strategy.timetable(1000)
    (model, *_), (outer, *_) = make_members(strategy, num=1)
    sizes = [outer.payload(fragment).nbytes for fragment in range(fragments)]
    model_bytes = sum(parameter.nbytes for parameter in model.parameters())
    assert sum(sizes) == model_bytes
    for first in (0, 50, 137, 900):  # also one that begins in the middle of a round
        sent = [fragment for step in range(first, first + 50) for fragment in table.due(step).send]
        assert sorted(sent) == list(range(fragments))
        assert sum(sizes[fragment] for fragment in sent) == model_bytes


@pytest.mark.parametrize("steps", [18, 21, 23])
def test_all_members_end_with_the_same_model(steps: int) -> None:
    models, outers = train(DiLoCo(every=9, fragments=3, overlap=2), steps, total=steps)
    anchors = outers[0].state_dict()["anchors"]
    for model in models:
        for name in WEIGHTS:
            assert torch.equal(model.state_dict()[name], anchors[name])


def test_local_sgd_takes_the_mean_of_all_parameters() -> None:
    models, outers = make_members(LocalSGD(every=4))
    for step in range(4):
        for member, model in enumerate(models):
            inner_step(model, member, step)
    before = [copy.deepcopy(model.state_dict()) for model in models]
    mean = torch.stack([outer.payload(0) for outer in outers]).mean(0)
    for outer in outers:
        outer.apply(0, mean)
    for model in models:
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, sum(values[name] for values in before) / 3)


def test_one_member_alone_with_outer_rate_1_trains_as_without() -> None:
    strategy = DiLoCo(every=3, outer=lambda params: torch.optim.SGD(params, lr=1.0))
    model, alone = make_model(), make_model()
    outer = make_outer_step(strategy, [model])
    for step in range(6):
        inner_step(model, 0, step)
        inner_step(alone, 0, step)
        if strategy.timetable().commits(step):
            outer.apply(0, outer.payload(0))
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_a_payload_does_not_change_while_the_member_computes_on() -> None:
    models, outers = make_members(DiLoCo(every=4), num=1)
    inner_step(models[0], 0, 0)
    payload = outers[0].payload(0)
    before = payload.clone()
    inner_step(models[0], 0, 1)
    assert torch.equal(payload, before)
    assert not torch.equal(outers[0].payload(0), before)


def test_a_newcomer_with_the_outer_state_goes_on_as_the_others() -> None:
    strategy = DiLoCo(every=6, fragments=2, overlap=0)
    _, outers = train(strategy, 12)
    newcomer = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    its = make_outer_step(strategy, [newcomer])
    its.load_state_dict(copy.deepcopy(outers[0].state_dict()))
    its.return_to_anchor()
    mean = torch.randn_like(outers[0].payload(0))
    for outer in (outers[0], its):
        outer.apply(0, mean)
    for name, anchor in outers[0].state_dict()["anchors"].items():
        assert torch.equal(its.state_dict()["anchors"][name], anchor)
    theirs = outers[0].state_dict()["anchors"]
    for name, value in newcomer.state_dict().items():
        assert torch.equal(value, theirs[name]), name


def test_half_precision_models_have_anchors_in_full_precision() -> None:
    model = make_model().bfloat16()
    outer = make_outer_step(DiLoCo(every=2), [model])
    anchors = outer.state_dict()["anchors"]
    assert {anchor.dtype for anchor in anchors.values()} == {torch.float32}
    tiny = torch.full_like(outer.payload(0), 1e-6)
    first = {name: anchor.clone() for name, anchor in anchors.items()}
    for _ in range(50):
        outer.apply(0, tiny)
    assert all((first[name] > outer.state_dict()["anchors"][name]).all() for name in WEIGHTS)


def test_buffers_are_averaged_and_counts_stay_whole() -> None:
    models = [nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)) for _ in range(2)]
    for strategy in (LocalSGD(every=2), DiLoCo(every=2)):
        outers = [make_outer_step(strategy, [model]) for model in models]
        for member, model in enumerate(models):
            model(torch.full((4, 2), float(member)))
        norms = [model[1] for model in models]
        means = [norm.running_mean.clone() for norm in norms]  # type: ignore[operator]
        counts = [int(norm.num_batches_tracked) for norm in norms]  # type: ignore[arg-type]
        mean = torch.stack([outer.payload(0) for outer in outers]).mean(0)
        for outer in outers:
            outer.apply(0, mean)
        for norm in norms:
            torch.testing.assert_close(norm.running_mean, (means[0] + means[1]) / 2)
            assert int(norm.num_batches_tracked) == counts[0]  # type: ignore[arg-type]


def test_parameters_that_are_not_trained_are_not_sent() -> None:
    model = make_model()
    model[0].requires_grad_(False)  # type: ignore[index]
    assert make_outer_step(LocalSGD(every=2), [model]).payload(0).numel() == 7
    assert make_outer_step(DiLoCo(every=2), [model]).payload(0).numel() == 7


def test_state_of_another_model_or_strategy_is_refused_before_anything_changes() -> None:
    _, (outer, *_) = make_members(DiLoCo(every=2))
    with pytest.raises(ValueError, match="of another model or of LocalSGD"):
        outer.load_state_dict({})
    with pytest.raises(ValueError, match="it is of DiLoCo"):
        make_outer_step(LocalSGD(every=2), [make_model()]).load_state_dict(outer.state_dict())
    with pytest.raises(TypeError, match=r"must return a torch\.optim\.Optimizer"):
        make_outer_step(DiLoCo(every=2, outer=lambda params: None), [make_model()])  # type: ignore[arg-type, return-value]


def test_a_mean_of_other_length_is_refused() -> None:
    _, (outer, *_) = make_members(DiLoCo(every=2))
    with pytest.raises(ValueError, match="elements came for tensors of"):
        outer.apply(0, torch.zeros(3))
