"""A model that keeps state between calls, or draws random numbers, is refused with what it does; no other one is."""

import functools
import itertools
import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from multiworld.model.cut import cut, profile

Step = Callable[["Stepped", torch.Tensor], torch.Tensor]
COUNT = [0]
TOTAL = torch.zeros(8)


class Stepped(nn.Module):
    """Two layers, and between them a step that has whatever a model may hold at hand."""

    count: torch.Tensor
    memory: torch.Tensor

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.first, self.last, self.inner = nn.Linear(8, 8), nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.weight = nn.Parameter(torch.ones(8))
        self.register_buffer("count", torch.zeros(8))
        self.register_buffer("memory", torch.zeros(4, 8), persistent=False)
        self.plain, self.number, self.text = torch.zeros(8), 0, "a"
        self.list: list[Any] = []
        self.dict: dict[str, Any] = {"tensor": torch.zeros(8), "deep": [torch.zeros(8)]}
        self.queue: deque[int] = deque([1, 2])
        self.held = SimpleNamespace(number=0, tensor=torch.zeros(8))
        self.counter, self.dice, self.generator = itertools.count(), random.Random(1), torch.Generator()
        self.cache: torch.Tensor | None = None
        self.step = functools.partial(step, self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.step(self.first(x)))  # type: ignore[no-any-return]


