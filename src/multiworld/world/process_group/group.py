"""A world as a c10d process group: each of its operations is one of the world's, with the world's errors.

C++ (DDP's reducer, functional collectives) calls these methods through PyTorch's trampoline for Python subclasses of
``ProcessGroup``, which returns what they return. It has none for ``gather``, ``scatter``, ``reduce``, ``alltoall``,
``recv_anysource`` and the single-tensor forms of all_gather and reduce_scatter: those work from Python only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import InvalidTypeError, InvalidValueError, WorldClosedError
from ...wire.progress.operation import Operation
from ...wire.progress.waiting import run_in_thread
from ..operations.arguments import check_seconds
from ..operations.several import start_all, then, together
from ..state import WorldState
from ..world import GroupOfWorld, World
from . import names as group_names
from .backend import GroupBackend
from .futures import Completer
from .options import CallOptions, read_options
from .profiling import recorded
from .split import Split, agree_on_split, form_subworld
from .tensors import alike, only, only_list, overlap, pairs, parts_of, split
from .work import WorldWork

JOIN_S = 30.0
FIRST_TAG = 2**61  # of the group's point-to-point messages, so that they never meet those of the world itself


def form_process_group(world: World, timeout_s: float) -> WorldProcessGroup:
    """Agree with the other ranks on the group's global ranks, and make c10d know it. Blocks; all ranks must call it."""
    mine = torch.tensor([dist.group.WORLD.rank() if dist.is_initialized() else -1])  # type: ignore[union-attr]
    numbers = [torch.empty_like(mine) for _ in range(world.world_size)]
    at = [tensor.to(world.device) for tensor in (mine, *numbers)]
    world.wait_thread(world.start_all_gather(at[1:], at[0], timeout_s), None, timeout_s)
    found = [int(tensor) for tensor in at[1:]]
    default_ranks = [None if number < 0 else number for number in found]
    elsewhere = group_names.free_numbers(world.world_size)
    return WorldProcessGroup(world, group_names.global_ranks(world.rank, default_ranks, elsewhere))


