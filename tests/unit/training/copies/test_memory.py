"""Snapshots in files: what is read is what was written, or it is refused."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from multiworld.training.copies.memory import CopyDamagedError, HostMemory, MemoryFile, check, state_of, write
from multiworld.training.copies.names import FileName, Run
from multiworld.training.copies.plan import Snapshot
from tests.checkpoints import Trained

RUN = Run(job="job", run="now", pid=1, start_time=1)
NAME = FileName(run=RUN, step=2, shard=0, num_shards=2, label="x", member="m")


def saved(folder: Path, trained: Trained, name: FileName = NAME, file: MemoryFile | None = None) -> MemoryFile:
    file = MemoryFile(str(folder)) if file is None else file
    write(file, name, trained.state.capture()).seal()
    file.end()
    return file


def equal(one: Trained, other: Trained) -> bool:
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    moments = [each.optimizer.state_dict()["state"][0]["exp_avg"] for each in (one, other)]
    return all(torch.equal(*pair) for pair in pairs) and torch.equal(*moments)


def test_a_state_comes_back_with_all_its_bits_in_memory_of_its_own(tmp_path: Path) -> None:
    trained, other = Trained(0).train(2), Trained(1)
    saved(tmp_path, trained)
    name, data = HostMemory(RUN, 2, str(tmp_path)).read("x", 0)
    other.state.restore(state_of(data, other.state.capture()))
    assert (name, other.state.step) == (NAME, trained.state.step)
    assert equal(trained, other)
    data.zero_()
    assert equal(trained, other)
    assert other.scheduler.state_dict() == trained.scheduler.state_dict()


def test_only_this_user_may_read_a_file(tmp_path: Path) -> None:
    saved(tmp_path, Trained().train(1))
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600]


def test_a_file_is_written_over_without_fresh_memory_and_is_not_read_meanwhile(tmp_path: Path) -> None:
    trained, memory = Trained().train(1), HostMemory(RUN, 2, str(tmp_path))
    file = saved(tmp_path, trained)
    (inode,) = [path.stat().st_ino for path in tmp_path.iterdir()]
    written = write(file, replace(NAME, step=3, label="y"), trained.train(1).state.capture())
    assert memory.snapshots() == ()
    written.seal()
    file.end()
    assert memory.snapshots() == (Snapshot(step=3, label="y", shard=0),)
    assert [path.stat().st_ino for path in tmp_path.iterdir()] == [inode]
    check(memory.read("y", 0)[1], "y")


def test_any_changed_byte_is_noticed_and_the_file_removed(tmp_path: Path) -> None:
    trained, memory = Trained().train(1), HostMemory(RUN, 2, str(tmp_path))
    size = check(memory_of(saved(tmp_path, trained)), "x").numel()
    for at in (0, 9, 20, 40, 70, size // 2, size - 1):
        saved(tmp_path, trained)
        (path,) = tmp_path.iterdir()
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)
        with pytest.raises(CopyDamagedError):
            memory.read("x", 0)
        assert list(tmp_path.iterdir()) == []


def memory_of(file: MemoryFile) -> torch.Tensor:
    assert file.name is not None
    data = HostMemory(RUN, 2, str(file._directory)).read("x", 0)[1]
    file.remove()
    return data


def test_a_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    for size in (0, 10, 200):
        saved(tmp_path, Trained().train(1))
        (path,) = tmp_path.iterdir()
        os.truncate(path, size)
        with pytest.raises(CopyDamagedError):
            HostMemory(RUN, 2, str(tmp_path)).read("x", 0)


def test_a_copy_is_read_if_the_shards_own_snapshot_is_damaged(tmp_path: Path) -> None:
    trained, memory = Trained().train(1), HostMemory(RUN, 2, str(tmp_path))
    saved(tmp_path, trained)
    saved(tmp_path, trained, replace(NAME, member="n", is_copy=True))
    path = tmp_path / str(NAME)
    path.write_bytes(path.read_bytes()[:-1])
    os.truncate(path, 300)
    name, _ = memory.read("x", 0)
    assert name.is_copy
    assert not path.exists()


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, Trained().train(1))
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    with pytest.raises(CopyDamagedError, match="belongs to user"):
        HostMemory(RUN, 2, str(tmp_path)).read("x", 0)


def test_without_memory_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        saved(tmp_path, Trained().train(1))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_another_process_removed_is_made_anew_and_never_appears_empty(tmp_path: Path) -> None:
    trained, file = Trained().train(1), MemoryFile(str(tmp_path))
    saved(tmp_path, trained, file=file)
    (tmp_path / str(NAME)).unlink()
    saved(tmp_path, trained, file=file)
    HostMemory(RUN, 2, str(tmp_path)).read("x", 0)
    written = write(file, NAME, trained.state.capture())
    written.seal()
    (tmp_path / f"{NAME}.part").unlink()
    with pytest.raises(FileNotFoundError):
        file.end()
    assert list(tmp_path.iterdir()) == []
