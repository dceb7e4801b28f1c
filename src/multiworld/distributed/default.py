"""The default group of this process, the one thing in this package that is global; groups made from it; who is who."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from datetime import timedelta

import torch

from ..errors import InvalidValueError
from ..world.launcher.launched import launched
from ..world.liveness import DEFAULT_LEASE_S
from ..world.manager import WorldManager
from ..world.operations.arguments import check_seconds
from .place import find_place
from .process_group import AnyGroup, GroupMember, ProcessGroup, deadline_of
from .session import Session

Groups = tuple[ProcessGroup | GroupMember, list[ProcessGroup | GroupMember]]
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


def is_available() -> bool:
    """Whether there is process-group mode here: always."""
    return True


def get_rank(group: AnyGroup = None) -> int:
    """Return this process's rank in the group; -1 if it is not a member."""
    return -1 if group is GroupMember.NON_GROUP_MEMBER else find_group(group).world.rank


def get_world_size(group: AnyGroup = None) -> int:
    """Return how many processes are in the group; -1 if this one is not."""
    return -1 if group is GroupMember.NON_GROUP_MEMBER else find_group(group).world.world_size


def get_num_processes(group: AnyGroup = None) -> int:
    """As ``get_world_size``: its first name."""
    return get_world_size(group)


def get_backend(group: AnyGroup = None) -> str:
    """Return the name of the group's channel."""
    return find_group(group).world.backend


def get_process_group_ranks(group: AnyGroup = None) -> list[int]:
    """Return the members' ranks in the whole program, in the order of their ranks in the group."""
    return list(find_group(group).ranks)


def get_group_rank(group: AnyGroup, global_rank: int) -> int:
    """Return a member's rank in the group; ValueError if it is not one."""
    return find_group(group).member(global_rank, "global_rank")


def get_global_rank(group: AnyGroup, group_rank: int) -> int:
    """Return the rank in the whole program of the group's member with that rank there; ValueError if there is none."""
    ranks = find_group(group).ranks
    if not isinstance(group_rank, int) or isinstance(group_rank, bool):
        raise TypeError(f"group_rank must be a rank (int), got {group_rank!r}")
    if not 0 <= group_rank < len(ranks):
        raise ValueError(f"group_rank={group_rank}: the group's own ranks are 0 to {len(ranks) - 1}")
    return ranks[group_rank]


def new_subgroups(
    group_size: int,
    group: AnyGroup = None,
    *,
    timeout: timedelta | float | None = None,
    timeout_s: float | None = None,
    backend: str | None = None,
) -> Groups:
    """Cut the members of ``group`` (None: all processes) into groups of ``group_size``, in the order of the ranks.

    Return the group of this process, and all of them (``NON_GROUP_MEMBER`` where it is in none). All processes of the
    program call it, as they do ``new_group``. Raises ValueError for a size that does not divide the number of members.
    """
    ranks = get_process_group_ranks(group)
    if type(group_size) is not int or group_size < 1 or len(ranks) % group_size:
        raise InvalidValueError(f"group_size={group_size!r} does not divide {len(ranks)} processes into equal groups")
    cut = [ranks[first : first + group_size] for first in range(0, len(ranks), group_size)]
    return new_subgroups_by_enumeration(cut, timeout=timeout, timeout_s=timeout_s, backend=backend)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    *,
    timeout: timedelta | float | None = None,
    timeout_s: float | None = None,
    backend: str | None = None,
) -> Groups:
    """As ``new_subgroups``, of the ranks that are named. Raises ValueError for a rank in two of them, or for none."""
    named = [rank for ranks in ranks_per_subgroup_list for rank in ranks]
    twice = sorted({rank for rank in named if named.count(rank) > 1})
    if not named or twice:
        problem = f"the ranks {twice} are in several groups" if twice else "there are no ranks"
        raise InvalidValueError(f"ranks_per_subgroup_list={ranks_per_subgroup_list!r}: {problem}")
    groups: list[ProcessGroup | GroupMember] = []
    own: ProcessGroup | GroupMember = GroupMember.NON_GROUP_MEMBER
    for ranks in ranks_per_subgroup_list:
        groups.append(new_group(ranks, timeout=timeout, timeout_s=timeout_s, backend=backend))
        if get_rank() in ranks:
            own = groups[-1]
    return own, groups


# The spelling of the original ``torch.distributed`` design (THD), for programs that were written in it.
destroyProcessGroup = destroy_process_group  # noqa: N816
getNumProcesses = get_num_processes  # noqa: N816
getRank = get_rank  # noqa: N816
initProcessGroup = init_process_group  # noqa: N816
isInitialized = is_initialized  # noqa: N816
newGroup = new_group  # noqa: N816


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
