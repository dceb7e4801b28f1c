"""The standard streams of a command: a full disk, a reader that has gone, a character that cannot be encoded."""

from __future__ import annotations

import codecs
import errno
import io
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

ERRORS = "multiworld.plain"
PLAIN = {"→": "->", "–": "-", "…": "...", "×": "x", "µ": "u", "●": "*", "○": "o", "✓": "+", "✗": "x"}
BARS = "▁▂▃▄▅▆▇█"  # of a curve
PLAIN_BARS = "__--==##"
NO_TEXT = "".join(map(chr, range(0xDC80, 0xDD00)))  # stand for bytes, as ``os.fsdecode`` returns them


class OutputError(OSError):
    """What was printed could not be written. ``reader_has_gone``: as by ``multiworld status | head -1``."""

    status_unread = 0
    """The command's exit status, if its reader has gone: one that only shows something has done what was wanted."""

    @property
    def reader_has_gone(self) -> bool:
        return self.errno == errno.EPIPE


@contextmanager
def own_streams() -> Iterator[None]:
    """Make ``sys.stdout`` and ``sys.stderr`` those of a command, and write what is left in them at the end.

    Characters that they cannot encode are replaced. A ``print`` that cannot be written raises OutputError, also the
    last; what cannot be written to ``sys.stderr`` is lost, because nobody can be told.
    """
    codecs.register_error(ERRORS, plain)
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _over(before[0], _Output), _over(before[1], _Unread)
    try:
        try:
            yield
        except SystemExit:  # as after --help
            _write_rest(sys.stdout)
            raise
        _write_rest(sys.stdout)
    finally:
        ours, (sys.stdout, sys.stderr) = (sys.stdout, sys.stderr), before
        for stream in ours:
            with suppress(OSError):  # told already, by what is raised
                _write_rest(stream)
            raw = _raw_of(stream)
            if isinstance(raw, _Output):
                raw.is_over = True


def plain(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace what cannot be encoded by what looks like it, or as Python escapes it. A handler of ``codecs``.

    Bytes of a file's name that were no text are written as they were.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    if any(each in NO_TEXT for each in characters):
        return b"".join(_plain(each) for each in characters), error.end
    return b"".join(_plain(each) for each in characters).decode("ascii"), error.end


def _write_rest(stream: TextIO | None) -> None:
    """Raises OutputError also for one that was caught: argparse does not tell that its help was not written."""
    if stream is None:
        return
    stream.flush()
    raw = _raw_of(stream)
    if isinstance(raw, _Output) and raw.error is not None:
        raise raw.error


def _raw_of(stream: TextIO | None) -> object:
    binary = getattr(stream, "buffer", None)
    return getattr(binary, "raw", binary)


def _plain(character: str) -> bytes:
    if character in NO_TEXT:
        return character.encode("ascii", "surrogateescape")
    if character in BARS:
        return PLAIN_BARS[BARS.index(character)].encode()
    return PLAIN.get(character, character).encode("ascii", "backslashreplace")


def _over(stream: Any, kind: type[_Waiting]) -> Any:
    """Return a stream that writes to the same descriptor, or the same stream if it has none."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    try:
        stream.flush()
        raw = kind(stream.fileno(), "w", closefd=False)
    except (OSError, ValueError):  # it is closed, or was never open
        return stream
    raw.is_buffered = not isinstance(stream.buffer, io.RawIOBase)
    return io.TextIOWrapper(
        io.BufferedWriter(raw) if raw.is_buffered else raw,
        stream.encoding,
        ERRORS,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Waiting(io.FileIO):
    """Waits for a descriptor that does not block, and takes nothing now: a buffer would ask again at once, for ever.

    Another process may have made it so: all that have a terminal share that.
    """

    is_buffered = True  # else nobody writes the rest of what was written in part

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        num_bytes = len(rest)
        while rest:
            written = super().write(rest)
            if written is None:
                self._wait_until_writable()
                continue
            rest = rest[written:]
            if self.is_buffered:
                break
        return num_bytes - len(rest)

    def _wait_until_writable(self) -> None:
        writable = select.poll()
        writable.register(self.fileno(), select.POLLOUT)
        writable.poll()


class _Output(_Waiting):
    error: OutputError | None = None
    is_over = False

    def write(self, data: Any) -> int:
        if self.is_over:  # what is left in a buffer after an error: that was told
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            self.error = OutputError(error.errno, error.strerror)
            raise self.error from None


class _Unread(_Waiting):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)
