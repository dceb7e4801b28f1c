"""Make one process group known to c10d by its name and ranks, and forget it again. No other group is touched.

``torch.distributed`` looks these up: functional collectives and DeviceMesh resolve a group by its name; ``src=``,
``dst=`` and ``get_rank`` translate ranks by the group; ``get_backend`` and ``destroy_process_group`` expect the rest.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from typing import Any

import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import _register_process_group, _unregister_process_group

__all__ = ["forget", "free_name", "free_numbers", "introduce", "is_known", "release"]

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
