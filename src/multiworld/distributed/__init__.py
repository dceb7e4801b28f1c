"""Process-group mode: one plain world per program, with the functions of the original ``torch.distributed``.

``init_process_group`` forms the world and keeps it here, as the one thing in this package that is global. Nothing of
``torch.distributed`` is used or changed, and importing this has no side effect. See ``docs/process-group-mode.md``.
"""

from ..channel.base import ReduceOp
from ..world.operations.request import Request
from .collectives import (
    all_gather,
    all_gather_into_tensor,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
)
from .default import (
    destroy_process_group,
    init_process_group,
    is_initialized,
    new_group,
    rejoin,
)
from .messages import (
    P2POp,
    batch_isend_irecv,
    irecv,
    irecv_tensors,
    isend,
    isend_tensors,
    recv,
    recv_tensors,
    send,
    send_tensors,
)
from .original_names import (
    allGather,
    allReduce,
    allToAll,
    destroyProcessGroup,
    getNumProcesses,
    getRank,
    initProcessGroup,
    isInitialized,
    newGroup,
    reduceScatter,
)
from .process_group import GroupMember, ProcessGroup
from .ranks import (
    get_backend,
    get_global_rank,
    get_group_rank,
    get_num_processes,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    is_available,
)
from .subgroups import new_subgroups, new_subgroups_by_enumeration

group = GroupMember
"""``group.WORLD`` stands for all processes, as in ``torch.distributed``."""

__all__ = [
    "GroupMember",
    "P2POp",
    "ProcessGroup",
    "ReduceOp",
    "Request",
    "allGather",
    "allReduce",
    "allToAll",
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "destroyProcessGroup",
    "destroy_process_group",
    "gather",
    "getNumProcesses",
    "getRank",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_num_processes",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "initProcessGroup",
    "init_process_group",
    "irecv",
    "irecv_tensors",
    "isInitialized",
    "is_available",
    "is_initialized",
    "isend",
    "isend_tensors",
    "newGroup",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "recv",
    "recv_tensors",
    "reduce",
    "reduceScatter",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "rejoin",
    "scatter",
    "send",
    "send_tensors",
]
