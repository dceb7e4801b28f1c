"""The default group of this process: the one thing in this package that is global."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from ..world.launcher.launched import launched
from ..world.liveness import DEFAULT_LEASE_S
from ..world.manager import WorldManager
from ..world.operations.arguments import check_seconds
from .place import find_place
from .process_group import AnyGroup, GroupMember, ProcessGroup, deadline_of
from .session import Session

if TYPE_CHECKING:
    import torch

JOB = "process-group"
NEVER = "there is no process group: call init_process_group() first"
DESTROYED = "the process group was destroyed: call init_process_group() again"
FORKED = (
    "this process was forked from one with a process group, which remains its parent's: call init_process_group() "
    "here, with a rank of its own"
)

_lock = threading.Lock()
_session: Session | None = None
_starting = False
_absence = NEVER


def init_process_group(
    backend: str = "auto",
    init_method: str | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    timeout: timedelta | float | None = None,
    timeout_s: float | None = None,
    join_timeout_s: float = 30.0,
    device: torch.device | str | None = None,
    job: str | None = None,
    group_name: str = "",
    token: str | None = None,
    lease_s: float = DEFAULT_LEASE_S,
    host: str | None = None,
) -> None:
    """Form the default group with all processes of the program, within ``join_timeout_s``. Rank 0 hosts the store.

    ``init_method``: ``tcp://HOST:PORT``, an address of rank 0's machine, with ``rank`` and ``world_size``; or
    ``env://`` (default), which takes from MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE what is not given. Under
    ``multiworld run`` and ``exec`` it takes the launcher's place and store, as ``WorldManager.join`` does.
    ``timeout_s`` is the deadline of operations that set none of their own (None: none); ``timeout``, a ``timedelta`` or
    seconds, is the same. ``job``, ``token``, ``lease_s`` and ``host`` are those of ``WorldManager``, and ``group_name``
    is another name of ``job``; ``backend`` and ``device`` are those of its ``join``, as are the errors.
    Failed, it leaves nothing behind and may be called again. RuntimeError if there is a default group already.
    """
    global _session, _starting
    is_launched = launched() is not None
    method = "env://" if init_method is None else init_method
    place = find_place(method, rank, world_size, os.environ, is_launched=is_launched)
    timeout_s = deadline_of(timeout, timeout_s)
    job = job or group_name or (None if is_launched else JOB)
    check_seconds(join_timeout_s, "join_timeout_s")
    with _lock:
        if _session is not None:
            raise RuntimeError("there is a process group already: call destroy_process_group() first, or rejoin()")
        if _starting:
            raise RuntimeError("init_process_group() is under way in another thread")
        _starting = True
    try:
        manager = WorldManager(job=job, token=token, lease_s=lease_s, host=host)
        session = Session(
            manager,
            place,
            backend=backend,
            device=device,
            timeout_s=timeout_s,
            join_timeout_s=join_timeout_s,
            on_forked=_forked,
        )
        try:
            session.form()
        except BaseException:
            session.close(0.0, NEVER)
            raise
        _session = session
    finally:
        _starting = False


def is_initialized() -> bool:
    """Whether there is a default group, be it broken or not."""
    return _session is not None


def find_group(group: AnyGroup) -> ProcessGroup:
    """Return the group that an operation is meant for.

    Raises RuntimeError if there is none or it is over, ValueError if this process is not in it, TypeError for anything
    else.
    """
    if group is None or group is GroupMember.WORLD:
        return _present().default
    if group is GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this process is not in that group: only its members call operations on it")
    if not isinstance(group, ProcessGroup):
        raise TypeError(f"group must be what new_group() returned, or None for all processes, got {group!r}")
    if group.over:
        raise RuntimeError(group.over)
    return group


def new_group(
    ranks: Sequence[int] | None = None,
    *,
    backend: str | None = None,
    device: torch.device | str | None = None,
    timeout: timedelta | float | None = None,
    timeout_s: float | None = None,
    join_timeout_s: float | None = None,
) -> ProcessGroup | GroupMember:
    """Make a group of some processes (None: all): a world of its own, which breaks on its own.

    All processes call it, members or not, with the same ranks and in the same order; ValueError on all if they did not.
    Those that are not members get ``GroupMember.NON_GROUP_MEMBER``. What is None is as in ``init_process_group``.
    Raises what an operation on the default group may raise, and JoinError if the members do not come together.
    """
    return _present().new_group(
        ranks, backend=backend, device=device, timeout_s=deadline_of(timeout, timeout_s), join_timeout_s=join_timeout_s
    )


def rejoin(join_timeout_s: float | None = None) -> None:
    """Form the default group again, in its next generation, with replacements for the processes that were lost.

    Survivors call this, and a replacement calls ``init_process_group`` with the lost rank. Groups that stand go on as
    they are; broken ones are over, and are made again by ``new_group``. Failed, it may be called again. Raises
    JoinError.
    """
    _present().form_again(join_timeout_s)


def destroy_process_group(group: AnyGroup = None, *, timeout_s: float = 5.0) -> None:
    """Leave a group: what was sent before is delivered, within ``timeout_s``. The default group: leave all of them.

    The others get PeerLeftError when they need this process again. ``init_process_group`` may be called again.
    """
    global _session, _absence
    if group is GroupMember.NON_GROUP_MEMBER:
        return
    found = find_group(group)
    with _lock:
        session = _present()
        everything = found is session.default
        if everything:
            _session, _absence = None, DESTROYED
    if everything:
        session.close(timeout_s, DESTROYED)
    else:
        session.destroy(found, timeout_s)


def _present() -> Session:
    session = _session
    if session is None:
        raise RuntimeError(_absence)
    return session


def _forked(session: Session) -> None:
    """In a forked child: what the parent has is not ours."""
    global _lock, _session, _starting, _absence
    _lock = threading.Lock()  # another thread of the parent may have held it
    _session, _starting, _absence = None, False, FORKED
    session.abandon(FORKED)
