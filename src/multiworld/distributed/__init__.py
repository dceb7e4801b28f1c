"""Process-group mode: one plain world per program, with the functions of the original ``torch.distributed``.

``init_process_group`` forms the world and keeps it here, as the one thing in this package that is global. Nothing of
``torch.distributed`` is used or changed, and importing this has no side effect. See ``docs/process-group-mode.md``.
"""

from ..channel.base import ReduceOp
from ..world.request import Request
from .collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from .default import (
    destroy_process_group,
    init_process_group,
    is_initialized,
    new_group,
    rejoin,
)
from .group import GroupMember, ProcessGroup
from .messages import irecv, irecv_tensors, isend, isend_tensors, recv, recv_tensors, send, send_tensors
from .ranks import (
    get_backend,
    get_global_rank,
    get_group_rank,
    get_num_processes,
    get_process_group_ranks,
    get_rank,
    get_world_size,
)

__all__ = [
    "GroupMember",
    "ProcessGroup",
    "ReduceOp",
    "Request",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "destroy_process_group",
    "gather",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_num_processes",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "irecv",
    "irecv_tensors",
    "is_initialized",
    "isend",
    "isend_tensors",
    "new_group",
    "recv",
    "recv_tensors",
    "reduce",
    "reduce_scatter",
    "rejoin",
    "scatter",
    "send",
    "send_tensors",
]
