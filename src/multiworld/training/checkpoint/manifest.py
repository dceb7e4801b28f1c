"""What a whole checkpoint says about itself: its step, and the size and hash of every file. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import MessageError
from ...wire.messages import Json, from_json, to_json
from ..errors import CheckpointDamagedError, CheckpointVersionError
from .names import MANIFEST

FORMAT = 1
"""Of what this release writes, and the newest that it reads."""


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """``sequence`` grows with every checkpoint in a directory; the newest has the highest.

    After a rollback the steps are counted from an earlier one again, so ``step`` alone does not tell which is newer.
    """

    format: int = FORMAT
    job: str
    step: int
    sequence: int
    attempt: str
    saved_at: float
    torch: str
    num_writers: int
    files: Mapping[str, FileFacts]

    @property
    def size_bytes(self) -> int:
        return sum(facts.size_bytes for facts in self.files.values())

    def to_bytes(self) -> bytes:
        """Return JSON for people and programs, with its own hash: a damaged manifest must not pass for a whole one."""
        fields = to_json(self)
        return json.dumps({**fields, "sha256": _digest(fields)}, indent=1, sort_keys=True).encode()

    @staticmethod
    def from_bytes(data: bytes, path: str) -> Manifest:
        """``path``: of the checkpoint, for messages. Raises CheckpointDamagedError or CheckpointVersionError."""
        try:
            fields = json.loads(data)
            version = fields["format"]
            digest = fields.pop("sha256")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointDamagedError(path, MANIFEST, f"it is no manifest ({error})") from error
        if type(version) is int and version > FORMAT:
            raise CheckpointVersionError(path, version, FORMAT)
        if digest != _digest(fields):
            raise CheckpointDamagedError(path, MANIFEST, "its content does not fit its hash")
        try:
            return from_json(Manifest, fields)
        except MessageError as error:
            raise CheckpointDamagedError(path, MANIFEST, str(error)) from error


def _digest(fields: Json) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
