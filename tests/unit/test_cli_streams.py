"""What a command prints, where it cannot be written or encoded."""

from __future__ import annotations

import codecs
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest

from multiworld.cli.streams import ERRORS, OutputError, own_streams


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """What is read, and where it is written, in ASCII."""
    read_fd, write_fd = os.pipe()
    with os.fdopen(write_fd, "w", encoding="ascii", errors="strict") as stream:
        yield read_fd, stream
    os.close(read_fd)


def test_characters_that_cannot_be_encoded_are_replaced(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", pipe[1])
    with own_streams():
        print("a → b … ▁█ é \udcff")
    assert os.read(pipe[0], 1 << 16) == b"a -> b ... _# \\xe9 \xff\n"


def test_what_can_be_encoded_stays() -> None:
    with own_streams():
        assert "é →".encode("latin-1", ERRORS) == b"\xe9 ->"
        assert "→ \udcff".encode("utf-8", ERRORS) == b"\xe2\x86\x92 \xff"


def test_an_error_of_decoding_is_none_of_its_business() -> None:
    with own_streams(), pytest.raises(UnicodeDecodeError):
        codecs.decode(b"\xff", "utf-8", ERRORS)


@pytest.mark.parametrize("buffering", [-1, 0])
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_what_does_not_block_and_takes_nothing_now_is_waited_for(
    name: str, buffering: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    came: list[bytes] = []

    class Reader:
        """Reads when it is waited for."""

        def register(self, descriptor: int, events: int) -> None:
            assert events == select.POLLOUT

        def poll(self) -> None:
            came.append(os.read(read_fd, 1 << 20))

    monkeypatch.setattr(select, "poll", Reader)
    text = "".join(f"line {number}\n" for number in range(50_000))
    binary = os.fdopen(write_fd, "wb", buffering)
    with io.TextIOWrapper(binary, "ascii", write_through=not buffering) as stream:
        monkeypatch.setattr(sys, name, stream)
        with own_streams():
            print(text, end="", file=getattr(sys, name))
            getattr(sys, name).flush()
    came.append(os.read(read_fd, 1 << 20))
    os.close(read_fd)
    assert len(came) > 1
    assert b"".join(came).decode() == text


@pytest.mark.parametrize("text", ["short", "x" * (1 << 20)])
def test_a_full_disk_is_told_once_and_the_streams_are_what_they_were(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(OutputError) as raised, own_streams():
            print(text)
        assert (raised.value.errno, raised.value.reader_has_gone) == (errno.ENOSPC, False)
        assert sys.stdout is stream


def help_as_argparse_prints_it() -> None:
    for text in "xy":
        with pytest.raises(OutputError):
            print(text, flush=True)
    sys.exit(0)


def test_an_error_that_was_caught_is_raised_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(OutputError), own_streams():
            help_as_argparse_prints_it()


def test_a_reader_that_has_gone_is_known_as_such(pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", pipe[1])
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), pipe[0])
    with pytest.raises(OutputError) as raised, own_streams():
        print("x")
    assert raised.value.reader_has_gone


def test_what_nobody_can_be_told_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with own_streams():
            print("x", file=sys.stderr, flush=True)


def test_streams_in_memory_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    with own_streams():
        print("→")
    assert stream.getvalue() == "→\n"