class WorldProcessGroup(GroupOfWorld):
    """The group of one world and generation. Made by ``World.process_group``, and over with its world.

    Ranks are the world's. Operations raise, and their works too, what the world's own do. Those of the group and of the
    world are of one kind: collectives of both are matched in one order; point-to-point messages of one never meet the
    other's. Operations have no deadline unless they are given one, or ``set_timeout`` is called.
    """

    def __init__(
        self,
        world: World,
        ranks: Mapping[int, int],
        *,
        name: str | None = None,
        desc: str | None = None,
        of_split: bool = False,
    ) -> None:
        """``ranks`` is ``{global rank: rank}``. ``of_split``: nobody but this group has its world."""
        super().__init__(world.rank, world.world_size)
        self._world, self._ranks, self._of_split = world, dict(ranks), of_split
        self._name = group_names.free_name(name or f"multiworld/{world.name}/{world.generation}/{world.rank}")
        self._desc = desc or f"world {world.name!r}"
        self._completer = Completer(f"multiworld-futures-{world.name}-{world.generation}", world.later)
        self._timeout_s: float | None = None
        self._num_started = self._num_splits = 0
        self._subgroups: dict[tuple[int, ...], tuple[WorldProcessGroup, int]] = {}
        """Those of meshes, each with the number of its split; guarded by ``_lock``."""
        self._forming_subgroup = threading.Lock()  # one at a time: all ranks form them in one order
        self._is_destroyed = False  # by destroy_process_group, which then forgets the group itself
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
        return self._desc

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

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def timeout_s(self) -> float | None:
        """The deadline of operations that have none of their own; None: none."""
        return self._timeout_s

    def set_timeout(self, timeout: timedelta) -> None:
        """Give each operation from now on a deadline, unless it has its own."""
        call = read_options(timeout=timeout)
        if call.timeout_s is None:
            raise InvalidValueError(f"timeout must be a positive time, got {timeout!r}")
        self._timeout_s = call.timeout_s

    def _get_backend(self, device: torch.device) -> GroupBackend:
        own, asked = self._world.device.type, torch.device(device).type
        if asked != own:
            raise RuntimeError(f"No backend type associated with device type {asked}: {self!r} is on {own}")
        return GroupBackend(self)

    def _get_backend_name(self) -> str:
        return self.getBackendName()

    def _get_sequence_number_for_group(self) -> int:
        """Return how many operations were started here since the number was set."""
        return self._num_started

    def _set_sequence_number_for_group(self) -> None:
        with self._lock:
            self._num_started = 0

    def _has_hooks(self) -> bool:
        return False

    def abort(self) -> None:
        """Give the world up: it breaks for the peers."""
        self._world.abort()

    def shutdown(self) -> None:
        """Leave the world if it was made for this group, by ``split_group``. Another one goes on.

        ``destroy_process_group`` calls this, of one group or of all, and makes c10d forget the group afterwards.
        """
        if self._of_split:
            self._is_destroyed = True
            self._world.leave_blocking(None)

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
            if self._is_destroyed:
                group_names.release(self._name)
            else:
                group_names.forget(self, self._name)
        self._completer.stop()
        for world in self.take_worlds_of_meshes():  # nobody else has them
            if world.state is not WorldState.LEFT:  # else it ends by itself, when what it sent has arrived
                run_in_thread(world.abort, "multiworld-abort")

    # ---- collectives of one tensor for each rank; the parameters have c10d's names

    def broadcast(
        self, tensors: Any = None, opts: Any = None, timeout: Any = None, *, tensor: Any = None, root: Any = None
    ) -> WorldWork:
        own, call = only(tensors if tensor is None else tensor), self._options(opts, root=root, timeout=timeout)
        return self._work("broadcast", partial(self._world.start_broadcast, own, call.root, call.timeout_s), [own])

    def allreduce(
        self, tensors: Any = None, opts: Any = None, timeout: Any = None, *, tensor: Any = None, op: Any = None
    ) -> WorldWork:
        own, call = only(tensors if tensor is None else tensor), self._options(opts, op=op, timeout=timeout)
        return self._work("all_reduce", partial(self._world.start_all_reduce, own, call.op, call.timeout_s), [own])

    def reduce(
        self,
        tensors: Any = None,
        opts: Any = None,
        op: Any = None,
        timeout: Any = None,
        *,
        tensor: Any = None,
        root: Any = None,
    ) -> WorldWork:
        own = only(tensors if tensor is None else tensor)
        call = self._options(opts, root=root, op=op, timeout=timeout)
        start = partial(self._world.start_reduce, own, call.root, call.op, call.timeout_s)
        return self._work("reduce", start, [own])

    def allgather(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        *,
        input_tensor: Any = None,
        timeout: Any = None,
    ) -> WorldWork:
        own = only(input_tensors if input_tensor is None else input_tensor, "input_tensors")
        outputs, call = only_list(output_tensors, "output_tensors"), self._options(opts, timeout=timeout)
        start = partial(self._world.start_all_gather, outputs, own, call.timeout_s)
        return self._work("all_gather", start, outputs, reads=[own])

    def gather(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        input_tensor: Any = None,
        root: Any = None,
    ) -> WorldWork:
        own = only(input_tensors if input_tensor is None else input_tensor, "input_tensors")
        outputs = only_list(output_tensors, "output_tensors") if output_tensors else None
        call = self._options(opts, root=root, timeout=timeout)
        start = partial(self._world.start_gather, own, outputs, call.root, call.timeout_s)
        return self._work("gather", start, outputs or [], reads=[own])

    def scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        output_tensor: Any = None,
        root: Any = None,
    ) -> WorldWork:
        own = only(output_tensors if output_tensor is None else output_tensor, "output_tensors")
        inputs = only_list(input_tensors, "input_tensors") if input_tensors else None
        call = self._options(opts, root=root, timeout=timeout)
        start = partial(self._world.start_scatter, own, inputs, call.root, call.timeout_s)
        return self._work("scatter", start, [own], reads=inputs or [])

    def reduce_scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        output: Any = None,
        input: Any = None,  # noqa: A002
        op: Any = None,
    ) -> WorldWork:
        own = only(output_tensors if output is None else output, "output_tensors")
        inputs = only_list(input_tensors if input is None else input, "input_tensors")
        call = self._options(opts, op=op, timeout=timeout)
        start = partial(self._world.start_reduce_scatter, own, inputs, call.op, call.timeout_s)
        return self._work("reduce_scatter", start, [own], reads=inputs)

    def alltoall(self, output_tensors: list[Tensor], input_tensors: list[Tensor], opts: Any = None) -> WorldWork:
        outputs, inputs = only_list(output_tensors, "output_tensors"), only_list(input_tensors, "input_tensors")
        start = partial(self._world.start_all_to_all, outputs, inputs, self._options(opts).timeout_s)
        return self._work("all_to_all", start, outputs, reads=inputs)

    def barrier(self, opts: Any = None, timeout: Any = None) -> WorldWork:
        call = self._options(opts, timeout=timeout)
        return self._work("barrier", partial(self._world.start_barrier, call.timeout_s), [])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait until every rank has come here. A rank that is lost raises, whether or not all are waited for."""
        self.barrier(timeout=timeout).wait()

    # ---- collectives of one tensor that holds the parts of all ranks

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> WorldWork:  # noqa: A002
        start = partial(self._start_all_gather_single, output, input, self._options(opts).timeout_s)
        return self._work("all_gather", start, [output], reads=[input])

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> WorldWork:  # noqa: A002
        call = self._options(opts)
        start = partial(self._start_reduce_scatter_single, output, input, call.op, call.timeout_s)
        return self._work("reduce_scatter", start, [output], reads=[input])

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,
        timeout: Any = None,
    ) -> WorldWork:
        outputs = split(output, output_split_sizes, self._world.world_size, "output")
        inputs = split(input, input_split_sizes, self._world.world_size, "input")
        call = self._options(opts, timeout=timeout)
        start = partial(self._world.start_all_to_all, outputs, inputs, call.timeout_s)
        return self._work("all_to_all", start, [output], reads=[input])

    # ---- several at once

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> WorldWork:
        own, call = alike(tensors), self._options(opts)
        return self._work("all_reduce", partial(self._start_all_reduces, own, call.op, call.timeout_s), own)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> WorldWork:
        start, timeout_s = self._start_all_gather_single, self._options(opts).timeout_s
        starts = [partial(start, *pair, timeout_s) for pair in pairs(outputs, inputs)]
        return self._work("all_gather", partial(start_all, starts), outputs, reads=inputs)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> WorldWork:
        start, call = self._start_reduce_scatter_single, self._options(opts)
        starts = [partial(start, *pair, call.op, call.timeout_s) for pair in pairs(outputs, inputs)]
        return self._work("reduce_scatter", partial(start_all, starts), outputs, reads=inputs)

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], input_list: list[Tensor], opts: Any = None
    ) -> WorldWork:
        """``output_lists[rank][i]`` gets that rank's ``input_list[i]``."""
        start, timeout_s = self._world.start_all_gather, self._options(opts).timeout_s
        for row in output_lists:
            pairs(row, input_list)
        columns = [list(column) for column in zip(*output_lists, strict=True)]
        starts = [partial(start, *pair, timeout_s) for pair in pairs(columns, input_list)]
        return self._work("all_gather", partial(start_all, starts), output_lists, reads=input_list)

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing.works = []

    def _end_coalescing(self, device: torch.device) -> WorldWork:
        """Return the work of all that this thread has started since ``_start_coalescing``."""
        works: list[WorldWork] | None = getattr(self._coalescing, "works", None)
        self._coalescing.works = None
        operation = together([work.operation for work in works or ()])
        return WorldWork(self._world, self._completer, "coalesced", operation, [])

    # ---- point to point

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> WorldWork:  # noqa: N803
        own = only(tensors)
        start = partial(self._world.start_send, own, dstRank, _tag(tag), self._timeout_s)
        return self._work("send", start, [own], is_collective=False)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> WorldWork:  # noqa: N803
        own = only(tensors)
        start = partial(self._world.start_recv, own, srcRank, _tag(tag), self._timeout_s)
        return self._work("recv", start, [own], peer=srcRank, is_collective=False)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> WorldWork:
        own = only(tensors)
        start = partial(self._world.start_recv_any, own, _tag(tag), self._timeout_s)
        return self._work("recv_any", start, [own], is_collective=False)

    # ---- the names that these had before

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- subgroups

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> WorldProcessGroup | None:
        """Form a world of some of the ranks, and return its group; None on a rank that is not among them.

        All ranks of this group must call it, each with the ranks of the subgroup that it is in, or of any if it is in
        none. It blocks, for at most ``timeout`` (30 s). The subgroup breaks on its own, and outlives this one: it
        ends with ``destroy_process_group(subgroup)``, ``leave`` of its world, or the manager.
        """
        timeout_s = JOIN_S if timeout is None else timeout.total_seconds()
        check_seconds(timeout_s, "timeout")
        until = time.monotonic() + timeout_s
        split = agree_on_split(self._world, ranks, self._next_split(), 0, until)
        if self._world.rank not in split.members:
            return None
        return self._split_off(split, until, name=group_name, desc=group_desc)

    def subgroup(self, members: Sequence[int], timeout_s: float = JOIN_S) -> WorldProcessGroup:
        """Return the group of some ranks, among which this one is: this group, or one that was split off before.

        All ranks must call it, each for its own subgroup: they agree on whether to go on with the one from before.
        """
        key = tuple(members)
        if len(key) == self._world.world_size:
            return self
        until = time.monotonic() + timeout_s
        with self._forming_subgroup:
            with self._lock:
                found, kept = self._subgroups.get(key, (None, 0))
            if found is None or found.world.state is not WorldState.ACTIVE:
                kept = 0
            split = agree_on_split(self._world, members, self._next_split(), kept, until)
            if found is not None and split.is_kept:
                return found
            if found is not None:
                found.world.abort()  # over for one of its members, so for all
            made = self._split_off(split, until)
            with self._lock:
                is_over = self._closed
                if not is_over:
                    self._subgroups[key] = made, split.number
        if is_over:  # meanwhile, and nobody else would end the new one
            made.world.abort()
            raise WorldClosedError(self._world.name, self._world.generation)
        return made

    def take_worlds_of_meshes(self) -> list[World]:
        """Return the worlds of what ``subgroup`` has split off. From now on they are the caller's to end."""
        with self._lock:
            worlds = [subgroup.world for subgroup, _ in self._subgroups.values()]
            self._subgroups.clear()
        return worlds

    def new_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        pg_options: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
    ) -> WorldProcessGroup | None:
        """As ``split_group``, by the name under which PyTorch looks for this method."""
        return self.split_group(ranks, timeout, pg_options, group_name, group_desc)

    def merge_remote_group(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"{self!r} cannot be merged with another: the members of a world are fixed. Join a larger world"
        )

    def get_group_store(self) -> NoReturn:
        raise NotImplementedError(
            f"{self!r} has no store of torch.distributed: a world is formed at a store of its own"
        )

    # ---- below

    def _next_split(self) -> int:
        with self._lock:
            self._num_splits += 1
            return self._num_splits

    def _split_off(
        self, split: Split, until: float, *, name: str | None = None, desc: str | None = None
    ) -> WorldProcessGroup:
        world = form_subworld(self._world, split, until)
        numbers = list(self._ranks)
        default_ranks = {numbers[member]: place for place, member in enumerate(split.members)}
        group = WorldProcessGroup(world, default_ranks, name=name, desc=desc, of_split=True)
        world.use_process_group(group)
        return group

    def _start_all_gather_single(self, output: Tensor, source: Tensor, timeout_s: float | None) -> Operation[None]:
        outputs = parts_of(output, self._world.world_size, source.shape, "output")
        return self._world.start_all_gather(outputs, source, timeout_s)

    def _start_reduce_scatter_single(
        self, output: Tensor, source: Tensor, op: Any, timeout_s: float | None
    ) -> Operation[None]:
        inputs = parts_of(source, self._world.world_size, output.shape, "input")
        return self._world.start_reduce_scatter(output, inputs, op, timeout_s)

    def _start_all_reduces(self, tensors: list[Tensor], op: Any, timeout_s: float | None) -> Operation[None]:
        """Each tensor gets what the others had before: where two share memory, copies are reduced."""
        memory = [tensor.detach().clone() for tensor in tensors] if overlap(tensors) else tensors
        starts = [partial(self._world.start_all_reduce, each, op, timeout_s) for each in memory]
        operation = start_all(starts)
        return operation if memory is tensors else then(operation, partial(_copy_all, tensors, memory))

    def _work(
        self,
        name: str,
        start: Callable[[], Operation[Any]],
        value: Any,
        *,
        reads: Sequence[Tensor] = (),
        **options: Any,
    ) -> WorldWork:
        """Start an operation. ``value`` is what it fills, and its future's value; ``reads`` is what else it takes."""
        operation = recorded(name, reads or value, start)
        with self._lock:
            self._num_started += 1
        work = WorldWork(self._world, self._completer, name, operation, value, **options)
        works = getattr(self._coalescing, "works", None)
        if works is not None:
            works.append(work)
        return work

    def _options(self, opts: Any = None, **named: Any) -> CallOptions:
        call = read_options(opts, **named)
        return replace(call, timeout_s=self._timeout_s) if call.timeout_s is None else call


def _copy_all(tensors: list[Tensor], memory: list[Tensor]) -> None:
    with torch.inference_mode():  # they may be leaves, or made in it
        for tensor, source in zip(tensors, memory, strict=True):
            tensor.copy_(source)


def _tag(tag: int) -> int:
    if not isinstance(tag, int) or isinstance(tag, bool):
        raise InvalidTypeError(f"tag must be an int, got {tag!r}")
    if not 0 <= tag < FIRST_TAG:
        raise InvalidValueError(f"tag={tag} is out of range: tags are 0 to 2**61 - 1")
    return FIRST_TAG + tag
