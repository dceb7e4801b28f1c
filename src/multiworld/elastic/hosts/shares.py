"""Decide how many ranks each host of ``multiworld exec`` gets, by options or a file, and what each is told. Pure."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...wire.endpoints.bracketed import bracketed
from .far_order import FAR_END, FarOrder

COUNTS = re.compile(r"\b(slots|max[-_]slots)\s*=\s*(\S+)")


@dataclass(frozen=True, kw_only=True)
class HostShare:
    """``name`` as ssh takes it: a host, perhaps after ``user@``."""

    name: str
    num_ranks: int

    @property
    def address(self) -> str:
        """Where other hosts reach it, as an endpoint takes it."""
        return bracketed(self.name.rpartition("@")[2])

    @property
    def is_only_for_itself(self) -> bool:
        """Whether the name means every host to itself."""
        host = self.name.rpartition("@")[2]
        return host in ("localhost", "::1") or host.startswith("127.")


def allot(hosts: str, num_ranks: int | None = None) -> tuple[HostShare, ...]:
    """Return the shares of hosts in a list such as ``a,b:4,user@c,[::1]:2``, in its order.

    Hosts without a number share what the others leave of ``num_ranks``, the first ones more if it does not come out
    even; without ``num_ranks`` each gets one. Raises ValueError if the numbers leave a host without a rank or a rank
    without a host.
    """
    try:
        named = [_split_host(text.strip()) for text in hosts.split(",")]
    except ValueError as error:
        raise ValueError(f"--hosts: {error}") from error
    fixed = sum(number for _, number in named if number is not None)
    num_open = sum(number is None for _, number in named)
    if num_ranks is None:
        num_ranks = fixed + num_open
    rest = num_ranks - fixed
    if rest < num_open or (rest and not num_open):
        raise ValueError(
            f"--hosts {hosts} does not fit -n {num_ranks}: {fixed} ranks are given to hosts by number, and "
            f"{num_open} hosts have no number but need at least one rank each"
        )
    each, more = divmod(rest, num_open) if num_open else (0, 0)
    shares = []
    for name, number in named:
        if number is None:
            number = each + (more > 0)
            more -= 1
        shares.append(HostShare(name=name, num_ranks=number))
    return tuple(shares)


@dataclass(frozen=True, kw_only=True)
class RemoteJob:
    """One program on several hosts. ``variables`` are set on each of them; nothing else of this environment is."""

    shares: tuple[HostShare, ...]
    program: tuple[str, ...]
    run_id: str
    port: int
    directory: str
    python: str
    ssh: tuple[str, ...]
    here: frozenset[int] = frozenset()
    """Which of the shares are this host's own, and need no ssh."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)  # the token is among them

    def command(self, index: int) -> list[str]:
        """Return what starts the far end on that host. It holds no secret: everybody there can see it."""
        if index in self.here:
            return [sys.executable, "-m", FAR_END]
        return [*self.ssh, self.shares[index].name, shlex.quote(self.python), "-m", FAR_END]

    def order(self, index: int) -> FarOrder:
        """Return what the far end is told over its standard input."""
        return FarOrder(
            host=self.shares[index].name,
            directory=self.directory,
            variables=self.variables,
            arguments=self._arguments(index),
        )

    def _arguments(self, index: int) -> tuple[str, ...]:
        return (
            f"--nnodes={len(self.shares)}",
            f"--node-rank={index}",
            f"--nproc-per-node={self.shares[index].num_ranks}",
            "--rdzv-backend=static",
            f"--rdzv-endpoint={self.shares[0].address}:{self.port}",
            f"--rdzv-id={self.run_id}",
            "--restart=all",
            "--max-restarts=0",
            "--no-python",
            *self.program,
        )


def _split_host(text: str) -> tuple[str, int | None]:
    """Return host and number of ranks, if there is one, of ``host[:N]``. Raises ValueError."""
    name, colon, number = text.rpartition(":")
    if not colon or (":" in name and not name.endswith("]")):  # an IPv6 address has colons of its own
        name, number = text, ""
    user, at, host = name.rpartition("@")
    name = user + at + host.removeprefix("[").removesuffix("]")
    is_number = not number or (number.isdecimal() and int(number) > 0)
    if not host or name.startswith("-") or not is_number:
        raise ValueError(f"{text!r} is no host with a number of ranks, such as a, b:4 or user@c")
    return name, int(number) if number else None


def shares_of_file(text: str, named: str, num_ranks: int | None = None) -> tuple[HostShare, ...]:
    """Return how many ranks each host gets: its slots, in the order of the file, until ``num_ranks`` are given out.

    Hosts without a number have one slot; if none has a number, they share ``num_ranks`` as those of ``--hosts`` do. A
    host that stands there twice has the slots of both lines. Raises ValueError, with ``named`` and the line, for what
    is none.
    """
    slots: dict[str, int | None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if content:
            try:
                host, num_slots = _read(content)
            except ValueError as error:
                raise ValueError(f"--hostfile {named}, line {number}: {error}") from error
            before = slots.get(host)
            slots[host] = num_slots if host not in slots else (before or 1) + (num_slots or 1)
    if not slots:
        raise ValueError(f"--hostfile {named} names no host")
    if all(each is None for each in slots.values()):
        return allot(",".join(map(bracketed, slots)), num_ranks)
    return _fill({host: each or 1 for host, each in slots.items()}, named, num_ranks)


def _read(content: str) -> tuple[str, int | None]:
    word, *others = content.split(None, 1)
    host, num_slots = _split_host(word)
    for key, value in COUNTS.findall(" ".join(others)):
        if not value.isdecimal() or int(value) < 1:
            raise ValueError(f"{key}={value}: expected a number of ranks, at least 1")
        if key == "slots":
            num_slots = int(value)
    return host, num_slots


def _fill(slots: dict[str, int], named: str, num_ranks: int | None) -> tuple[HostShare, ...]:
    total = sum(slots.values())
    rest = total if num_ranks is None else num_ranks
    if not 1 <= rest <= total:
        raise ValueError(f"-n {rest} does not fit --hostfile {named}, whose hosts have {total} slots")
    shares = []
    for host, num_slots in slots.items():
        share = min(rest, num_slots)
        rest -= share
        if share:
            shares.append(HostShare(name=host, num_ranks=share))
    return tuple(shares)
