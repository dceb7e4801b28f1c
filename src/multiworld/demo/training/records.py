"""What the replicas of the demo say, one JSON line each. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A process takes part from ``step`` on. ``at``: the machine's monotonic clock, as in all records."""

    rank: int
    pid: int
    at: float
    step: int


@dataclass(frozen=True, kw_only=True)
class Done:
    """A step counted. ``redone``: micro-batches that were dealt a second time in it."""

    rank: int
    pid: int
    at: float
    step: int
    loss: float
    replicas: int
    redone: int
    num_samples: int


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A process ended with all steps done. ``digest``: of its parameters' bits."""

    rank: int
    pid: int
    at: float
    digest: str


Record = Begun | Done | Finished
KINDS = {"begun": Begun, "done": Done, "finished": Finished}


def encode(record: Record) -> bytes:
    kind = type(record).__name__.lower()
    return json.dumps({"kind": kind, **asdict(record)}).encode() + b"\n"


def decode(line: bytes) -> Record:
    fields = json.loads(line)
    record: Record = KINDS[fields.pop("kind")](**fields)
    return record
