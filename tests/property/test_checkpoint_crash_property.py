"""Whatever file operation a saving process dies in: what is read is whole, and it is the newest that was whole."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import given, settings

from multiworld.training.checkpoint.disk import Disk
from multiworld.training.checkpoint.finding import newest
from multiworld.training.checkpoint.loading import read
from multiworld.training.checkpoint.names import is_whole
from multiworld.training.state import TrainingState
from tests.checkpoints import steps_in, write

MOST_OPERATIONS = 24
"""More than such a checkpoint takes, its removals included."""


class Killed(BaseException):
    """No handler of an error may see it: the process is gone."""


class FatalDisk(Disk):
    """The process dies in its ``crash_at``-th operation; a write is done by half. ``whole``: what got its name."""

    def __init__(self, crash_at: int | None) -> None:
        super().__init__(sync=False)
        self._crash_at, self._done = crash_at, 0
        self.whole = False

    def operate(self) -> bool:
        """Count an operation. True: the process dies in it."""
        self._done += 1
        return self._crash_at is not None and self._done >= self._crash_at

    def _step(self) -> None:
        if self.operate():
            raise Killed

    @contextlib.contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        self._step()
        with super().create_stream(path, mode) as stream:
            yield DyingStream(stream, self)
            self._step()

    def mkdir(self, path: Any) -> None:
        self._step()
        super().mkdir(path)

    def rename(self, path: Any, new_path: Any) -> None:
        self._step()
        super().rename(path, new_path)
        self.whole = self.whole or is_whole(Path(new_path).name)

    def rm_file(self, path: Any) -> None:
        self._step()
        super().rm_file(path)

    def remove_tree(self, path: Path) -> None:
        for file in sorted(path.iterdir()):
            self._step()
            file.unlink()
        self._step()
        path.rmdir()


class DyingStream(io.RawIOBase):
    def __init__(self, stream: Any, disk: FatalDisk) -> None:
        self._stream, self._disk = stream, disk

    def write(self, data: Any) -> int:
        if self._disk.operate():
            self._stream.write(bytes(data)[: len(bytes(data)) // 2])
            raise Killed
        written: int = self._stream.write(data)
        return written

    def tell(self) -> int:
        position: int = self._stream.tell()
        return position


class Filled:
    """A part whose every value is one number."""

    def __init__(self) -> None:
        self.tensors = {"a": torch.zeros(64), "b": torch.zeros(3, 5)}

    def fill(self, number: int) -> None:
        for tensor in self.tensors.values():
            tensor.fill_(number)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.tensors)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tensors = state


@settings(max_examples=60)
@given(
    crashes=st.lists(st.none() | st.integers(1, MOST_OPERATIONS), min_size=1, max_size=6),
    keep=st.integers(1, 3),
)
def test_what_is_read_is_whole_and_the_newest(crashes: list[int | None], keep: int) -> None:
    part, state = Filled(), TrainingState()
    state.add("tracked.filled", part)
    last_whole, num_whole = None, 0
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for generation, crash_at in enumerate(crashes, 1):
            state.step += 10
            part.fill(state.step)
            disk = FatalDisk(crash_at)
            with contextlib.suppress(Killed):
                write(directory, state, disk=disk, keep=keep, generation=generation)
            if disk.whole:
                last_whole = state.step
                num_whole += 1
            found = newest(directory)
            assert (found and found.step) == last_whole
            assert len(steps_in(directory)) >= min(keep, num_whole)
            if found is not None:
                tensors = read(found)["parts"]["tracked.filled"]
                assert all(torch.all(tensor == last_whole) for tensor in tensors.values())
        state.step += 10
        write(directory, state, keep=keep, generation=0)  # the next one of all cleans up
        assert all(map(is_whole, os.listdir(directory)))
        assert steps_in(directory)[0] == state.step
        assert len(steps_in(directory)) == min(keep, num_whole + 1)
