"""Make one process group known to c10d by its name and ranks, and forget it again. No other group is touched.

``torch.distributed`` looks these up: functional collectives and DeviceMesh resolve a group by its name; ``src=``,
``dst=`` and ``get_rank`` translate ranks by the group; ``get_backend`` and ``destroy_process_group`` expect the rest.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import _register_process_group, _unregister_process_group

FIRST_NUMBER, END_NUMBER = 1_000_000, 2**31  # more than any default group has members; a mesh keeps them as int32

_lock = threading.Lock()
_next_number = FIRST_NUMBER
_reserved: set[str] = set()  # names of groups that are, or are about to be, known


def free_name(wanted: str) -> str:
    """Reserve a name until ``forget``: ``wanted``, or that and a number, as two managers of a process may want one."""
    with _lock:
        names = itertools.chain([wanted], (f"{wanted}#{number}" for number in itertools.count(2)))
        name = next(name for name in names if name not in _reserved)
        _reserved.add(name)
    return name


def release(name: str) -> None:
    """Give a name back that another has made c10d forget."""
    with _lock:
        _reserved.discard(name)


def free_numbers(count: int) -> int:
    """Return the first of that many numbers, which no other group of this process has had (until they run out)."""
    global _next_number
    with _lock:
        first = _next_number if _next_number + count <= END_NUMBER else FIRST_NUMBER
        _next_number = first + count
    return first


def introduce(group: Any, name: str, backend: str, device_type: str, ranks: Mapping[int, int]) -> None:
    """Make the group known, unless it is. ``ranks``: ``{global rank: rank in the group}``."""
    with _lock:
        if is_known(group):
            return
        known = c10d._world
        known.pg_map[group] = backend, None  # type: ignore[assignment] # there is no store
        known.pg_names[group] = name  # type: ignore[assignment] # GroupName, a str, is younger than torch 2.6
        known.pg_group_ranks[group] = dict(ranks)
        known.pg_backend_config[group] = f"{device_type}:{backend}"
        # Not in tags_to_pg: destroy_process_group leaves an empty list there, and nobody looks for a world by its tag.
        known.pg_to_tag[group] = f"user:{name}"
        _register_process_group(name, group)  # type: ignore[arg-type]


def is_known(group: Any) -> bool:
    return group in c10d._world.pg_map


def forget(group: Any, name: str) -> None:
    """Undo what is left of ``introduce`` after somebody else's ``destroy_process_group``. Idempotent."""
    with _lock:
        _reserved.discard(name)
        known = c10d._world
        was_known = known.pg_map.pop(group, None) is not None
        for table in (known.pg_names, known.pg_group_ranks, known.pg_backend_config, known.pg_to_tag):
            table.pop(group, None)
        known.pg_coalesce_state.pop(group, None)
        if was_known:
            _unregister_process_group(name)  # type: ignore[arg-type]


def global_ranks(rank: int, default_ranks: Sequence[int | None], elsewhere: int) -> dict[int, int]:
    """Return ``{global rank: rank in the world}`` in the order of the latter, as process ``rank`` shall see it.

    ``default_ranks``: what each member is in the default group of its process, None where there is none. c10d asks for
    one's own rank in a group by one's rank in the default group, so that one is always in the answer, and right.
    ``elsewhere``: as many numbers from there on belong to nobody else.

    - Nobody has a default group: the numbers are the world's own.
    - All have one, and no two have the same number in it, as when all are in the same: the numbers are those.
    - Otherwise no numbering suits all: say, each process has a default group of its own, in which it is 0. Then each
      one knows itself by that number, and the others by ``elsewhere`` plus their rank. A constant as ``src=0`` means
      nobody else then; ``group_src=0`` is what to write. DTensor takes meshes of the same numbers for the same, so
      those of two groups must differ.
    """
    size = len(default_ranks)
    known = [number for number in default_ranks if number is not None]
    if len(known) == len(set(known)) == size:
        return {number: member for member, number in enumerate(known)}
    own = default_ranks[rank]
    if own is None:
        return {member: member for member in range(size)}
    return {own if member == rank else elsewhere + member: member for member in range(size)}
