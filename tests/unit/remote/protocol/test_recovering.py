"""Records of recovery, and manifests: read what was written, and refuse the rest."""

from __future__ import annotations

import pytest
import torch

from multiworld.errors import ProtocolError
from multiworld.remote.protocol import recovering
from multiworld.remote.protocol.messages import Failed
from multiworld.remote.protocol.records import HEAD
from multiworld.remote.protocol.recovering import (
    CHUNK_BYTES,
    MAX_PARTS,
    LostEntry,
    Manifest,
    StoredMemory,
    View,
    chunks,
    read_manifest,
)
from multiworld.remote.protocol.specs import Spec

SPEC = Spec((2, 3), (3, 1), 1, torch.complex64, "cpu", True, False)
MANIFEST = Manifest(
    position=7,
    memories=(StoredMemory(80, "cpu"), StoredMemory(0, "cuda:1")),
    views=(View(3, 0, SPEC), View(4, 0, SPEC)),
    lost=(LostEntry(5, Failed(stream=0, position=2, kind="RuntimeError", text="no", call=3)),),
    generators=(("cpu", bytes(range(256))),),
)


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert read_manifest(MANIFEST.encode()) == MANIFEST
    assert MANIFEST.num_bytes == 80
    record = recovering.restore(9, b"definitions", MANIFEST.encode())
    assert recovering.read_restore(record[HEAD.size :]) == (9, b"definitions", MANIFEST)


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"[]",
        b"[0,[],[],[]]",
        b"[-1,[],[],[],[]]",
        b'[0,[],[[1,0,[[],[],0,["dtype","float32"],"cpu",false,false]]],[],[]]',
        b"[0,[[1,2]],[],[],[]]",
        b'[0,[],[],[],[["cpu","?"]]]',
        b'[0,[],[],[[1,"{}"]],[]]',
    ],
)
def test_what_is_no_manifest_is_refused(encoded: bytes) -> None:
    with pytest.raises(ProtocolError, match="manifest"):
        read_manifest(encoded)


def test_a_question_longer_than_its_record_is_refused() -> None:
    assert recovering.read_repeat(recovering.repeat(b"asked", b"answer")[HEAD.size :]) == (b"asked", b"answer")
    with pytest.raises(ProtocolError, match="a question of 5 bytes"):
        recovering.read_repeat(recovering.repeat(b"asked", b"")[HEAD.size : -1])


def test_chunks_are_all_bytes_in_messages_of_a_bounded_size() -> None:
    sizes = [3, 0, 2 * CHUNK_BYTES, 5, *[1] * 600]
    found = list(chunks(sizes))
    assert all(sum(part.end - part.begin for part in chunk) <= CHUNK_BYTES for chunk in found)
    assert max(len(chunk) for chunk in found) == MAX_PARTS
    reached = [0] * len(sizes)
    for part in (part for chunk in found for part in chunk):
        assert part.begin == reached[part.memory]
        reached[part.memory] = part.end
    assert reached == sizes
    assert list(chunks([0])) == []
