"""Cut the output of workers into lines, put a prefix before them, keep the last ones. Pure: bytes in, bytes out."""

from __future__ import annotations

import re
from collections.abc import Sequence

LONGEST_HELD = 64 * 1024  # bytes of a line without an end; after that it is shown in parts, with no other in between
LONGEST_KEPT = 1024 * 1024  # where others cannot be made to wait; after that a line comes in parts that count as lines
TAIL_BYTES = 16 * 1024
LONGEST_SHOWN = 2000  # characters of a line in a failure record
LINE = re.compile(rb"[^\n]*\n|[^\n]+")
LINE_START = re.compile(rb"(\n|\r(?!\n))(?=.)", re.DOTALL)


class LineBuffer:
    """Holds back what is not a whole line yet. What goes in comes out, in order, byte for byte."""

    def __init__(self, longest: int = LONGEST_HELD) -> None:
        self._longest, self._partial = longest, bytearray()

    @property
    def is_partial(self) -> bool:
        """Whether the beginning of a line is held back."""
        return bool(self._partial)

    def feed(self, chunk: bytes) -> bytes:
        """Return the whole lines there are now, together; a line that is too long to be held comes as it is."""
        end = chunk.rfind(b"\n") + 1
        if end:
            whole = self.take() + chunk[:end]
            self._partial += chunk[end:]
            return whole
        self._partial += chunk
        return self.take() if len(self._partial) > self._longest else b""

    def take(self) -> bytes:
        """Return what is held back."""
        partial, self._partial = bytes(self._partial), bytearray()
        return partial


class LineFilter:
    """Lets the lines through that contain one of some words."""

    def __init__(self, needles: Sequence[str]) -> None:
        self._needles = [needle.encode() for needle in needles]
        self._lines = LineBuffer(LONGEST_KEPT)

    def feed(self, chunk: bytes) -> bytes:
        return self._matching(self._lines.feed(chunk))

    def finish(self) -> bytes:
        """Return the last line, if it matches although it has no end."""
        return self._matching(self._lines.take())

    def _matching(self, lines: bytes) -> bytes:
        if not any(needle in lines for needle in self._needles):  # most output, without a look at each line
            return b""
        return b"".join(line for line in LINE.findall(lines) if any(needle in line for needle in self._needles))


class Labeller:
    """Puts a prefix before each line of one stream, whatever parts it comes in.

    A carriage return starts the line again, as progress bars do, so the prefix follows it. ``exact``: the stream is the
    only one there is; nothing is to be added to it.
    """

    def __init__(self, prefix: bytes, *, exact: bool = False) -> None:
        self.prefix = prefix
        self.exact = exact
        self._at_start = True
        self._after_return = False

    def label(self, text: bytes) -> bytes:
        if not text or not self.prefix:
            return text
        starts = self._at_start and not (self._after_return and text.startswith(b"\n"))
        self._at_start = text.endswith((b"\n", b"\r"))
        self._after_return = text.endswith(b"\r")
        return (self.prefix if starts else b"") + self._after_breaks(text)

    def start_anew(self) -> None:
        """Somebody ended the line: what comes is at the start of another."""
        self._at_start, self._after_return = True, False

    def _after_breaks(self, text: bytes) -> bytes:
        if b"\r" in text:
            prefix = self.prefix
            return LINE_START.sub(lambda found: found[1] + prefix, text)
        return text[:-1].replace(b"\n", b"\n" + self.prefix) + text[-1:]


class Tail:
    """The last bytes of a stream, for the record of a failure. May be read while another thread feeds it."""

    def __init__(self) -> None:
        self._kept = b""
        self._is_cut = False

    def feed(self, chunk: bytes) -> None:
        kept = self._kept + chunk[-TAIL_BYTES:]
        self._is_cut = self._is_cut or len(self._kept) + len(chunk) > TAIL_BYTES
        self._kept = kept[-TAIL_BYTES:]

    def lines(self) -> list[str]:
        """Return what is kept, as a terminal would show it: of a line written over, only what came last."""
        lines = self._kept.decode(errors="replace").split("\n")
        if self._is_cut and len(lines) > 1:
            del lines[0]
        if lines and not lines[-1]:
            del lines[-1]
        return [line.rstrip("\r").rpartition("\r")[2][:LONGEST_SHOWN] for line in lines]
