"""Snapshots as files in shared memory: they stay when the process that wrote them is killed.

A file has a prefix, the form of the state, its values that are no tensors, and the bytes of its tensors. Its name says
that it is whole, and is given last; the hash in the prefix says that its bytes are those that were written. The files
of one process are written over and over, as fresh memory costs a multiple of the copy.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...wire.messages import decode, encode, message
from ..errors import TrainingError
from ..recovery.state_parts import bytes_of, empty_bytes, pack, take_apart, unpack
from ..recovery.transfer import TensorForm, assemble, form_of
from .names import FileName, Run, all_but, of_dead_runs, of_job, outdated, readable
from .plan import Snapshot

DIRECTORY = "/dev/shm"
MAGIC = b"mwcopy01"
DIGEST_BYTES = 32
_LENGTHS = struct.Struct("<8sQQQ")  # magic; bytes of the form, of the values, of the tensors
PREFIX_BYTES = _LENGTHS.size + DIGEST_BYTES
ALIGNMENT = 64
SPARE_BYTES = 1 << 16  # values that are no tensors grow a little


class CopyDamagedError(TrainingError):
    """A snapshot in memory is not what was written. Fields: ``name`` (of its file), ``problem``."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name, self.problem = name, problem

    def __str__(self) -> str:
        return f"the snapshot {self.name} cannot be used: {self.problem}. Another copy, an older one or a checkpoint is"


@message("snapshot_form")
@dataclass(frozen=True, kw_only=True)
class SnapshotForm:
    tensors: tuple[TensorForm, ...]


class MemoryFile:
    """A file that this process writes, again and again under another name. One thread at a time."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._fd = -1
        self._memory: mmap.mmap | None = None
        self.name: FileName | None = None
        """None: it has no content."""

    @property
    def size_bytes(self) -> int:
        return 0 if self._memory is None else len(self._memory)

    def begin(self, name: FileName, size_bytes: int) -> Tensor:
        """Return the memory to write, ``[n]`` uint8 with at least so many bytes. Until ``end`` the file is not read.

        Raises OSError if there is not so much memory; nothing is left of the file then.
        """
        part = replace(name, is_part=True)
        try:
            self._rename(part)
            if self._memory is None or self.size_bytes < size_bytes:
                self._map(size_bytes + SPARE_BYTES)
        except BaseException:
            self.remove()
            raise
        assert self._memory is not None
        return torch.frombuffer(self._memory, dtype=torch.uint8)

    def end(self) -> None:
        """All bytes are there: from now on the file is read. Raises OSError."""
        assert self.name is not None
        whole = replace(self.name, is_part=False)
        os.rename(self._directory / str(self.name), self._directory / str(whole))
        self.name = whole

    def remove(self) -> None:
        """Idempotent."""
        if self.name is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._directory / str(self.name))
        self.forget()

    def forget(self) -> None:
        """Let go of the memory; the file stays for others. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._memory, self.name = -1, None, None  # the mapping ends with the last tensor that has it

    def _rename(self, name: FileName) -> None:
        path = self._directory / str(name)
        if self.name is not None:
            try:
                os.rename(self._directory / str(self.name), path)
            except FileNotFoundError:  # another process of the job has removed it as outdated
                self.forget()
        if self.name is None:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.name = name

    def _map(self, size_bytes: int) -> None:
        self._memory = None
        os.posix_fallocate(self._fd, 0, size_bytes)  # an error here, where it can be said, and not a signal at a copy
        self._memory = mmap.mmap(self._fd, size_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)


@dataclass(frozen=True)
class Written:
    """A snapshot whose tensors were copied. ``memory``: its bytes, ``[n]`` uint8; the prefix is still to come."""

    memory: Tensor

    def seal(self) -> None:
        """Compute the hash, and write it into the prefix."""
        self.memory[_LENGTHS.size : PREFIX_BYTES] = torch.frombuffer(bytearray(_digest(self.memory)), dtype=torch.uint8)


def write(file: MemoryFile, name: FileName, state: Any) -> Written:
    """Copy a captured state into a file. On the training thread. Raises OSError, and what ``pack`` raises."""
    tensors, rest = take_apart(state)
    form = encode(SnapshotForm(tensors=tuple(map(form_of, tensors))))
    values = pack(rest)
    flat = [bytes_of(each) for each in tensors]
    begins, size = [], 0
    for each in flat:
        begins.append(size)
        size = _aligned(size + each.numel())
    at = _aligned(PREFIX_BYTES + len(form) + values.numel())
    memory = file.begin(name, at + size)[: at + size]
    prefix = _LENGTHS.pack(MAGIC, len(form), values.numel(), size) + bytes(DIGEST_BYTES) + form
    memory[: len(prefix)] = torch.frombuffer(bytearray(prefix), dtype=torch.uint8)
    memory[len(prefix) : len(prefix) + values.numel()] = values
    for begin, each in zip(begins, flat, strict=True):
        memory[at + begin : at + begin + each.numel()].copy_(each)
    return Written(memory)


