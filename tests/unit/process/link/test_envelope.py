"""What the frames of a control link hold."""

from __future__ import annotations

import json

import pytest

from multiworld.errors import ProtocolError
from multiworld.process.link.envelope import Answered, Asked, pack_answered, pack_asked, unpack
from multiworld.wire.messages import MAX_BYTES


def test_frames_come_out_as_they_went_in() -> None:
    assert unpack(pack_asked(7, {"ask": "status"})) == Asked(7, {"ask": "status"})
    assert unpack(pack_answered(7, "answer", {})) == Answered(7, "answer", {})
    assert unpack(pack_answered(7, "part", {"lines": ["a"]})) == Answered(7, "part", {"lines": ["a"]})
    assert unpack(pack_answered(7, "error", "no", "ValueError")) == Answered(7, "error", "no", "ValueError")


def test_the_release_before_understands_them() -> None:
    assert json.loads(pack_asked(1, {"ask": "here"})) == {"say": "ask", "number": 1, "question": {"ask": "here"}}
    assert json.loads(pack_answered(1, "error", "no")) == {"say": "answered", "number": 1, "error": "no"}


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[]", b"{}", b'{"number": 1}', b'{"number": true, "question": {}}', b"[" * 100_000]
)
def test_what_is_no_frame_of_a_link_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack(body)


def test_what_is_too_long_is_not_sent() -> None:
    with pytest.raises(ValueError, match="longer than"):
        pack_asked(1, {"text": "x" * MAX_BYTES})
