"""Data files that are put together from the last one, byte by byte what DCP would have written."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from multiworld.training.checkpoint import data_file
from multiworld.training.checkpoint.data_file import DataFile
from multiworld.training.checkpoint.dcp import write_items
from multiworld.training.checkpoint.disk import Disk
from multiworld.training.checkpoint.finding import newest
from multiworld.training.checkpoint.flat import flatten
from multiworld.training.checkpoint.loading import load
from multiworld.training.checkpoint.manifest import FileFacts
from multiworld.training.checkpoint.packing import Packer
from multiworld.training.checkpoint.staging import Staging
from multiworld.training.checkpoint.writing import Files
from tests.checkpoints import Trained, write

pytestmark = pytest.mark.usefixtures("no_checksums")


class Writing:
    """Writes states one after the other, and compares each file with what a new process would write."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._staging, self._file = folder, Staging(), DataFile()
        self._count = 0
        self.num_by_dcp = 0

        def counted(*arguments: Any) -> Any:
            self.num_by_dcp += 1
            return write_items(*arguments)

        monkeypatch.setattr(data_file, "write_items", counted)

    def close(self) -> None:
        self._staging.close()

    def write(self, writer: int = 0, **tracked: Any) -> None:
        """``num_by_dcp``: how often DCP wrote, but for the comparison."""
        self._count += 1
        capture = {"step": 1, "rng": {}, "parts": {"tracked.x": tracked}}
        staged = self._staging.take(flatten(capture), writer=0, num_writers=1)
        size = os.fstat(self._staging.fd).st_size
        memory = mmap.mmap(self._staging.fd, size) if size else None
        found: list[tuple[bytes, bytes, Mapping[str, FileFacts]]] = []
        before = self.num_by_dcp
        for file in (self._file, DataFile()):
            directory = self._folder / f"{self._count}-{len(found)}"
            directory.mkdir(parents=True)
            disk = Disk(sync=False)
            described = file.write(staged, memory, writer=writer, disk=disk, directory=directory)
            content = (directory / f"__{writer}_0.distcp").read_bytes()
            found.append((described, content, disk.facts))
        self.num_by_dcp -= 1
        assert before <= self.num_by_dcp <= before + 1
        assert found[0] == found[1]


@pytest.fixture
def writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writing]:
    with contextlib.closing(Writing(tmp_path, monkeypatch)) as opened:
        yield opened


def test_new_values_of_one_layout_need_dcp_once(writing: Writing) -> None:
    for number in range(4):
        writing.write(
            a=torch.randn(3, 5),
            scalar=torch.tensor(float(number)),
            empty=torch.empty(0, 4),
            half=torch.randn(7).to(torch.bfloat16),
            count=number,
            rate=0.1 * number,
        )
    assert writing.num_by_dcp == 1


def test_no_tensor_at_all_is_a_layout_too(writing: Writing) -> None:
    for number in range(3):
        writing.write(count=number)
    assert writing.num_by_dcp == 1


def test_a_value_that_takes_more_bytes_is_written_by_dcp_again(writing: Writing) -> None:
    for name in ("a", "b", "b" * 300, "c" * 300):
        writing.write(a=torch.ones(2), name=name)
    assert writing.num_by_dcp == 2


def test_another_shape_and_another_name_are_written_by_dcp_again(writing: Writing) -> None:
    writing.write(a=torch.ones(2))
    writing.write(a=torch.ones(3))
    writing.write(b=torch.ones(3))
    writing.write(b=torch.zeros(3))
    assert writing.num_by_dcp == 3


def test_another_place_among_the_writers_is_written_by_dcp_again(writing: Writing) -> None:
    writing.write(a=torch.ones(2))
    writing.write(1, a=torch.ones(2))
    writing.write(1, a=torch.zeros(2))
    assert writing.num_by_dcp == 2


def test_what_differs_from_dcps_file_is_never_used(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    form = writing._file._packer.form

    def wrong(tensor: torch.Tensor) -> Any:
        found = form(tensor)
        assert found is not None
        return type(found)(found.before[:-1] + b"?", found.after)

    monkeypatch.setattr(writing._file._packer, "form", wrong)
    monkeypatch.setattr(writing._file._packer, "tensor", Packer().tensor)
    for _ in range(3):
        writing.write(a=torch.randn(2))
    assert writing.num_by_dcp == 3


def loaded(folder: Path) -> Trained:
    back = Trained(seed=1)
    found = newest(folder)
    assert found is not None
    load(found, back.state)
    return back


def test_checkpoints_of_one_process_load_as_each_others_equals(tmp_path: Path) -> None:
    trained, files = Trained(), Files()
    for _ in range(4):
        write(tmp_path, trained.train(1).state, files=files)
        assert loaded(tmp_path) == trained


def test_two_writers_that_write_again_share_each_checkpoint(tmp_path: Path) -> None:
    trained, processes = Trained(), [Files(), Files()]
    for _ in range(3):
        trained.train(1)
        for writer in (1, 0):
            write(tmp_path, trained.state, writer=writer, num_writers=2, files=processes[writer])
        assert loaded(tmp_path) == trained


def test_another_number_of_writers_makes_other_metadata(tmp_path: Path) -> None:
    trained, processes = Trained(), [Files(), Files()]
    for num_writers in (2, 1, 2):
        trained.train(1)
        for writer in reversed(range(num_writers)):
            write(tmp_path, trained.state, writer=writer, num_writers=num_writers, files=processes[writer])
        assert loaded(tmp_path) == trained
