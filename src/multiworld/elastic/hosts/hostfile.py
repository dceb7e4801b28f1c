"""Read Oobleck's hostfile: one host a line, as ``node1 slots=2 devices=0,1 port=22``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ...wire.endpoints.bracketed import bracketed

KEYS = ("slots", "devices", "port")
WORD = re.compile(r"\S+")
HOST = re.compile(r"(?:[^@=\[\]]+@)?(?:\[[0-9A-Fa-f:.%\w]+\]|[^@=\[\],]+)")
MAX_PORT = 65535


class HostfileError(ValueError):
    """A hostfile that does not parse: where, counted from 1, and what was expected there."""

    def __init__(self, file: str, line: int, column: int, reason: str) -> None:
        super().__init__(file, line, column, reason)
        self.file, self.line, self.column, self.reason = file, line, column, reason

    def __str__(self) -> str:
        return f"--hostfile {self.file}, line {self.line}, column {self.column}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class HostLine:
    """``name`` as ssh takes it: a host, perhaps after ``user@``. ``slots``: how many workers it gets."""

    name: str
    slots: int = 1
    devices: tuple[int, ...] = ()
    """The only ones that its workers see; empty: all that are there."""
    port: int | None = None
    """Where its sshd listens; None: where ssh's own configuration says."""

    @property
    def host(self) -> str:
        """The host without the user."""
        return self.name.rpartition("@")[2]

    @property
    def address(self) -> str:
        """Where other hosts reach it, as an endpoint takes it."""
        return bracketed(self.host)

    @property
    def is_only_for_itself(self) -> bool:
        """Whether the name means every host to itself."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


class _Word(NamedTuple):
    """A word of a line, and its column, counted from 1."""

    text: str
    column: int


def parse_hostfile(text: str, file: str) -> tuple[HostLine, ...]:
    """Return the hosts in their order. ``file``: its name, for errors.

    Empty lines and what follows ``#`` mean nothing. ``slots`` is 1 if it is left out, or as many as there are
    ``devices``. A host may stand there twice if the ports differ, as for two containers. Raises HostfileError.
    """
    hosts: list[HostLine] = []
    lines: dict[tuple[str, int | None], int] = {}
    number = 0
    for number, line in enumerate(text.splitlines(), 1):
        words = [_Word(found[0], found.start() + 1) for found in WORD.finditer(line.partition("#")[0])]
        if not words:
            continue
        try:
            host = _read(words)
            if (before := lines.setdefault((host.name, host.port), number)) != number:
                raise _Wrong(words[0].column, f"{words[0].text} stands in line {before} already, with the same port")
        except _Wrong as wrong:
            raise HostfileError(file, number, wrong.column, wrong.reason) from None
        hosts.append(host)
    if not hosts:
        raise HostfileError(file, max(number, 1), 1, "no host is named; expected lines such as 'node1 slots=2'")
    return tuple(hosts)


class _Wrong(Exception):
    def __init__(self, column: int, reason: str) -> None:
        super().__init__(column, reason)
        self.column, self.reason = column, reason


def _read(words: list[_Word]) -> HostLine:
    name, *rest = words
    if name.text.startswith("-") or HOST.fullmatch(name.text) is None:
        raise _Wrong(name.column, f"{name.text!r} is no host; expected a name, an address, or user@ and either")
    given: dict[str, _Word] = {}
    for key, value in _settings(rest):
        if key in given:
            raise _Wrong(value.column - len(key) - 1, f"{key}= stands twice in this line")
        given[key] = value
    devices = _devices(given["devices"]) if "devices" in given else ()
    slots = _number(given["slots"], "slots", "workers, at least 1") if "slots" in given else max(1, len(devices))
    if devices and slots > len(devices):
        raise _Wrong(
            given["slots"].column,
            f"slots={slots}, but devices={given['devices'].text} names {len(devices)}: expected at most as many slots",
        )
    port = _number(given["port"], "port", f"a port, 1 to {MAX_PORT}", MAX_PORT) if "port" in given else None
    user, at, host = name.text.rpartition("@")
    return HostLine(name=user + at + host.removeprefix("[").removesuffix("]"), slots=slots, devices=devices, port=port)


def _settings(words: list[_Word]) -> Iterator[tuple[str, _Word]]:
    """Yield each key, and its value where that stands."""
    for word in words:
        key, assigned, value = word.text.partition("=")
        if key not in KEYS or not assigned:
            expected = " or ".join(f"{each}=" for each in KEYS)
            raise _Wrong(word.column, f"{word.text!r}: expected {expected}, without spaces")
        yield key, _Word(value, word.column + len(key) + 1)


def _devices(value: _Word) -> tuple[int, ...]:
    devices: list[int] = []
    column = value.column
    for part in value.text.split(","):
        if not _is_number(part):
            raise _Wrong(column, f"devices={value.text}: expected numbers of devices, such as 0,1")
        if int(part) in devices:
            raise _Wrong(column, f"devices={value.text}: {int(part)} stands twice")
        devices.append(int(part))
        column += len(part) + 1
    return tuple(devices)


def _number(value: _Word, key: str, expected: str, most: int | None = None) -> int:
    if not _is_number(value.text) or int(value.text) < 1 or (most is not None and int(value.text) > most):
        raise _Wrong(value.column, f"{key}={value.text}: expected a number of {expected}".replace("number of a ", ""))
    return int(value.text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10
