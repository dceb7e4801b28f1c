"""What an edge carries comes out as it went in, and what is no packet is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from multiworld.channel.payload.small_message import Received, SmallMessage
from multiworld.channel.payload.tensors import DTYPES
from multiworld.errors import ProtocolError
from multiworld.serving.errors import StageFailedError
from multiworld.serving.flow.context import RequestContext
from multiworld.serving.flow.error_answer import ErrorAnswer
from multiworld.serving.flow.packets import INLINE_BYTES, Item, Kind, Note, as_tensors, decode, encode
from multiworld.wire.memory.copying import ALIGNMENT, address_of, aligned_memory


def item(number: int, payload: object, deadline: float = math.inf) -> Item:
    return Item(Kind.ITEM, number.to_bytes(16, "little"), 3, deadline).carry(payload)  # type: ignore[arg-type]


def carried(items: Sequence[Item], notes: Sequence[Note] = (), *, now: float = 0.0) -> Received:
    """Return what a peer gets of them: bytes if they can be that, as mostly."""
    packed, large = encode(items, notes, now=now)
    if large:
        return as_tensors(packed, large)
    return small_message_of(packed)


def small_message_of(packed: bytearray) -> SmallMessage:
    small_message = SmallMessage(aligned_memory(len(packed)))
    small_message.memory[:] = packed
    return small_message


def test_small_and_large_payloads_keep_their_order_and_owners() -> None:
    large = torch.arange(INLINE_BYTES, dtype=torch.float32)
    items = [
        item(1, torch.tensor(1.0)),
        item(2, [large, torch.empty(0), large + 1]),
        item(3, {"x": torch.ones(3, dtype=torch.bool), "y": torch.empty(0, 2)}),
        item(4, large * 2),
        item(5, []),
    ]
    came, notes = decode(carried(items), now=0.0)
    assert notes == []
    assert [got.id for got in came] == [sent.id for sent in items]
    for sent, got in zip(items, came, strict=True):
        assert type(sent.payload) is type(got.payload)
        assert str(sent.payload) == str(got.payload)


def test_what_is_known_of_an_item_travels_with_it_and_its_deadline_is_by_the_receivers_clock() -> None:
    sent = item(7, torch.ones(2), deadline=105.0)
    sent.attempt, sent.deaths, sent.replayed, sent.context = 2, 1, True, RequestContext(key="ä")
    ((got,), _) = decode(carried([sent], now=100.0), now=9000.0)
    assert (got.origin, got.attempt, got.deaths, got.replayed, got.context) == (3, 2, 1, True, sent.context)
    assert got.deadline == 9005.0
    after = got.successor()
    assert (after.id, after.origin, after.attempt, after.deadline, after.deaths) == (got.id, 3, 2, 9005.0, 0)


def test_an_item_that_is_passed_on_as_it_came_is_packed_again() -> None:
    ((got,), _) = decode(carried([item(1, {"a": torch.arange(5), "b": torch.ones(2)})]), now=0.0)
    ((again,), _) = decode(carried([got]), now=0.0)
    assert torch.equal(again.payload["a"], torch.arange(5))  # type: ignore[call-overload, index]


def test_notes_come_with_items_or_alone() -> None:
    ids = [bytes([number]) * 16 for number in range(3)]
    notes = [Note(Kind.RELEASED, ids), Note(Kind.GRANT, [], 12.0), Note(Kind.STARTED, [])]
    for items in ([], [item(1, torch.ones(1))]):
        _, came = decode(carried(items, notes), now=0.0)
        assert [(note.kind, list(note.ids), note.number) for note in came] == [
            (Kind.RELEASED, ids, 0.0),
            (Kind.GRANT, [], 12.0),
            (Kind.STARTED, [], 0.0),
        ]


def test_errors_travel_in_an_answers_place() -> None:
    failed = item(1, torch.ones(1)).successor().carry_error(ErrorAnswer.of(StageFailedError("a", "b", "c")))
    ((got,), _) = decode(carried([failed]), now=0.0)
    assert got.kind == Kind.ERROR
    assert got.error.args == ("a", "b", "c")


@pytest.mark.parametrize(
    "payload",
    [
        torch.ones(3),
        torch.empty(0, dtype=torch.uint8),
        torch.zeros(7, dtype=torch.uint8),
        torch.tensor([9, 0, 0, 0, 0, 0, 0, 0], dtype=torch.uint8),
        torch.tensor([1, 0, 0, 0, 5, 0, 0, 0], dtype=torch.uint8),
        as_tensors(*encode([], [Note(Kind.RELEASED, [b"x" * 16] * 5)], now=0.0))[:-32],  # type: ignore[index]
        SmallMessage(memoryview(encode([], [Note(Kind.RELEASED, [b"x" * 16] * 5)], now=0.0)[0])[:-32]),
        SmallMessage(memoryview(bytearray())),
        SmallMessage(memoryview(bytearray(7))),
        {"a": torch.ones(1, dtype=torch.uint8)},
        [],
    ],
)
def test_what_is_no_packet_is_refused(payload: object) -> None:
    with pytest.raises(ProtocolError):
        decode(payload, now=0.0)  # type: ignore[arg-type]


def test_a_packet_that_was_cut_short_is_refused() -> None:
    items = [item(1, torch.ones(100)), item(2, torch.ones(100))]
    packed, large = encode(items, [Note(Kind.RELEASED, [b"x" * 16])], now=0.0)
    packet = as_tensors(packed, large)
    assert isinstance(packet, torch.Tensor)
    for length in range(0, len(packet) - 50, 7):
        for short in (packet[:length], SmallMessage(memoryview(packed)[:length])):
            with pytest.raises(ProtocolError):
                decode(short, now=0.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_payloads_of_any_type_come_alike_as_bytes_and_as_tensors(dtype: torch.dtype) -> None:
    raw = torch.arange(96, dtype=torch.uint8) % 2  # true and false, too
    payload = raw.view(dtype)
    items = [item(1, payload), item(2, payload.view(2, -1)), item(3, payload[0])]
    if dtype is not torch.complex32:  # of which PyTorch warns when it makes one
        items.append(item(4, payload[:0]))
    packed, large = encode(items, now=0.0)
    assert not large
    for received in (carried(items), as_tensors(packed, large)):
        came, _ = decode(received, now=0.0)
        for sent, got in zip(items, came, strict=True):
            assert isinstance(sent.payload, torch.Tensor)
            assert isinstance(got.payload, torch.Tensor)
            assert (got.payload.dtype, got.payload.shape) == (dtype, sent.payload.shape)
            assert got.payload.contiguous().view(-1).view(torch.uint8).tolist() == bytes_of(sent.payload)


def bytes_of(tensor: torch.Tensor) -> list[int]:
    values: list[int] = tensor.contiguous().view(-1).view(torch.uint8).tolist()
    return values


def test_payloads_lie_where_a_tensor_of_their_own_would() -> None:
    """Some libraries give other bits for memory that begins elsewhere."""
    ((one, other), _) = decode(carried([item(1, torch.ones(3)), item(2, torch.ones(5))]), now=0.0)
    for got in (one, other):
        assert isinstance(got.payload, torch.Tensor)
        assert got.payload.data_ptr() % ALIGNMENT == 0
    for size in (1, 63, 64, 4096, 8363):
        memory = aligned_memory(size)
        assert (len(memory), address_of(memory) % ALIGNMENT, memory.readonly) == (size, 0, False)


def test_payloads_outlive_the_packet_that_they_came_in() -> None:
    payloads = [
        got.payload for got in decode(carried([item(n, torch.full((50,), float(n))) for n in (1, 2)]), now=0.0)[0]
    ]
    assert [bytearray(4096) for _ in range(50)]  # which would take the memory if it were free
    assert [p.tolist() for p in payloads] == [[1.0] * 50, [2.0] * 50]  # type: ignore[union-attr]