def check(memory: Tensor, name: str) -> Tensor:
    """Return the bytes of a snapshot, without what follows them. Raises CopyDamagedError if they are others."""
    try:
        magic, form, values, tensors = _LENGTHS.unpack(memory[: _LENGTHS.size].numpy().tobytes())
    except struct.error as error:
        raise CopyDamagedError(name, f"it has {memory.numel()} bytes") from error
    size = _aligned(PREFIX_BYTES + form + values) + tensors
    if magic != MAGIC or size > memory.numel():
        raise CopyDamagedError(name, "its prefix is none of ours")
    whole = memory[:size]
    if _digest(whole) != whole[_LENGTHS.size : PREFIX_BYTES].numpy().tobytes():
        raise CopyDamagedError(name, "its bytes are not those that were written (SHA-256)")
    return whole


def state_of(memory: Tensor, templates: Any) -> Any:
    """Return the state in what ``check`` returned, in memory of its own. ``templates``: as of ``transfer.assemble``.

    Raises ValueError if this program's model is sharded in another way.
    """
    _, form_bytes, value_bytes, _ = _LENGTHS.unpack(memory[: _LENGTHS.size].numpy().tobytes())
    end = PREFIX_BYTES + form_bytes
    form = decode(SnapshotForm, memory[PREFIX_BYTES:end].numpy().tobytes())
    rest = unpack(memory[end : end + value_bytes].clone())
    at = _aligned(end + value_bytes)
    data = []
    for each in form.tensors:
        mine = empty_bytes(each.size_bytes)
        mine.copy_(memory[at : at + each.size_bytes])
        data.append(mine)
        at = _aligned(at + each.size_bytes)
    return assemble(form.tensors, rest, data, templates)


class HostMemory:
    """The snapshots of one run of a job that lie in this host's memory. Any process of the run may read them."""

    def __init__(self, run: Run, num_shards: int, directory: str = DIRECTORY) -> None:
        self.run, self.directory, self._num_shards = run, directory, num_shards

    def snapshots(self) -> tuple[Snapshot, ...]:
        """Return those that are there; their bytes were not looked at."""
        return tuple(dict.fromkeys(each.snapshot for each in self._readable()))

    def read(self, label: str, shard: int) -> tuple[FileName, Tensor]:
        """Return one whose bytes are right; those that are damaged are removed. Raises CopyDamagedError."""
        problem = CopyDamagedError(f"{label} of shard {shard}", "it is not there any more")
        for each in self._readable():
            if (each.label, each.shard) != (label, shard):
                continue
            try:
                return each, check(self._bytes(each), str(each))
            except OSError as error:
                problem = CopyDamagedError(str(each), str(error))
            except CopyDamagedError as damaged:
                problem = damaged
            self.remove([each])
        raise problem

    def forget(self, label: str, shard: int) -> None:
        """Remove those of this label: nothing can be done with them."""
        self.remove([each for each in self._readable() if (each.label, each.shard) == (label, shard)])

    def remove_of_dead_runs(self, lives: Callable[[int, int], bool]) -> None:
        self.remove(of_dead_runs(self._files(), self.run, lives))

    def remove_outdated(self, step: int, members: Collection[str]) -> None:
        """Arguments: as of ``names.outdated``."""
        self.remove(outdated(self._files(), self.run, step, members))

    def remove_all_but(self, label: str) -> None:
        """``label``: that which all go on with; empty: there is none."""
        self.remove(all_but(self._files(), self.run, label))

    def remove(self, files: Sequence[FileName]) -> None:
        for each in files:
            with contextlib.suppress(FileNotFoundError, PermissionError):  # the latter: another user's
                os.unlink(os.path.join(self.directory, str(each)))

    def _files(self) -> list[FileName]:
        return of_job(os.listdir(self.directory), self.run.job)

    def _readable(self) -> list[FileName]:
        return readable(self._files(), self.run, self._num_shards)

    def _bytes(self, name: FileName) -> Tensor:
        fd = os.open(os.path.join(self.directory, str(name)), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size, owner = os.fstat(fd).st_size, os.fstat(fd).st_uid
            if owner != os.geteuid():  # anybody can make a file there
                raise CopyDamagedError(str(name), f"it belongs to user {owner}")
            memory = mmap.mmap(fd, size, mmap.MAP_SHARED) if size else bytearray()
        finally:
            os.close(fd)
        return torch.frombuffer(memory, dtype=torch.uint8) if size else empty_bytes(0)


def _digest(memory: Tensor) -> bytes:
    """Of all but the digest's own place."""
    hashed = hashlib.sha256(memory[: _LENGTHS.size].numpy().data)
    hashed.update(memory[PREFIX_BYTES:].numpy().data)
    return hashed.digest()


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
