"""Read a file of hosts as mpiexec takes it: ``host slots=N`` of Open MPI, ``host:N`` of MPICH. Pure."""

from __future__ import annotations

import re

from .shares import HostShare, allot, split_host

__all__ = ["shares_of_file"]

COUNTS = re.compile(r"\b(slots|max[-_]slots)\s*=\s*(\S+)")


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
        return allot(",".join(f"[{host}]" if ":" in host else host for host in slots), num_ranks)
    return _fill({host: each or 1 for host, each in slots.items()}, named, num_ranks)


def _read(content: str) -> tuple[str, int | None]:
    word, *others = content.split(None, 1)
    host, num_slots = split_host(word)
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
