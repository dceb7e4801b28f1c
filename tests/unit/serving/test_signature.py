"""What a pipeline takes: as declared, as an example shows, as its code shows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import pytest
import torch
from torch import Tensor, nn

from multiworld.serving import Pipeline, Signature, Stage, TensorSpec
from multiworld.serving.work_signature import kind_of_work


class Pixels(TypedDict):
    pixels: Tensor


class Masked(Pixels, total=False):
    mask: Tensor


def masked(x: Masked) -> Tensor:
    return x["pixels"]


class Module(nn.Module):
    def forward(self, x):  # type: ignore[no-untyped-def]  # as people write them
        return x["pixels"] * 2


class Called:
    def __call__(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["pixels"]


class Two:
    def __call__(self, other: Tensor, request):  # type: ignore[no-untyped-def]
        return other + request["pixels"]


def named(x):  # type: ignore[no-untyped-def]
    return {"y": x["pixels"] * 2}


def spread(x):  # type: ignore[no-untyped-def]
    return _of(**x)


def inside(x):  # type: ignore[no-untyped-def]
    return [x["a"] + each for each in (1, 2)]


def asks(x):  # type: ignore[no-untyped-def]
    if "pixels" not in x:
        return x
    return torch.relu(x)


def takes_apart(x):  # type: ignore[no-untyped-def]
    return {name: value + 1 for name, value in x.items()}


def plain(x):  # type: ignore[no-untyped-def]
    names = {"scale": 2}
    return x[0] * names["scale"]


def _of(pixels: Tensor) -> Tensor:
    return pixels


def annotated(x: Tensor) -> Tensor:
    return x


def mapping(x: Mapping[str, Tensor]) -> Tensor:
    return x["a"]


def typed(x: Pixels) -> Tensor:
    return x["pixels"]


def listed(x: list[Tensor]) -> Tensor:
    return x[0]


@functools.wraps(named)
def wrapper(*given: Any) -> Any:
    return list(given)


@pytest.mark.parametrize(
    ("work", "kind"),
    [
        (named, "dict"),
        (lambda x: {"y": x["pixels"] * 2}, "dict"),
        (spread, "dict"),
        (inside, "dict"),
        (asks, "dict"),
        (takes_apart, "dict"),
        (mapping, "dict"),
        (typed, "dict"),
        (wrapper, "dict"),
        (Module(), "dict"),
        (Module, "dict"),
        (Called, "dict"),
        (Called(), "dict"),
        (f"{__name__}:named", "dict"),
        (annotated, "tensor"),
        (nn.Linear(2, 2), "tensor"),
        (nn.Sequential(nn.Linear(2, 2)), "tensor"),
        (nn.Sequential(Module(), nn.Linear(2, 2)), "dict"),
        (listed, "list"),
        (plain, None),
        (lambda x: x * 2, None),
        ("not.imported:ever", None),
        (torch.relu, None),
    ],
)
def test_what_a_work_takes_shows(work: Any, kind: str | None) -> None:
    assert kind_of_work(work) == kind


def guarded(x):  # type: ignore[no-untyped-def]
    y = x["pixels"] * x.get("scale", 1)
    return y * x["mask"] if "mask" in x else y


def handed_on(x):  # type: ignore[no-untyped-def]
    return _of(x) + x["pixels"]


def takes(stages: list[Stage]) -> str | None:
    signature = Pipeline(stages).signature
    return None if signature is None else signature.takes


def test_a_stage_of_several_inputs_is_looked_at_where_the_request_goes_in() -> None:
    before: Callable[[Tensor], Tensor] = torch.relu
    assert takes([Stage("a", before), Stage("b", Two, inputs=("a", "input"))]) == "dict"


def test_what_is_declared_comes_before_the_canary_and_that_before_the_code() -> None:
    canary = {"pixels": torch.ones(2, 3)}
    [spec] = (Pipeline([Stage("a", plain, canary=canary)]).signature or Signature()).inputs
    assert spec == TensorSpec("pixels", "float32", (-1, 3))
    declared = Signature(inputs=(TensorSpec("x", "int8", (-1,)),), takes="tensor")
    assert Pipeline([Stage("a", named, canary=canary, signature=declared)]).signature == declared
    assert Pipeline([Stage("a", plain)]).signature is None
    with pytest.raises(TypeError, match="signature must be"):
        Stage("a", plain, signature="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("work", "needed", "is_open"),
    [
        (named, ["pixels"], False),
        (guarded, ["pixels"], True),
        (masked, ["pixels"], False),
        (typed, ["pixels"], False),
        (spread, [], True),
        (takes_apart, [], True),
        (handed_on, ["pixels"], True),
        (plain, ["pixels", "mask"], False),
    ],
)
def test_a_canary_is_an_example_of_which_a_work_may_need_a_part(work: Any, needed: list[str], is_open: bool) -> None:
    canary = {"pixels": torch.ones(2, 3), "mask": torch.ones(2)}
    signature = Pipeline([Stage("a", work, canary=canary)]).signature
    assert signature is not None
    assert [spec.name for spec in signature.inputs if not spec.optional] == needed
    assert signature.is_open is is_open
    assert Signature.from_json(signature.to_json()) == signature


def test_inputs_that_are_declared_may_be_optional() -> None:
    example = {"pixels": torch.ones(1), "mask": torch.ones(1)}
    assert [spec.optional for spec in Signature.of(example, optional=["mask"]).inputs] == [False, True]
    with pytest.raises(ValueError, match="only be optional ones"):
        Signature.of([torch.ones(1), torch.ones(1)], optional=["input-0"])


def test_a_model_that_is_cut_takes_and_gives_what_its_example_shows() -> None:
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(3)])
    signature = Pipeline.from_module(model, torch.ones(1, 3), 2).signature
    assert signature is not None
    assert signature.takes == "tensor"
    assert signature.inputs == (TensorSpec("input", "float32", (-1, 3)),)
    assert signature.outputs == (TensorSpec("output", "float32", (-1, 3)),)
    assert Signature.from_json(signature.to_json()) == signature


def test_a_signature_of_examples_names_tensors_of_lists_by_their_number() -> None:
    signature = Signature.of([torch.ones(2), torch.zeros(2, 1, dtype=torch.bool)], {"y": torch.ones(4)}, rows=False)
    assert signature.inputs == (TensorSpec("input-0", "float32", (2,)), TensorSpec("input-1", "bool", (2, 1)))
    assert (signature.outputs, signature.takes) == ((TensorSpec("y", "float32", (4,)),), "list")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"takes": "bag"}, "takes must be"),
        ({"inputs": (TensorSpec("a", "int8", ()), TensorSpec("a", "int8", ()))}, "different names"),
        ({"inputs": (TensorSpec("a", "int8", ()), TensorSpec("b", "int8", ())), "takes": "tensor"}, "one input"),
    ],
)
def test_signatures_that_make_no_sense_say_why(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Signature(**fields)
    with pytest.raises(ValueError, match="-1 for any"):
        TensorSpec("a", "int8", (-2,))
