"""How many descriptors this process may open, and which of them are kept from strangers."""

from __future__ import annotations

import errno
import resource

MAX_LIMIT = 1 << 20
"""Hard limits of containers may be a thousand times that, and some programs try to close every possible descriptor."""
MAX_RESERVED = 256
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def raise_limit() -> None:
    """Raise this process's limit on open descriptors as far as it may, also for the processes that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_LIMIT if hard == resource.RLIM_INFINITY else min(hard, MAX_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # a sandbox may forbid it: the process goes on within the limit that it has
            return


def num_reserved(limit: int) -> int:
    """Return how many descriptors of that many are for the worlds of a process, not for its clients."""
    return min(MAX_RESERVED, limit // 4)


def is_reserved(descriptor: int) -> bool:
    """Whether a descriptor that was just opened for a stranger lies in the reserve.

    The kernel gives the lowest number that is free, so every lower one is taken, by whatever part of the process: one
    comparison is enough, and the doors of a process need not count together.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft != resource.RLIM_INFINITY and descriptor >= soft - num_reserved(soft)


def is_out_of_descriptors(error: OSError) -> bool:
    """Whether no connection can be accepted for now, in contrast to one that has gone before it was."""
    return error.errno in OUT_OF_DESCRIPTORS


def is_scarcity(error: BaseException) -> bool:
    """Whether a process could not be started because there are no descriptors, memory or processes left for now.

    That is never the fault of what should be started, and it passes.
    """
    return isinstance(error, OSError) and error.errno in (*OUT_OF_DESCRIPTORS, errno.EAGAIN)
