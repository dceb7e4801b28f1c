"""Events stay with the aliases that they were recorded for, and copies respect them."""

from __future__ import annotations

import gc

import torch

from multiworld.channel.nccl.cuda_order import StreamOrder
from multiworld.channel.payload.tensors import as_bytes
from tests.unit.channel.nccl.fake_cuda import FakeCuda, FakeStream


def make_order() -> tuple[StreamOrder, FakeCuda]:
    cuda = FakeCuda()
    return StreamOrder(torch.device("cpu"), cuda), cuda


def test_an_alias_shares_the_memory_and_knows_the_stream_of_its_caller() -> None:
    order, cuda = make_order()
    tensor = torch.zeros(3, requires_grad=True)
    stream = FakeStream()
    with cuda.stream(stream):
        (alias,) = order.after_now([tensor])
    assert alias.data_ptr() == tensor.data_ptr()
    assert not alias.requires_grad
    assert [event.stream for event in order.events([alias])] == [stream]
    assert order.events([tensor]) == []


def test_the_same_tensor_used_twice_has_two_events() -> None:
    order, _ = make_order()
    tensor = torch.zeros(3)
    (first,), (second,) = order.after_now([tensor]), order.after_now([tensor])
    assert len(order.events([first, second])) == 2


def test_a_payload_keeps_its_structure_and_shares_one_event() -> None:
    order, _ = make_order()
    payload = order.payload_after_now({"a": torch.zeros(2), "b": torch.ones(3)})
    assert isinstance(payload, dict)
    assert list(payload) == ["a", "b"]
    assert len(order.events(list(payload.values()))) == 1
    assert isinstance(order.payload_after_now([torch.zeros(1)]), list)
    assert isinstance(order.payload_after_now(torch.zeros(1)), torch.Tensor)


def test_events_go_with_their_aliases() -> None:
    order, _ = make_order()
    aliases = order.after_now([torch.zeros(3)])
    assert len(order._events) == 1
    del aliases
    gc.collect()
    assert len(order._events) == 0


def test_a_copy_is_finished_and_independent() -> None:
    order, _ = make_order()
    tensor = torch.ones(3)
    copies = order.copy(order.after_now([tensor]))
    assert copies is not None
    tensor.zero_()
    assert torch.equal(copies[0], torch.ones(3))


def test_what_is_not_ready_is_not_copied() -> None:
    order, _ = make_order()
    aliases = order.after_now([torch.ones(3)])
    order.events(aliases)[0].over = False
    assert order.copy(aliases) is None


def test_filling_waits_for_both_sides_and_for_itself() -> None:
    order, cuda = make_order()
    (target,) = order.after_now([torch.zeros(4, dtype=torch.float64)])
    buffer = order.allocate(32)
    as_bytes(buffer).copy_(as_bytes(torch.arange(4, dtype=torch.float64)))
    expected = order.events([target, buffer])
    order.fill(target, buffer)
    assert torch.equal(target, torch.arange(4, dtype=torch.float64))
    log = order._stream().log
    assert log == [*expected, "synchronize"]
    assert cuda.user_stream.log == []


def test_any_tensor_can_be_seen_as_bytes() -> None:
    for dtype in (torch.bool, torch.bfloat16, torch.complex64, torch.int16, torch.float8_e5m2):
        assert as_bytes(torch.zeros(3, 2, dtype=dtype)).shape == (6 * dtype.itemsize,)
    assert as_bytes(torch.tensor(1.0)).shape == (4,)
    assert as_bytes(torch.empty(0)).shape == (0,)
    strided = torch.arange(32.0).view(8, 4)[2:3, 1]
    assert (strided.is_contiguous(), strided.stride()) == (True, (4,))
    assert as_bytes(strided).view(torch.float32).tolist() == [9.0]
