"""What a checkpoint says about itself."""

from __future__ import annotations

import json

import pytest

from multiworld.training.checkpoint.manifest import FORMAT, FileFacts, Manifest
from multiworld.training.errors import CheckpointDamagedError, CheckpointVersionError

MANIFEST = Manifest(
    job="gpt",
    step=40,
    sequence=2,
    attempt="abc",
    saved_at=1.5,
    torch="2.13.0",
    num_writers=1,
    files={".metadata": FileFacts(size_bytes=3, sha256="aa"), "__0_0.distcp": FileFacts(size_bytes=9, sha256="bb")},
)


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert Manifest.from_bytes(MANIFEST.to_bytes(), "p") == MANIFEST
    assert MANIFEST.size_bytes == 12


def test_every_changed_character_of_its_values_is_found() -> None:
    data = MANIFEST.to_bytes().replace(b'"step": 40', b'"step": 41')
    with pytest.raises(CheckpointDamagedError, match=r"p is damaged: manifest.json: its content does not fit its hash"):
        Manifest.from_bytes(data, "p")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", MANIFEST.to_bytes()[:-20], b"\xff\xfe"])
def test_what_is_no_manifest_is_damage(data: bytes) -> None:
    with pytest.raises(CheckpointDamagedError, match="it is no manifest"):
        Manifest.from_bytes(data, "p")


def test_a_newer_format_is_told_apart_from_damage_whatever_else_it_holds() -> None:
    data = json.dumps({"format": FORMAT + 1, "sha256": "of another kind", "new": []}).encode()
    with pytest.raises(CheckpointVersionError, match=f"has format {FORMAT + 1}, and this release reads formats up to"):
        Manifest.from_bytes(data, "p")
