"""What stands under a job's key in etcd, and who may write over it. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from .base import Address

SHOWN_BYTES = 60


@dataclass(frozen=True)
class Claim:
    """An agent coordinates the job, at this address; ``term`` counts the coordinators of the job."""

    address: Address
    term: int

    def to_bytes(self) -> bytes:
        return json.dumps({"host": self.address.host, "port": self.address.port, "term": self.term}).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Claim:
        """Raises ValueError for what none of us has written."""
        try:
            fields = json.loads(value)
            return cls(Address(str(fields["host"]), int(fields["port"])), int(fields["term"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            shown = value[:SHOWN_BYTES].decode(errors="replace")
            raise ValueError(f"it holds {shown!r}, which no agent has written") from error


def may_replace(other: Claim, mine: Claim) -> bool:
    """Whether a coordinator writes over what it finds: it may have been its own, and a later term is right."""
    return other.address == mine.address or other.term < mine.term