def added(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.count += 1
    return x + m.count


def assigned(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.count = m.count + 1
    return x + m.count


def copied(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.count.copy_(0.9 * m.count + x.mean(0))
    return x - m.count


def put(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.memory.index_put_((torch.tensor([1]),), x.mean(0))
    return x + m.memory.sum(0)


def viewed(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.memory.view(-1)[3:5].add_(1)
    return x + m.memory.sum(0)


def given_out(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    torch.add(m.count, 1, out=m.count)
    return x + m.count


def of_data(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.count.data += 1
    return x + m.count


def of_numpy(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.count.numpy()[0] += 1
    return x + m.count


def of_plain(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.plain.add_(1)
    return x + m.plain


def of_dict(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    total: torch.Tensor = m.dict["deep"][0]
    total += 1
    return x + total


def of_object(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    total: torch.Tensor = m.held.tensor
    total += 1
    return x + total


def of_weight(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.weight.mul_(0.5)
    return x * m.weight


def of_other_data(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.weight.data = m.weight.data * 0.5
    return x * m.weight


def of_other_weight(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.weight = nn.Parameter(m.weight * 0.5)
    return x * m.weight


def of_statistics(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    return functional.batch_norm(x, m.inner.running_mean, m.inner.running_var, training=True)


def in_a_list(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.list.append(x.mean())
    return x + len(m.list)


def as_number(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.number += 1
    return x if m.number < 100 else -x


def as_number_of_an_object(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.held.number += 1
    return x if m.held.number < 100 else -x


def turned(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.queue.rotate(1)
    return x * m.queue[0]


def counted(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    return x if next(m.counter) < 100 else -x


def diced(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    return x * (m.dice.random() < 2)


def generated(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(8, generator=m.generator)


def cached(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.cache = x if m.cache is None else torch.cat((m.cache, x))
    return x + m.cache.sum(0)


def cached_at_first(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    if m.cache is None:
        m.cache = torch.zeros(4, 8)
    m.cache[0] = x.mean(0)
    return x + m.cache.sum(0)


def remembered(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    before = x if m.cache is None else m.cache
    m.cache = x.clone()
    return x - before.mean()


def first_told_apart(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    was, m.text = m.text, "b"
    return x if was == "b" else -x


def outside(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    COUNT[0] += 1
    return x + COUNT[0]


def outside_in_place(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    TOTAL.add_(1)
    return x + TOTAL


STATEFUL: dict[Step, str] = {
    added: "writes into its buffer 'count' (aten.add_)",
    assigned: "changes its buffer 'count' with each call",
    copied: "writes into its buffer 'count' (aten.copy_)",
    put: "writes into its buffer 'memory' (aten.index_put_)",
    viewed: "writes into its buffer 'memory' (aten.add_)",
    given_out: "writes into its buffer 'count' (aten.add)",
    of_data: "writes into its buffer 'count' (aten.add_)",
    of_numpy: "changes its buffer 'count' with each call",
    of_plain: "writes into its attribute 'plain' (aten.add_)",
    of_dict: "writes into its attribute 'dict['deep'][0]' (aten.add_)",
    of_object: "writes into its attribute 'held.tensor' (aten.add_)",
    of_weight: "writes into its parameter 'weight' (aten.mul_)",
    of_other_data: "gives its parameter 'weight' other data",
    of_other_weight: "changes its parameter 'weight' with each call",
    of_statistics: "buffer 'inner.running_mean'",
    in_a_list: "changes its attribute 'list[1]' with each call",
    as_number: "changes its attribute 'number' with each call",
    as_number_of_an_object: "changes its attribute 'held.number' with each call",
    turned: "changes its attribute 'queue[0]' with each call",
    counted: "changes its attribute 'counter' with each call",
    diced: "changes its attribute 'dice' with each call",
    cached: "changes its attribute 'cache' with each call",
    cached_at_first: "writes into its attribute 'cache' (aten.copy_)",
    remembered: "its answer to a request depends on those before it",
    first_told_apart: "changes its attribute 'text', and it gives another answer when it is called again",
    outside: "another answer when it is called again: it keeps state outside of the module",
    outside_in_place: "writes into a tensor that is not its own and outlives the call (aten.add_)",
}


def taken(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("step", STATEFUL, ids=lambda step: step.__name__)
def test_a_model_that_keeps_state_is_refused_with_what_it_changes(step: Step) -> None:
    model = Stepped(step)
    before = taken(model)
    with pytest.raises(ValueError, match="Stepped cannot be cut: ") as refused:
        cut(model, torch.randn(3, 8), 2, repeats=1)
    assert STATEFUL[step] in str(refused.value)
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert (model.number, model.text, model.list, model.cache, list(model.queue)) == (0, "a", [], None, [1, 2])
    assert not model.plain.any()
    assert not model.held.tensor.any()
    assert not TOTAL.any()
    assert next(model.counter) == 0
    assert model.dice.random() == random.Random(1).random()


def test_state_of_a_part_of_a_model_is_named_after_the_part() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Stepped(added), nn.Linear(8, 8))
    for call in (lambda: cut(model, torch.randn(3, 8), 2, repeats=1), lambda: profile(model, torch.randn(3, 8))):
        with pytest.raises(ValueError, match=r"Sequential cannot be cut: forward writes into its buffer '1.count'"):
            call()


def test_state_is_found_where_a_model_calls_another_one_with_its_own_tensors() -> None:
    inner = Stepped(added)

    class Calling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tensors = {"count": self.inner.count, "weight": self.inner.weight}
            return torch.func.functional_call(self.inner, tensors, (x,))  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match=r"writes into its buffer 'inner.count'"):
        cut(Calling(), torch.randn(3, 8), 2, repeats=1)


def test_what_a_model_catches_is_still_refused() -> None:
    def caught(m: Stepped, x: torch.Tensor) -> torch.Tensor:
        try:
            return added(m, x)
        except Exception:
            return x

    with pytest.raises(ValueError, match=r"writes into its buffer 'count'"):
        cut(Stepped(caught), torch.randn(3, 8), 2, repeats=1)


RANDOM: dict[str, tuple[Step, str]] = {
    "rand": (lambda m, x: x + torch.rand(8), "(aten.rand)"),
    "dropout": (lambda m, x: functional.dropout(x, 0.5, training=True), "draws random numbers (aten."),
    "dropout that is rare": (lambda m, x: functional.dropout(x, 1e-9, training=True), "and its answer depends on them"),
    "choice that is rare": (lambda m, x: -x if torch.rand(()).item() > 1 - 1e-7 else x, "its answer depends on them"),
    "generator": (generated, "(aten.rand)"),
    "Python": (lambda m, x: x + random.random(), "(of Python's random module)"),
    "a tensor that is kept": (lambda m, x: noisy(m, x), "(aten.rand)"),
}


@pytest.mark.parametrize("kind", RANDOM)
def test_a_model_that_draws_random_numbers_is_refused_as_such(kind: str) -> None:
    step, text = RANDOM[kind]
    with pytest.raises(ValueError, match="Stepped cannot be cut: forward draws random numbers") as refused:
        cut(Stepped(step), torch.randn(3, 8), 2, repeats=1)
    assert text in str(refused.value)


def noisy(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.cache = torch.rand(8)
    return x + m.cache


def seeded(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return x + torch.rand(8)


def drawn_for_nothing(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    drawn = torch.rand(8)
    return x + drawn if m.training else x


def kept_for_others_to_see(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    m.cache = x.softmax(-1)
    return x + m.cache


def made_once(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    if m.cache is None:
        m.cache = torch.arange(8.0).cos()
    return x + m.cache


def written_into_a_copy(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    sums = m.count.clone()
    sums += x.mean(1).sum() * 0
    return x + sums


def written_into_numbers(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    shift = torch.tensor([1.0])
    shift += 2
    return x + shift


def written_into_its_request(m: Stepped, x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2)


PURE: list[Step] = [
    seeded,
    drawn_for_nothing,
    kept_for_others_to_see,
    made_once,
    written_into_a_copy,
    written_into_numbers,
    written_into_its_request,
]


@pytest.mark.parametrize("step", PURE, ids=lambda step: step.__name__)
def test_a_model_whose_answer_depends_on_its_request_alone_is_cut(step: Step) -> None:
    model = Stepped(step)
    parts = cut(model, torch.randn(3, 8), 2, repeats=1)
    x = torch.randn(5, 8)
    expected, found = model.eval()(x.clone()), x
    for part in parts:
        found = part(found)
    assert torch.equal(found, expected)


def test_dropout_and_batch_norm_of_a_model_in_training_are_no_state() -> None:
    layers = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8)
    model = nn.Sequential(*layers).train()
    parts = cut(model, torch.randn(3, 8), 3, repeats=1)
    assert model.training
    assert not any(part.training for part in parts)
    found = x = torch.randn(4, 8)
    for part in parts:
        found = part(found)
    assert torch.equal(found, model.eval()(x))


def test_what_a_model_raises_for_its_example_is_said() -> None:
    with pytest.raises(
        ValueError, match=r"Sequential cannot be cut: with the example it raises RuntimeError: mat1 and"
    ):
        cut(nn.Sequential(nn.Linear(8, 8)), torch.randn(3, 7), 1)
