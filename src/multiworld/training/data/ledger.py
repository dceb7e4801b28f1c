"""Write down which samples were committed, one file for each member, and read such files."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from .ledger_check import Committed, Data, LedgerReport, Record, Rewound, check_records

logger = logging.getLogger(__name__)

SUFFIX: Final = ".ledger.jsonl"


class Ledger:
    """One member's file: a line of JSON for each committed step. Used by one thread.

    A line is written in one go. A process that is killed leaves its last line cut off at worst, which a reader sees,
    and the other members have the step, too. Where a line cannot be written (a full disk), the training goes on:
    ``failed`` has the error, and a later line begins anew. ``is_durable``: write each line through to the disk, for a
    host that may die; what the kernel has survives the process anyway.
    """

    def __init__(self, directory: str | os.PathLike[str], member: str, data: Data, *, is_durable: bool = False) -> None:
        self.path = Path(directory) / f"{member}{SUFFIX}"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.failed: OSError | None = None
        self._member = member
        self._is_durable = is_durable
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._file).st_size
        self._is_torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        self._write({"kind": "data", **asdict(data)})

    def commit(
        self, step: int, generation: int, done: Mapping[str, Sequence[int]], samples: Sequence[Sequence[str]]
    ) -> None:
        """``done``: the micro-batches of each member, as all of them know. ``samples``: the ids of each micro-batch."""
        by = {member: list(numbers) for member, numbers in done.items()}
        ids = [list(names) for names in samples]
        self._write({"kind": "step", "step": step, "generation": generation, "done": by, "samples": ids})

    def rewind(self, step: int, generation: int, before: Sequence[str] = ()) -> None:
        """The training goes back to ``step`` with a higher generation: what was committed from there on is void.

        ``before``: it begins anew after all replicas were lost, perhaps under another launcher that counts generations
        from 1. Then what these members committed from there on is void.
        """
        self._write({"kind": "rewind", "step": step, "generation": generation, "before": list(before)})

    def close(self) -> None:
        """Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, line: Mapping[str, object]) -> None:
        if self._file < 0:
            raise ValueError(f"the ledger {self.path} is closed")
        text = ("\n" if self._is_torn else "") + json.dumps(line, separators=(",", ":")) + "\n"
        data = text.encode()
        try:
            written = os.write(self._file, data)
            self._is_torn = written < len(data)
            if self._is_durable:
                os.fdatasync(self._file)
        except OSError as error:
            if self.failed is None:
                logger.warning("the ledger %s lacks a line: %s. The training goes on without it", self.path, error)
            self.failed = error


def members_in(directory: str | os.PathLike[str]) -> list[str]:
    """Return the members that have a file there."""
    return sorted(path.name.removesuffix(SUFFIX) for path in Path(directory).glob(f"*{SUFFIX}"))


def read_ledger(directory: str | os.PathLike[str]) -> tuple[dict[str, Data], list[Record], list[str]]:
    """Return what each member had for data, all records, and where lines are cut off (``FILE:LINE``)."""
    data: dict[str, Data] = {}
    records: list[Record] = []
    torn: list[str] = []
    for path in sorted(Path(directory).glob(f"*{SUFFIX}")):
        member = path.name.removesuffix(SUFFIX)
        for number, line in enumerate(path.read_text(errors="replace").split("\n"), start=1):
            if not line:
                continue
            try:
                record = _read(member, json.loads(line))
            except (ValueError, TypeError, KeyError):
                torn.append(f"{path.name}:{number}")
                continue
            if isinstance(record, Data):
                data[member] = record
            else:
                records.append(record)
    return data, records, torn


def check_ledger(directory: str | os.PathLike[str]) -> LedgerReport:
    """Say whether each sample was committed once, by the files of all members. FileNotFoundError if there is none."""
    if not any(Path(directory).glob(f"*{SUFFIX}")):
        raise FileNotFoundError(f"{directory} has no ledger: no file *{SUFFIX}")
    data, records, torn = read_ledger(directory)
    return check_records(data, records, torn)


def _read(member: str, line: Any) -> Data | Record:
    kind = line.pop("kind")
    if kind == "data":
        return Data(**line)
    if kind == "rewind":
        return Rewound(member=member, before=tuple(line.pop("before", ())), **line)
    if kind == "step":
        return Committed(member=member, **line)
    raise ValueError(f"a line of an unknown kind: {kind}")
