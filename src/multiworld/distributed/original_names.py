"""The spelling of the original ``torch.distributed`` design (THD), for programs that were written in it."""

from __future__ import annotations

from .collectives import all_gather, all_reduce, all_to_all, reduce_scatter
from .default import destroy_process_group, init_process_group, is_initialized, new_group
from .ranks import get_num_processes, get_rank

allGather = all_gather  # noqa: N816
allReduce = all_reduce  # noqa: N816
allToAll = all_to_all  # noqa: N816
destroyProcessGroup = destroy_process_group  # noqa: N816
getNumProcesses = get_num_processes  # noqa: N816
getRank = get_rank  # noqa: N816
initProcessGroup = init_process_group  # noqa: N816
isInitialized = is_initialized  # noqa: N816
newGroup = new_group  # noqa: N816
reduceScatter = reduce_scatter  # noqa: N816
