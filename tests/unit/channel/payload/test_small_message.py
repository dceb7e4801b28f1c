"""The next parcel is prepared for what the last one brought, and whatever else comes is right nevertheless."""

from __future__ import annotations

import gc

import pytest
import torch

from multiworld.channel.payload.small_message import Habit, Parcel
from multiworld.channel.payload.tensors import Layout, describe, parse_layout


def layout_of(tensor: torch.Tensor) -> Layout:
    return parse_layout(describe(tensor), tensor.nbytes)


def filled(parcel: Parcel, tensor: torch.Tensor, offset: int = 0) -> Parcel:
    raw = bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist())
    parcel.memory[offset : offset + len(raw)] = raw
    return parcel


def came(habit: Habit, tensor: torch.Tensor, *, size_bytes: int = 256) -> Parcel:
    return filled(habit.parcel(size_bytes), tensor, 64)


def taken(parcel: Parcel, like: torch.Tensor, offset: int = 64, *, alone: bool = True) -> torch.Tensor:
    tensor = parcel.tensor(layout_of(like), offset, alone=alone)
    assert tensor is not None
    return tensor


def used_to(tensor: torch.Tensor) -> Habit:
    """Return the habit after two messages with that tensor, and prepared for the third."""
    habit = Habit()
    for _ in range(2):
        habit.prepare()
        assert not habit.is_prepared
        taken(came(habit, tensor), tensor)
    habit.prepare()
    assert habit.is_prepared
    return habit


def test_a_message_like_the_last_ones_finds_its_tensor_made(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(6.0).view(2, 3)
    habit = used_to(x)
    parcel = came(habit, x + 1)
    assert not habit.is_prepared
    with monkeypatch.context() as patch:
        patch.setattr(torch, "frombuffer", None)
        got = taken(parcel, x)
    assert torch.equal(got, x + 1)
    habit.prepare()
    assert torch.equal(taken(came(habit, x + 2), x), x + 2)
    assert torch.equal(got, x + 1)  # of other memory


def test_a_prepared_tensor_is_given_once() -> None:
    """Its holder may give it another form."""
    x = torch.arange(6.0)
    parcel = came(used_to(x), x)
    one, other = taken(parcel, x), taken(parcel, x)
    assert one is not other
    assert one.data_ptr() == other.data_ptr()


@pytest.mark.parametrize("other", [torch.arange(3), torch.ones(2, 3), torch.tensor(5.0)], ids=str)
@pytest.mark.parametrize("offset", [64, 128])
def test_another_message_than_expected_is_what_it_is(other: torch.Tensor, offset: int) -> None:
    parcel = filled(used_to(torch.arange(6.0)).parcel(256), other, offset)
    assert torch.equal(taken(parcel, other, offset), other)


def test_a_message_of_another_size_gets_memory_of_that_size() -> None:
    x = torch.arange(6.0)
    habit = used_to(x)
    assert len(came(habit, x, size_bytes=512).memory) == 512
    habit.prepare()
    assert not habit.is_prepared
    assert torch.equal(taken(came(habit, x, size_bytes=512), x), x)
    habit.prepare()
    assert habit.is_prepared
    assert len(came(habit, x, size_bytes=512).memory) == 512


def test_no_tensor_is_prepared_for_one_of_several_or_for_what_is_no_single_tensor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.arange(6.0)
    habit = used_to(x)
    taken(came(habit, x), x, alone=False)
    habit.prepare()
    parcel = came(habit, x)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "frombuffer", None)
        with pytest.raises(TypeError):  # it is made when it is asked for
            taken(parcel, x)
    habit.prepare()
    assert came(habit, x).tensor(layout_of(torch.empty(0)), 64, alone=True) is None
    habit.prepare()
    assert torch.equal(taken(came(habit, x), x), x)


def test_what_is_asked_for_late_says_nothing_of_messages_of_another_size() -> None:
    habit, large, small = Habit(), torch.arange(500.0), torch.arange(6.0)
    late = came(habit, large, size_bytes=4096)
    for _ in range(2):
        taken(came(habit, small), small)
    assert torch.equal(taken(late, large), large)
    habit.prepare()
    assert torch.equal(taken(came(habit, small), small), small)


def test_a_tensor_is_of_the_mode_in_which_it_is_asked_for() -> None:
    x = torch.arange(6.0)
    habit = used_to(x)
    with torch.inference_mode():
        for _ in range(2):  # as it was not prepared for, and as it was
            assert taken(came(habit, x), x).is_inference()
            habit.prepare()
    assert not taken(came(habit, x), x).is_inference()


def test_what_was_prepared_ends_with_those_who_refer_to_it() -> None:
    habit = used_to(torch.arange(6.0))
    gc.collect()
    gc.disable()
    try:
        before = sum(type(each) is Parcel for each in gc.get_objects())
        del habit
        assert sum(type(each) is Parcel for each in gc.get_objects()) == before - 1
    finally:
        gc.enable()
