"""The writer of ``torch.distributed.checkpoint`` (DCP), for one data file of items that are packed already."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from .disk import Disk, Unclosed


def numbered(plan: SavePlan, writer: int) -> SavePlan:
    """Return the plan of one of the writers, with the names of its files in it."""
    planned: SavePlan = FileSystemWriter("").prepare_global_plan([SavePlan([])] * writer + [plan])[writer]
    return planned


def write_items(plan: SavePlan, pack: Callable[[str], bytes], directory: Path, disk: Disk) -> list[WriteResult]:
    """Write what is planned into one file. ``pack`` returns an item as ``torch.save`` has it. Raises OSError."""
    # To DCP's writer all items are bytes: to the reader there is no difference.
    as_bytes = replace(plan, items=[replace(item, type=WriteItemType.BYTE_IO) for item in plan.items])
    return DcpWriter(directory, disk).write_data(as_bytes, _Packed(pack)).value()


class DcpWriter(FileSystemWriter):
    """Writes through our ``Disk``, which syncs. Its metadata do not change with the directory's name."""

    def __init__(self, path: Path, disk: Disk) -> None:
        # No copies ahead: in a process that sees a GPU they would make a context on it.
        super().__init__(path, sync_files=False, per_thread_copy_ahead=0)
        self.fs = disk
        self.transforms = _NoTransforms()  # type: ignore[assignment]

    def storage_meta(self) -> StorageMeta:
        return StorageMeta()


class _NoTransforms:
    """DCP's own makes two classes for each item, even where nothing is to be transformed."""

    def transform_save_stream(self, write_item: WriteItem, raw_stream: io.IOBase) -> tuple[Unclosed, list[str]]:
        return Unclosed(raw_stream), []


class _Packed(DefaultSavePlanner):
    def __init__(self, pack: Callable[[str], bytes]) -> None:
        super().__init__()
        self._pack = pack

    def resolve_data(self, write_item: WriteItem) -> io.BytesIO:
        return io.BytesIO(self._pack(write_item.index.fqn))
