"""The file that says what is where in the data files. ``torch.distributed.checkpoint`` (DCP) makes it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from .data_file import Described
from .dcp import DcpWriter
from .disk import Disk
from .names import METADATA
from .orders import UnfinishedError

MOST_NAMED = 3


class MetadataFile:
    """Of the first writer of checkpoint after checkpoint."""

    def __init__(self) -> None:
        self._described: Sequence[bytes] = ()
        self._content = b""

    def write(self, described: Sequence[bytes], disk: Disk, directory: Path) -> None:
        """``described``: what the data files returned. Raises OSError, UnfinishedError, and what DCP raises."""
        if self._content and described == self._described:
            disk.write(directory / METADATA, self._content)
            return
        parts: list[Described] = [pickle.loads(each) for each in described]
        _, metadata = DefaultSavePlanner().create_global_plan([part.plan for part in parts])
        if missing := partial(metadata):
            raise UnfinishedError(
                f"{', '.join(missing)}: not all of it was written; were all processes of the replica writers?"
            )
        DcpWriter(directory, disk).finish(metadata, [part.results for part in parts])
        self._described, self._content = described, (directory / METADATA).read_bytes()


def partial(metadata: Metadata) -> list[str]:
    """Return tensors that the checkpoint has in part only: DCP would read them without an error. At most a few."""
    volumes = {
        name: (saved.size.numel(), sum(chunk.sizes.numel() for chunk in saved.chunks))
        for name, saved in metadata.state_dict_metadata.items()
        if isinstance(saved, TensorStorageMetadata)
    }
    return [name for name, (whole, written) in volumes.items() if written < whole][:MOST_NAMED]
