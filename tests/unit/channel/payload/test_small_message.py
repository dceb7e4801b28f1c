"""Memory is prepared for a small message like the last one; any other message is right, too."""

from __future__ import annotations

import gc

import pytest
import torch

from multiworld.channel.payload.small_message import Predictor, SmallMessage
from multiworld.channel.payload.tensors import Layout, describe, parse_layout


def layout_of(tensor: torch.Tensor) -> Layout:
    return parse_layout(describe(tensor), tensor.nbytes)


def filled(small_message: SmallMessage, tensor: torch.Tensor, offset: int = 0) -> SmallMessage:
    raw = bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist())
    small_message.memory[offset : offset + len(raw)] = raw
    return small_message


def came(predictor: Predictor, tensor: torch.Tensor, *, size_bytes: int = 256) -> SmallMessage:
    return filled(predictor.take(size_bytes), tensor, 64)


def taken(small_message: SmallMessage, like: torch.Tensor, offset: int = 64, *, alone: bool = True) -> torch.Tensor:
    tensor = small_message.tensor(layout_of(like), offset, alone=alone)
    assert tensor is not None
    return tensor


def used_to(tensor: torch.Tensor) -> Predictor:
    """Return the predictor after two messages with that tensor, and prepared for the third."""
    predictor = Predictor()
    for _ in range(2):
        predictor.prepare()
        assert not predictor.is_prepared
        taken(came(predictor, tensor), tensor)
    predictor.prepare()
    assert predictor.is_prepared
    return predictor


def test_a_message_like_the_last_ones_finds_its_tensor_made(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(6.0).view(2, 3)
    predictor = used_to(x)
    small_message = came(predictor, x + 1)
    assert not predictor.is_prepared
    with monkeypatch.context() as patch:
        patch.setattr(torch, "frombuffer", None)
        got = taken(small_message, x)
    assert torch.equal(got, x + 1)
    predictor.prepare()
    assert torch.equal(taken(came(predictor, x + 2), x), x + 2)
    assert torch.equal(got, x + 1)  # of other memory


def test_a_prepared_tensor_is_given_once() -> None:
    """Its holder may give it another form."""
    x = torch.arange(6.0)
    small_message = came(used_to(x), x)
    one, other = taken(small_message, x), taken(small_message, x)
    assert one is not other
    assert one.data_ptr() == other.data_ptr()


@pytest.mark.parametrize("other", [torch.arange(3), torch.ones(2, 3), torch.tensor(5.0)], ids=str)
@pytest.mark.parametrize("offset", [64, 128])
def test_another_message_than_expected_is_what_it_is(other: torch.Tensor, offset: int) -> None:
    small_message = filled(used_to(torch.arange(6.0)).take(256), other, offset)
    assert torch.equal(taken(small_message, other, offset), other)


def test_a_message_of_another_size_gets_memory_of_that_size() -> None:
    x = torch.arange(6.0)
    predictor = used_to(x)
    assert len(came(predictor, x, size_bytes=512).memory) == 512
    predictor.prepare()
    assert not predictor.is_prepared
    assert torch.equal(taken(came(predictor, x, size_bytes=512), x), x)
    predictor.prepare()
    assert predictor.is_prepared
    assert len(came(predictor, x, size_bytes=512).memory) == 512


def test_no_tensor_is_prepared_for_one_of_several_or_for_what_is_no_single_tensor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.arange(6.0)
    predictor = used_to(x)
    taken(came(predictor, x), x, alone=False)
    predictor.prepare()
    small_message = came(predictor, x)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "frombuffer", None)
        with pytest.raises(TypeError):  # it is made when it is asked for
            taken(small_message, x)
    predictor.prepare()
    assert came(predictor, x).tensor(layout_of(torch.empty(0)), 64, alone=True) is None
    predictor.prepare()
    assert torch.equal(taken(came(predictor, x), x), x)


def test_what_is_asked_for_late_says_nothing_of_messages_of_another_size() -> None:
    predictor, large, small = Predictor(), torch.arange(500.0), torch.arange(6.0)
    late = came(predictor, large, size_bytes=4096)
    for _ in range(2):
        taken(came(predictor, small), small)
    assert torch.equal(taken(late, large), large)
    predictor.prepare()
    assert torch.equal(taken(came(predictor, small), small), small)


def test_a_tensor_is_of_the_mode_in_which_it_is_asked_for() -> None:
    x = torch.arange(6.0)
    predictor = used_to(x)
    with torch.inference_mode():
        for _ in range(2):  # as it was not prepared for, and as it was
            assert taken(came(predictor, x), x).is_inference()
            predictor.prepare()
    assert not taken(came(predictor, x), x).is_inference()


def test_what_was_prepared_ends_with_those_who_refer_to_it() -> None:
    predictor = used_to(torch.arange(6.0))
    gc.collect()
    gc.disable()
    try:
        before = sum(type(each) is SmallMessage for each in gc.get_objects())
        del predictor
        assert sum(type(each) is SmallMessage for each in gc.get_objects()) == before - 1
    finally:
        gc.enable()
