"""Reading and writing the memory of another process: here it is this one."""

from __future__ import annotations

import os
import socket

import pytest
import torch

from multiworld.errors import ProtocolError
from multiworld.remote.peer_memory import CHUNK_BYTES, Mark, PeerMemory, PeerMemoryError

HOST = socket.gethostname()
NOBODY = 2**22 + 1  # no process has a number above 2**22


def memory_with(mark: Mark) -> PeerMemory:
    memory = PeerMemory.of(os.getpid(), HOST, mark.text, mark.address)
    assert memory is not None
    return memory


@pytest.mark.parametrize("num_bytes", [1, 5000, 2 * CHUNK_BYTES + 3])
def test_tensors_are_read_and_written(num_bytes: int) -> None:
    mark, theirs = Mark(), torch.randint(256, (num_bytes,), dtype=torch.uint8)
    memory, ours = memory_with(mark), torch.empty(num_bytes, dtype=torch.uint8)
    memory.read(theirs.data_ptr(), ours)
    assert torch.equal(ours, theirs)
    memory.write(theirs.data_ptr(), 255 - ours)
    assert torch.equal(theirs, 255 - ours)


def test_a_write_that_is_given_up_ends_behind_the_present_part() -> None:
    mark, theirs = Mark(), torch.zeros(3 * CHUNK_BYTES, dtype=torch.uint8)
    looks = iter([False, True])
    with pytest.raises(PeerMemoryError, match="given up"):
        memory_with(mark).write(theirs.data_ptr(), torch.ones_like(theirs), lambda: next(looks))
    assert theirs.sum() == CHUNK_BYTES


def test_only_a_process_of_this_host_that_shows_its_mark_is_read() -> None:
    mark, other = Mark(), Mark()
    assert PeerMemory.of(os.getpid(), "another host", mark.text, mark.address) is None
    assert PeerMemory.of(os.getpid(), HOST, "", 0) is None
    assert PeerMemory.of(os.getpid(), HOST, other.text, mark.address) is None
    assert PeerMemory.of(os.getpid(), HOST, mark.text, 4096) is None
    assert PeerMemory.of(NOBODY, HOST, mark.text, mark.address) is None


def test_nothing_counts_once_the_mark_is_erased() -> None:
    mark, theirs = Mark(), torch.zeros(8)
    memory = memory_with(mark)
    mark.erase()
    with pytest.raises(PeerMemoryError, match="it has ended, or is another process"):
        memory.read(theirs.data_ptr(), torch.empty(8))
    with pytest.raises(PeerMemoryError, match="it has ended"):
        memory.write(theirs.data_ptr(), torch.ones(8))
    assert theirs.sum() == 0


def test_a_process_that_does_not_show_the_mark_that_is_demanded_is_another_one() -> None:
    mark, theirs = Mark(), torch.zeros(8)
    memory = memory_with(mark)
    demanded = memory.demand_mark()
    with pytest.raises(PeerMemoryError, match="is another process"):
        memory.read(theirs.data_ptr(), torch.empty(8))
    with pytest.raises(PeerMemoryError, match="is another process"):
        memory.write(theirs.data_ptr(), torch.ones(8))
    assert theirs.sum() == 0
    mark.show(demanded)
    memory.write(theirs.data_ptr(), torch.ones(8))
    assert theirs.sum() == 8


@pytest.mark.parametrize("mark", ["", "00", "0" * 34, "xx" * 16])
def test_what_can_not_be_a_mark_is_refused(mark: str) -> None:
    shown = Mark()
    with pytest.raises(ProtocolError, match="is no mark: 16 bytes in hex"):
        shown.show(mark)
    memory_with(shown).check()


def test_errors_say_what_happened() -> None:
    mark = Mark()
    memory = memory_with(mark)
    with pytest.raises(PeerMemoryError, match="its memory can't be read: Bad address"):
        memory.read(4096, torch.empty(8))
    with pytest.raises(PeerMemoryError, match="its memory can't be written: Bad address"):
        memory.write(4096, torch.empty(8))
    with pytest.raises(PeerMemoryError, match="it died"):
        PeerMemory(NOBODY, "", 0).read(4096, torch.empty(8))
