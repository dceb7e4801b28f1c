"""What an edge carries comes out as it went in, and what is no packet is refused."""

from __future__ import annotations

import math

import pytest
import torch

from multiworld.errors import ProtocolError
from multiworld.serving.packets import INLINE_BYTES, Item, Kind, Note, decode, encode


def item(number: int, payload: object, deadline: float = math.inf) -> Item:
    return Item(Kind.ITEM, number.to_bytes(16, "little"), 3, deadline).carry(payload)  # type: ignore[arg-type]


def test_small_and_large_payloads_keep_their_order_and_owners() -> None:
    large = torch.arange(INLINE_BYTES, dtype=torch.float32)
    items = [
        item(1, torch.tensor(1.0)),
        item(2, [large, torch.empty(0), large + 1]),
        item(3, {"x": torch.ones(3, dtype=torch.bool), "y": torch.empty(0, 2)}),
        item(4, large * 2),
        item(5, []),
    ]
    came, notes = decode(encode(items, now=0.0), now=0.0)
    assert notes == []
    assert [got.id for got in came] == [sent.id for sent in items]
    for sent, got in zip(items, came, strict=True):
        assert type(sent.payload) is type(got.payload)
        assert str(sent.payload) == str(got.payload)


def test_what_is_known_of_an_item_travels_with_it_and_its_deadline_is_by_the_receivers_clock() -> None:
    sent = item(7, torch.ones(2), deadline=105.0)
    sent.attempt, sent.deaths, sent.replayed, sent.extra = 2, 1, True, {"key": "ä"}
    ((got,), _) = decode(encode([sent], now=100.0), now=9000.0)
    assert (got.origin, got.attempt, got.deaths, got.replayed, got.extra) == (3, 2, 1, True, {"key": "ä"})
    assert got.deadline == 9005.0
    after = got.successor()
    assert (after.id, after.origin, after.attempt, after.deadline, after.deaths) == (got.id, 3, 2, 9005.0, 0)


def test_an_item_that_is_passed_on_as_it_came_is_packed_again() -> None:
    ((got,), _) = decode(encode([item(1, {"a": torch.arange(5), "b": torch.ones(2)})], now=0.0), now=0.0)
    ((again,), _) = decode(encode([got], now=0.0), now=0.0)
    assert torch.equal(again.payload["a"], torch.arange(5))  # type: ignore[call-overload, index]


def test_notes_come_with_items_or_alone() -> None:
    ids = [bytes([number]) * 16 for number in range(3)]
    notes = [Note(Kind.RELEASED, ids), Note(Kind.GRANT, [], 12.0), Note(Kind.STARTED, [])]
    for items in ([], [item(1, torch.ones(1))]):
        _, came = decode(encode(items, notes, now=0.0), now=0.0)
        assert [(note.kind, list(note.ids), note.number) for note in came] == [
            (Kind.RELEASED, ids, 0.0),
            (Kind.GRANT, [], 12.0),
            (Kind.STARTED, [], 0.0),
        ]


def test_errors_travel_in_an_answers_place() -> None:
    failed = item(1, torch.ones(1)).successor().carry_error({"type": "StageFailedError", "args": ["a", "b", "c"]})
    ((got,), _) = decode(encode([failed], now=0.0), now=0.0)
    assert got.kind == Kind.ERROR
    assert got.error["args"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "payload",
    [
        torch.ones(3),
        torch.empty(0, dtype=torch.uint8),
        torch.zeros(7, dtype=torch.uint8),
        torch.tensor([9, 0, 0, 0, 0, 0, 0, 0], dtype=torch.uint8),
        torch.tensor([1, 0, 0, 0, 5, 0, 0, 0], dtype=torch.uint8),
        encode([], [Note(Kind.RELEASED, [b"x" * 16] * 5)], now=0.0)[:-32],  # type: ignore[index]
        {"a": torch.ones(1, dtype=torch.uint8)},
        [],
    ],
)
def test_what_is_no_packet_is_refused(payload: object) -> None:
    with pytest.raises(ProtocolError):
        decode(payload, now=0.0)  # type: ignore[arg-type]


def test_a_packet_that_was_cut_short_is_refused() -> None:
    packet = encode([item(1, torch.ones(100)), item(2, torch.ones(100))], [Note(Kind.RELEASED, [b"x" * 16])], now=0.0)
    assert isinstance(packet, torch.Tensor)
    for length in range(0, len(packet) - 50, 7):
        with pytest.raises(ProtocolError):
            decode(packet[:length], now=0.0)
