"""Copies of a state between two steps."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Any

import pytest
import torch

from multiworld.training.checkpoint.flat import FlatState, flatten
from multiworld.training.checkpoint.staging import Staged, Staging


def flat(**tensors: Any) -> FlatState:
    return flatten({"step": 1, "rng": {}, "parts": {"model.m": tensors}})


def staged_tensors(staging: Staging, staged: Staged) -> dict[str, torch.Tensor]:
    _, places = staged.plan()
    size = os.fstat(staging.fd).st_size
    memory = mmap.mmap(staging.fd, size) if size else None
    return {name: place.view(memory).clone() for name, place in places.items()}


def test_a_copy_has_the_values_of_its_moment_whatever_the_tensor_looks_like() -> None:
    tensors = {
        "matrix": torch.randn(3, 5).t(),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.empty(0, 4),
        "bits": torch.tensor([True, False]),
        "half": torch.randn(7).to(torch.bfloat16),
        "spread": torch.ones(1).expand(6),
        "images": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(torch.randn(2)),
    }
    before = {f"model.m.{name}": tensor.detach().clone() for name, tensor in tensors.items()}
    with contextlib.closing(Staging()) as staging:
        staged = staging.take(flat(**tensors), writer=0, num_writers=1)
        tensors["matrix"].zero_()
        tensors["parameter"].data.zero_()
        copies = staged_tensors(staging, staged)
    assert copies.keys() == before.keys()
    for name, copy in copies.items():
        assert copy.dtype == before[name].dtype, name
        assert torch.equal(copy, before[name]), name


def test_the_memory_and_the_plan_are_used_again_until_a_shape_changes() -> None:
    with contextlib.closing(Staging()) as staging:
        first = staging.take(flat(w=torch.ones(4)), writer=0, num_writers=1)
        again = staging.take(flat(w=torch.zeros(4)), writer=0, num_writers=1)
        assert again.layout is first.layout
        assert torch.equal(staged_tensors(staging, again)["model.m.w"], torch.zeros(4))
        other = staging.take(flat(w=torch.ones(5), v=torch.ones(2)), writer=0, num_writers=1)
        assert {name: copy.tolist() for name, copy in staged_tensors(staging, other).items()} == {
            "model.m.w": [1.0] * 5,
            "model.m.v": [1.0] * 2,
        }


def test_writers_share_the_tensors_and_the_first_one_has_all_values() -> None:
    state = flat(a=torch.ones(100), b=torch.ones(60), c=torch.ones(50), note="text")
    with contextlib.closing(Staging()) as one, contextlib.closing(Staging()) as two:
        first = one.take(state, writer=0, num_writers=2)
        second = two.take(state, writer=1, num_writers=2)
        assert set(staged_tensors(one, first)) == {"model.m.a"}
        assert set(staged_tensors(two, second)) == {"model.m.b", "model.m.c"}
    assert first.plain.keys() == {"step", "model.m.note", "structure"}
    assert not second.plain


def test_values_of_the_programs_own_classes_are_packed_at_once_and_others_by_the_writer() -> None:
    class Own:
        def __reduce__(self) -> tuple[type, tuple[str]]:
            return str, ("packed",)

    with contextlib.closing(Staging()) as staging:
        staged = staging.take(flat(own=Own(), number=-0.0, names=["a", None]), writer=0, num_writers=1)
    assert set(staged.packed) == {"model.m.own"}
    assert str(staged.plain["model.m.number"]) == "-0.0"
    assert staged.plain["model.m.names"] == ["a", None]


def test_a_tensor_without_plain_layout_is_refused_by_name() -> None:
    with contextlib.closing(Staging()) as staging:
        with pytest.raises(TypeError, match=r"model\.m\.s: .*sparse"):
            staging.take(flat(s=torch.eye(2).to_sparse()), writer=0, num_writers=1)
        staged = staging.take(flat(w=torch.ones(1)), writer=0, num_writers=1)
        assert set(staged_tensors(staging, staged)) == {"model.m.w"}
