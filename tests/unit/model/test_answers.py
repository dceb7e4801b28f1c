"""A model whose answer cannot be served is refused with what of its answer stands in the way."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from multiworld.model.cut import cut
from multiworld.serving import Pipeline


@dataclass
class Result:
    logits: torch.Tensor


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class DynamicCache:
    """Named as the one of Hugging Face."""


class Answering(nn.Module):
    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last, self.make = nn.Linear(8, 8), nn.Linear(8, 8), make

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(self.last(self.first(x)))


EXPECTED = "expected a tensor, or a list or dict of tensors"
REFUSED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "dict in a dict": (lambda t: {"p": {"q": t}}, f"{EXPECTED}, but answer['p'] is a dict of Tensor inside"),
    "tuple in a tuple": (lambda t: (t, (t, t)), f"{EXPECTED}, but answer[1] is a tuple of Tensor inside"),
    "list in a dict": (lambda t: {"a": t, "b": [t]}, f"{EXPECTED}, but answer['b'] is a list of Tensor inside"),
    "number": (lambda t: 3, f"{EXPECTED}, but its answer is an int"),
    "number in a dict": (lambda t: {"a": t, "n": 3.0}, f"{EXPECTED}, but answer['n'] is a float"),
    "text": (lambda t: "yes", f"{EXPECTED}, but its answer is a str"),
    "text in a list": (lambda t: [t, "yes"], f"{EXPECTED}, but answer[1] is a str"),
    "nothing": (lambda t: None, f"{EXPECTED}, but its answer is None"),
    "nothing in a tuple": (lambda t: (t, None), f"{EXPECTED}, but answer[1] is None"),
    "nothing in a list": (lambda t: [], f"{EXPECTED}, but its answer has no tensor"),
    "nothing in a dict": (lambda t: {"loss": None}, f"{EXPECTED}, but its answer has no tensor"),
    "dataclass": (Result, f"{EXPECTED}, but its answer is a Result"),
    "dataclass in a list": (lambda t: [Result(t)], f"{EXPECTED}, but answer[0] is a Result"),
    "key": (lambda t: {0: t}, f"{EXPECTED} by names, but its answer has the key 0"),
    "key that is no text": (lambda t: {"\ud800": t}, f"{EXPECTED} by names, but its answer has the key '\\ud800'"),
    "sparse": (lambda t: t.relu().to_sparse(), "its answer is a tensor of layout torch.sparse_coo; make it dense"),
    "sparse in a dict": (lambda t: {"a": t.relu().to_sparse()}, "answer['a'] is a tensor of layout torch.sparse_coo"),
    "nested": (lambda t: torch.nested.as_nested_tensor([t, t[:1]]), "its answer is a nested tensor; pad it"),
    "cache": (lambda t: {"a": t, "past_key_values": DynamicCache()}, "is a DynamicCache: state between calls"),
    "shape": (lambda t: {"a": t, "shape": t.shape}, "answer['shape'] is a Size of int inside"),
}


@pytest.mark.filterwarnings("ignore")  # nested tensors are not final
@pytest.mark.parametrize("kind", REFUSED)
def test_an_answer_that_cannot_be_served_is_refused_with_its_reason(kind: str) -> None:
    make, text = REFUSED[kind]
    with pytest.raises(ValueError, match="Answering cannot be served as it is: ") as refused:
        Pipeline.from_module(Answering(make), torch.randn(3, 8), 2)
    assert text in str(refused.value)


SERVED: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[torch.Tensor], Any]]] = {
    "tuple": (lambda t: (t, -t), lambda t: [t, -t]),
    "named tuple": (lambda t: Pair(t, -t), lambda t: [t, -t]),
    "ordered": (lambda t: OrderedDict(a=t, b=-t), lambda t: {"a": t, "b": -t}),
    "without what there is not": (lambda t: {"a": t, "loss": None}, lambda t: {"a": t}),
    "one of a list": (lambda t: [t], lambda t: [t]),
}


@pytest.mark.parametrize("kind", SERVED)
def test_an_answer_of_tensors_is_served(kind: str) -> None:
    make, served = SERVED[kind]
    model, x = Answering(make), torch.randn(3, 8)
    found: Any = x
    for part in cut(model, x, 2, repeats=1):
        found = part(found)
    expected = served(model.last(model.first(x)))
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
