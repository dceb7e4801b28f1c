"""What is found of a sample: equal, another result, refused with a way out, or an error; and how it is counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from benchmarks.remote.operators import Finding, Found, compare
from benchmarks.remote.opinfo import lines_of, table_of
from multiworld.remote.tensor.remote_tensor import RemoteTensor

from .remote.fake_node import FakeNode


@dataclass
class Sample:
    """As OpInfo's."""

    input: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, object] = field(default_factory=dict)

    def output_process_fn_grad(self, outputs: Any) -> Any:
        return outputs


def found(function: Any, *, backward: bool = True) -> list[Found]:
    sample = Sample(torch.arange(6.0).view(2, 3).t().requires_grad_(backward))
    with FakeNode() as fake:
        return [each.found for each in compare(fake.node, "any", function, sample, backward=backward)]


def test_equal_results_and_gradients() -> None:
    assert found(lambda x: torch.softmax(x, 0) * 2) == [Found.EQUAL, Found.EQUAL]
    assert found(torch.nn.functional.dropout) == [Found.EQUAL, Found.EQUAL]


def test_another_result_is_found() -> None:
    assert found(lambda x: x + isinstance(x, RemoteTensor), backward=False) == [Found.DIFFERENT]


def test_a_result_that_is_not_on_the_node_is_found() -> None:
    assert found(lambda x: torch.zeros(2), backward=False) == [Found.DIFFERENT]


def test_an_error_with_a_way_out_is_a_refusal_and_any_other_is_not() -> None:
    assert found(lambda x: x.numpy() if isinstance(x, RemoteTensor) else x, backward=False) == [Found.REFUSED]
    assert found(lambda x: x if type(x) is torch.Tensor else x.nothing, backward=False) == [Found.FAILED]


def test_a_sample_that_fails_here_too_says_nothing() -> None:
    assert found(lambda x: x.view(7)) == []


def test_what_is_not_equal_is_counted_and_listed() -> None:
    findings = [Finding("add", False, Found.EQUAL)] * 3 + [Finding("add", False, Found.REFUSED, "ask for a|b")]
    forward, backward, unclear = lines_of([*findings, Finding("empty", False, Found.UNINITIALISED)])
    assert forward.value == pytest.approx(75.0)
    assert forward.holds is False
    assert backward.value is None
    assert unclear.value == 0
    assert table_of(findings).splitlines()[2:] == ["| `add` | results | 1 of 4 refused | ask for a\\|b |"]
