"""The file operations of checkpoints, in one place; each file is hashed while it is written."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem

from .manifest import FileFacts

READ_BYTES = 1 << 20


class Disk(FileSystem):
    """What DCP's writer, and we, do to files. ``facts``: of the files that were written, by name."""

    def __init__(self, *, sync: bool) -> None:
        self.facts: dict[str, FileFacts] = {}
        self._sync = sync

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        with open(path, "wb") as file:
            stream = HashedFile(file)
            yield stream
            if self._sync:
                file.flush()
                os.fsync(file.fileno())
        self.facts[Path(path).name] = stream.facts()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        os.rename(path, new_path)
        if (facts := self.facts.pop(Path(path).name, None)) is not None:
            self.facts[Path(new_path).name] = facts

    def write(self, path: Path, data: bytes) -> None:
        """Have a file with this content, or none: readers never see half of it."""
        beside = path.with_name(path.name + ".tmp")
        with self.create_stream(beside, "wb") as stream:
            stream.write(data)
        self.rename(beside, path)

    def names(self, directory: Path) -> list[str]:
        """Return what is in a directory; nothing, if it does not exist."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def remove_tree(self, path: Path) -> None:
        """What is gone already is no error: another writer may clean up, too."""
        shutil.rmtree(path, onerror=_raise_unless_gone)

    def sync_directory(self, path: Path) -> None:
        """Have new names in a directory outlive the host."""
        if not self._sync:
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class HashedFile(io.RawIOBase):
    """A file that is written once, from its beginning."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file, self._hash, self._size = file, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        written = self._file.write(data)
        self._hash.update(data)
        self._size += written
        return written

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def facts(self) -> FileFacts:
        return FileFacts(size_bytes=self._size, sha256=self._hash.hexdigest())


class Unclosed:
    """One item's view of a file that others are written to, too."""

    def __init__(self, stream: io.IOBase) -> None:
        self.write = stream.write

    def close(self) -> None:
        """The file stays open."""


def facts_of(path: Path) -> FileFacts:
    """Read a file, and return what it is now. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        buffer = memoryview(bytearray(READ_BYTES))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return FileFacts(size_bytes=size, sha256=digest.hexdigest())


def _raise_unless_gone(_function: Any, _path: str, info: Any) -> None:
    if not isinstance(info[1], FileNotFoundError):
        raise info[1]
