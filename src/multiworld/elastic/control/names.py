"""Where the agents of this host answer: names in the abstract Unix namespace that tell user and job. Pure."""

from __future__ import annotations

import hashlib
import re

from ...wire.endpoints.addresses import local_name
from ...world.launcher.launched import job_name

MAX_SHOWN = 60  # of a job's name: the kernel takes 107 bytes in all
LISTENING = 0x10000
LINE = re.compile(r"\S+ \S+ \S+ ([0-9A-F]+) \S+ \S+ +\d+ @multiworld-control-(\d+)-([0-9a-f]+)-(.*)")


def control_name(job: str, uid: int, nonce: str) -> str:
    """Return the name for one agent's listener; ``nonce`` (hexadecimal) keeps the agents of one job apart."""
    return local_name(f"control-{uid}-{nonce}-{short_job(job)}")


def short_job(job: str) -> str:
    """Return the job's name as it stands in the listener's; as it is if it is short and plain."""
    name = job_name(job)
    if len(name) <= MAX_SHOWN:
        return name
    return f"{name[: MAX_SHOWN - 17]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def find_names(sockets: str, uid: int) -> dict[str, list[str]]:
    """Return what listens, by the job's short name. ``sockets``: what ``/proc/net/unix`` says.

    Any user could have taken such a name, so whoever calls it has to ask the kernel whose it is.
    """
    found: dict[str, list[str]] = {}
    for line in sockets.splitlines():
        matched = LINE.fullmatch(line)
        if matched is not None and int(matched[1], 16) & LISTENING and int(matched[2]) == uid:
            found.setdefault(matched[4], []).append(local_name(f"control-{uid}-{matched[3]}-{matched[4]}"))
    return found
