"""A world as a c10d process group: each of its operations is one of the world's, with the world's errors.

C++ (DDP's reducer, functional collectives) calls these methods through PyTorch's trampoline for Python subclasses of
``ProcessGroup``, which returns what they return. It has none for ``gather``, ``scatter``, ``reduce``, ``alltoall``,
``recv_anysource`` and the single-tensor forms of all_gather and reduce_scatter: those work from Python only.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import InvalidValueError
from ..wire.operation import Operation
from . import group_names
from .global_ranks import global_ranks
from .group_tensors import only, only_list, parts_of, reduce_op_of, seconds_of, split
from .group_work import Completer, WorldWork
from .several import start_all, together

if TYPE_CHECKING:
    from .world import World

__all__ = ["WorldProcessGroup", "form_process_group"]

_ProcessGroup: Any = dist.ProcessGroup  # its stubs tell of overloads that c10d itself does not use
FIRST_TAG = 2**61  # of the group's point-to-point messages, so that they never meet those of the world itself


def form_process_group(world: World, timeout_s: float) -> WorldProcessGroup:
    """Agree with the other ranks on the group's global ranks, and make c10d know it. Blocks; all ranks must call it."""
    mine = torch.tensor([dist.group.WORLD.rank() if dist.is_initialized() else -1])  # type: ignore[union-attr]
    numbers = [torch.empty_like(mine) for _ in range(world.world_size)]
    at = [tensor.to(world.device) for tensor in (mine, *numbers)]
    world.wait_thread(world.start_all_gather(at[1:], at[0], timeout_s), None, timeout_s)
    found = [int(tensor) for tensor in at[1:]]
    return WorldProcessGroup(world, [None if number < 0 else number for number in found])


class WorldProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """The group of one world and generation. Made by ``World.process_group``, and over with its world.

    Ranks are the world's. Operations raise, and their works too, what the world's own do. Those of the group and of the
    world are of one kind: collectives of both are matched in one order; point-to-point messages of one never meet the
    other's. Operations have no deadline unless they are given one, or ``set_timeout`` is called.
    """

    def __init__(self, world: World, default_ranks: Sequence[int | None]) -> None:
        super().__init__(world.rank, world.world_size)
        self._world = world
        self._name = group_names.free_name(f"multiworld/{world.name}/{world.generation}/{world.rank}")
        self._completer = Completer(f"multiworld-futures-{world.name}-{world.generation}")
        self._ranks = global_ranks(world.rank, default_ranks, group_names.free_numbers(world.world_size))
        self._timeout_s: float | None = None
        self._coalescing = threading.local()
        self._closed = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<WorldProcessGroup {self._name!r} of {self._world!r}>"

    @property
    def world(self) -> World:
        return self._world

    # ---- what c10d asks of a group

    def getBackendName(self) -> str:  # noqa: N802 - called by C++
        return f"multiworld-{self._world.backend}"

    def getGroupName(self) -> str:  # noqa: N802 - called by C++
        return self._name

    def getGroupDesc(self) -> str:  # noqa: N802 - called by C++
        return f"world {self._world.name!r}"

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self.getGroupDesc()

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(self._world.device.type)]

    @property
    def bound_device_id(self) -> torch.device | None:
        return None

    def set_timeout(self, timeout: timedelta) -> None:
        """Give each operation from now on a deadline, unless it has its own."""
        self._timeout_s = timeout.total_seconds()

    def abort(self) -> None:
        """Give the world up: it breaks for the peers."""
        self._world.abort()

    def shutdown(self) -> None:
        """Nothing: ``destroy_process_group`` of any group calls it, and the world goes on."""

    def introduce(self) -> None:
        """Make c10d know the group, unless it does or the world is over; undone by ``close``."""
        with self._lock:
            if not self._closed:
                device_type = self._world.device.type
                group_names.introduce(self, self._name, self.getBackendName(), device_type, self._ranks)

    def close(self) -> None:
        """The world is over here: its operations have failed. Any thread, idempotent, never blocks."""
        with self._lock:
            self._closed = True
            group_names.forget(self, self._name)
        self._completer.stop()

    # ---- collectives of one tensor for each rank

    def broadcast(self, tensors: Any, opts: Any = None) -> WorldWork:
        tensor = only(tensors)
        root = 0 if opts is None else opts.rootRank
        operation = self._world.start_broadcast(tensor, root, self._deadline(opts))
        return self._work("broadcast", operation, [tensor])

    def allreduce(self, tensors: Any, opts: Any = None) -> WorldWork:
        tensor = only(tensors)
        operation = self._world.start_all_reduce(tensor, reduce_op_of(opts), self._deadline(opts))
        return self._work("all_reduce", operation, [tensor])

    def reduce(self, tensors: Any, opts: Any = None) -> WorldWork:
        tensor = only(tensors)
        root = 0 if opts is None else opts.rootRank
        operation = self._world.start_reduce(tensor, root, reduce_op_of(opts), self._deadline(opts))
        return self._work("reduce", operation, [tensor])

    def allgather(self, output_lists: Any, inputs: Any, opts: Any = None) -> WorldWork:
        outputs = only_list(output_lists)
        operation = self._world.start_all_gather(outputs, only(inputs), self._deadline(opts))
        return self._work("all_gather", operation, [outputs])

    def gather(self, output_lists: Any, inputs: Any, opts: Any) -> WorldWork:
        outputs = only_list(output_lists) if output_lists else None
        operation = self._world.start_gather(only(inputs), outputs, opts.rootRank, self._deadline(opts))
        return self._work("gather", operation, [outputs or []])

    def scatter(self, outputs: Any, input_lists: Any, opts: Any) -> WorldWork:
        tensor = only(outputs)
        inputs = only_list(input_lists) if input_lists else None
        operation = self._world.start_scatter(tensor, inputs, opts.rootRank, self._deadline(opts))
        return self._work("scatter", operation, [tensor])

    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> WorldWork:
        tensor, inputs = only(outputs), only_list(input_lists)
        operation = self._world.start_reduce_scatter(tensor, inputs, reduce_op_of(opts), self._deadline(opts))
        return self._work("reduce_scatter", operation, [tensor])

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> WorldWork:
        operation = self._world.start_all_to_all(outputs, inputs, self._deadline(opts))
        return self._work("all_to_all", operation, outputs)

    def barrier(self, opts: Any = None) -> WorldWork:
        return self._work("barrier", self._world.start_barrier(self._deadline(opts)), [])

    # ---- collectives of one tensor that holds the parts of all ranks

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> WorldWork:
        operation = self._start_all_gather_single(output, source, self._deadline(opts))
        return self._work("all_gather", operation, [output])

    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any = None) -> WorldWork:
        operation = self._start_reduce_scatter_single(output, source, reduce_op_of(opts), self._deadline(opts))
        return self._work("reduce_scatter", operation, [output])

    def all_to_all_single(
        self,
        output: Tensor,
        source: Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,
    ) -> WorldWork:
        outputs = split(output, output_sizes, self._world.world_size, "output")
        inputs = split(source, input_sizes, self._world.world_size, "input")
        operation = self._world.start_all_to_all(outputs, inputs, self._deadline(opts))
        return self._work("all_to_all", operation, [output])

    # ---- several at once

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> WorldWork:
        start, op, deadline = self._world.start_all_reduce, reduce_op_of(opts), self._deadline(opts)
        return self._work("all_reduce", start_all(partial(start, tensor, op, deadline) for tensor in tensors), tensors)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> WorldWork:
        deadline = self._deadline(opts)
        pairs = zip(outputs, inputs, strict=True)
        operation = start_all(partial(self._start_all_gather_single, *pair, deadline) for pair in pairs)
        return self._work("all_gather", operation, outputs)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> WorldWork:
        op, deadline = reduce_op_of(opts), self._deadline(opts)
        pairs = zip(outputs, inputs, strict=True)
        operation = start_all(partial(self._start_reduce_scatter_single, *pair, op, deadline) for pair in pairs)
        return self._work("reduce_scatter", operation, outputs)

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> WorldWork:
        """``output_lists[rank][i]`` gets that rank's ``inputs[i]``."""
        deadline = self._deadline(opts)
        columns = [list(column) for column in zip(*output_lists, strict=True)]
        pairs = zip(columns, inputs, strict=True)
        operation = start_all(partial(self._world.start_all_gather, *pair, deadline) for pair in pairs)
        return self._work("all_gather", operation, output_lists)

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing.works = []

    def _end_coalescing(self, device: torch.device) -> WorldWork:
        """Return the work of all that this thread has started since ``_start_coalescing``."""
        works: list[WorldWork] = self._coalescing.works
        self._coalescing.works = None
        return self._work("coalesced", together([work.operation for work in works]), [])

    # ---- point to point

    def send(self, tensors: Any, dst: int, tag: int = 0) -> WorldWork:
        tensor = only(tensors)
        operation = self._world.start_send(tensor, dst, _tag(tag), self._timeout_s)
        return self._work("send", operation, [tensor], is_collective=False)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> WorldWork:
        tensor = only(tensors)
        operation = self._world.start_recv(tensor, src, _tag(tag), self._timeout_s)
        return self._work("recv", operation, [tensor], peer=src, is_collective=False)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> WorldWork:
        tensor = only(tensors)
        operation = self._world.start_recv_any(tensor, _tag(tag), self._timeout_s)
        return self._work("recv_any", operation, [tensor], is_collective=False)

    # ---- the names that these had before

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- below

    def _start_all_gather_single(self, output: Tensor, source: Tensor, timeout_s: float | None) -> Operation[None]:
        outputs = parts_of(output, self._world.world_size, source.shape, "output")
        return self._world.start_all_gather(outputs, source, timeout_s)

    def _start_reduce_scatter_single(
        self, output: Tensor, source: Tensor, op: Any, timeout_s: float | None
    ) -> Operation[None]:
        inputs = parts_of(source, self._world.world_size, output.shape, "input")
        return self._world.start_reduce_scatter(output, inputs, op, timeout_s)

    def _work(self, name: str, operation: Operation[Any], value: Any, **options: Any) -> WorldWork:
        work = WorldWork(self._world, self._completer, name, operation, value, **options)
        works = getattr(self._coalescing, "works", None)
        if works is not None:
            works.append(work)
        return work

    def _deadline(self, opts: Any) -> float | None:
        own = seconds_of(opts)
        return self._timeout_s if own is None else own


def _tag(tag: int) -> int:
    if not 0 <= tag < FIRST_TAG:
        raise InvalidValueError(f"tag={tag} is out of range: tags are 0 to 2**61 - 1")
    return FIRST_TAG + tag
