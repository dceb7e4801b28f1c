"""Any items and notes come out of a packet as they went in."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld.channel.payload.small_message import SmallMessage
from multiworld.serving.flow.packets import INLINE_BYTES, Item, Kind, Note, as_tensors, decode, encode

DTYPES = (torch.float32, torch.bool, torch.bfloat16, torch.int64, torch.complex64, torch.uint8)
TENSORS = st.builds(
    lambda shape, dtype, large: torch.ones([*shape, INLINE_BYTES] if large else shape, dtype=dtype),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(DTYPES),
    st.sampled_from([False, False, False, True]),
)
NAMES = st.text(st.characters(codec="utf-8"), max_size=5)
PAYLOADS = st.one_of(TENSORS, st.lists(TENSORS, max_size=3), st.dictionaries(NAMES, TENSORS, max_size=3))
IDS = st.binary(min_size=16, max_size=16)
NOTES = st.builds(
    Note,
    st.integers(Kind.CANCEL, Kind.PROMPT),
    st.lists(IDS, max_size=4),
    st.floats(0, 1000),
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(IDS, PAYLOADS, st.integers(1, 3), st.booleans()), max_size=4),
    st.lists(NOTES, max_size=4),
    st.booleans(),
)
def test_packets_bring_what_was_put_in(
    contents: list[tuple[bytes, object, int, bool]], notes: list[Note], whole: bool
) -> None:
    items = []
    for id_, payload, attempt, replayed in contents:
        item = Item(Kind.ITEM, id_, attempt, 10.0).carry(payload)  # type: ignore[arg-type]
        item.attempt, item.replayed = attempt, replayed
        items.append(item)
    packed, large = encode(items, notes, now=1.0)
    came, came_notes = decode(
        as_tensors(packed, large) if large or whole else SmallMessage(memoryview(packed)), now=2.0
    )
    assert [(note.kind, list(note.ids), note.number) for note in came_notes] == [
        (note.kind, list(note.ids), note.number) for note in notes
    ]
    assert len(came) == len(items)
    for got, (id_, payload, attempt, replayed) in zip(came, contents, strict=True):
        assert (got.id, got.origin, got.attempt, got.replayed, got.deadline) == (id_, attempt, attempt, replayed, 11.0)
        assert type(got.payload) is type(payload)
        assert [(t.dtype, t.shape, t.tolist()) for t in tensors_of(got.payload)] == [
            (t.dtype, t.shape, t.tolist()) for t in tensors_of(payload)
        ]
        if isinstance(payload, dict):
            assert list(got.payload) == list(payload)


def tensors_of(payload: object) -> list[torch.Tensor]:
    if isinstance(payload, torch.Tensor):
        return [payload]
    return list(payload.values()) if isinstance(payload, dict) else list(payload)  # type: ignore[call-overload]
