"""Snapshots on a node: all tensors as they are at one record, sent to the master, and made again from there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

import torch
from torch import Tensor

from ...errors import MultiworldError, ProtocolError
from ..protocol import lanes, records
from ..protocol.messages import TO_MASTER, Failed, Outcome
from ..protocol.recovering import (
    LostEntry,
    Manifest,
    RecoveryKind,
    StoredMemory,
    View,
    chunks,
    read_repeat,
    read_restore,
    read_snapshot,
)
from ..protocol.specs import describe
from .held_memory import MIN_BYTES, HeldMemory
from .replies import Replies
from .shared import Shared
from .table import Entry, Lost, Table, memory_id

logger = logging.getLogger(__name__)

GIVEN_UP: Final = torch.empty(0, dtype=torch.uint8)
"""Comes in place of a part of a memory, when there is no snapshot after all."""


class ReplayError(MultiworldError):
    """What was executed again came out in another way (``reason``)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Stream(Protocol):
    """The stream of commands that the records of recovery stand in."""

    @property
    def position(self) -> int: ...

    def go_to(self, position: int) -> None:
        """The record that is executed now has this position."""

    def report(self) -> None:
        """Tell the master what was executed, and what failed."""

    def define(self, definitions: bytes) -> None:
        """Execute records that define something, without counting them."""

    def wait_arrivals(self) -> None:
        """Wait for all tensors that are still to arrive."""

    def answer(self, question: records.Ask) -> Outcome | Failed:
        """Call the operator of a question, and keep its results."""

    def failure(self, error: BaseException) -> Failed: ...


class Snapshots:
    """``handlers``: by the number of the record; each gets the body of one, on the thread of the stream."""

    def __init__(self, shared: Shared, replies: Replies, stream: Stream) -> None:
        self._shared, self._table, self._replies, self._stream = shared, shared.table, replies, stream
        self.handlers: dict[int, Callable[[bytes], object]] = {
            RecoveryKind.SNAPSHOT: self._take,
            RecoveryKind.RESTORE: self._restore,
            RecoveryKind.REPEAT: self._repeat,
            RecoveryKind.SKIP: lambda body: None,
            RecoveryKind.REPORT: lambda body: self._stream.report(),
        }

    def _take(self, body: bytes) -> None:
        request = read_snapshot(body)
        self._stream.wait_arrivals()
        self._stream.report()  # the master forgets what is before a snapshot, and must know what failed there
        try:
            taken = _Taken(self._table, self._stream.position)
            held = [self._hold(memory) for memory in taken.memories]
            encoded = taken.manifest().encode()
        except Exception as error:  # no memory for the copies: there is no snapshot, and all else goes on
            self._replies.fail(request, self._stream.failure(error))
            return
        self._replies.answer(request, encoded)
        threading.Thread(target=self._send, args=(held, request), name="multiworld-snapshot", daemon=True).start()

    def _hold(self, memory: Tensor) -> HeldMemory:
        """Keep a memory as it is now. Raises what a copy raises."""
        held = HeldMemory(memory)
        if held.num_bytes < MIN_BYTES:
            held.copy()
            if held.error is not None:
                raise held.error
        else:
            self._shared.note_sending(memory, held.copied, held.copy)
        return held

    def _send(self, held: list[HeldMemory], request: int) -> None:
        """On a thread of its own, while operations go on: each memory is copied in its turn, or before a write."""
        try:
            sent = 0
            for chunk in chunks([each.num_bytes for each in held]):
                for each in held[sent : chunk[0].memory]:
                    each.drop()
                sent = chunk[0].memory
                self._send_parts([held[part.memory].take(part.begin, part.end) for part in chunk], request)
        except MultiworldError:
            return  # the master is lost, or this process ends
        except Exception as error:  # no memory for a copy
            logger.warning("a snapshot was given up: %s", error)
            with suppress(MultiworldError):
                self._send_parts([GIVEN_UP], request)
        finally:
            for each in held:
                each.drop()

    def _send_parts(self, parts: list[Tensor], request: int) -> None:
        sending = self._shared.bulk.start_send_tensors(parts, lanes.MASTER, lanes.FIRST_ELEMENTS + request, None)
        self._shared.bulk.wait_thread(sending, lanes.MASTER, None)

    def _restore(self, body: bytes) -> None:
        request, definitions, manifest = read_restore(body)
        self._stream.go_to(manifest.position)
        self._stream.define(definitions)
        memories = [self._on_device(memory, stored.device) for memory, stored in self._received(request, manifest)]
        for view in manifest.views:
            self._table[view.id] = self._viewed(memories[view.memory], view)
        for id_, failure in manifest.lost:
            self._table[id_] = Lost(failure)
        for device, state in manifest.generators:
            self._set_generator(device, state)

    def _received(self, request: int, manifest: Manifest) -> list[tuple[Tensor, StoredMemory]]:
        memories = [torch.empty(stored.num_bytes, dtype=torch.uint8) for stored in manifest.memories]
        for chunk in chunks([len(memory) for memory in memories]):
            receive = self._shared.bulk.start_recv_tensors(lanes.MASTER, lanes.FIRST_ELEMENTS + request, None)
            self._shared.bulk.wait_for(receive, lanes.MASTER, None)
            for part, values in zip(chunk, receive.result(), strict=True):
                memories[part.memory][part.begin : part.end] = values
        return list(zip(memories, manifest.memories, strict=True))

    def _on_device(self, memory: Tensor, device: str) -> Tensor | Lost:
        try:
            return memory.to(device)
        except Exception as error:  # the node before this one had a device that this one does not have
            return Lost(self._stream.failure(error))

    def _viewed(self, memory: Tensor | Lost, view: View) -> Entry:
        if isinstance(memory, Lost):
            return memory
        spec = view.spec
        try:
            tensor = torch.empty(0, dtype=spec.dtype, device=memory.device)
            tensor.set_(memory.untyped_storage(), spec.offset, spec.size, spec.stride)
        except (RuntimeError, TypeError) as error:
            raise ProtocolError(f"a snapshot with a view that its memory can't have: {error}") from None
        if spec.conj:
            torch._C._set_conj(tensor, True)
        if spec.neg:
            torch._C._set_neg(tensor, True)
        return tensor

    def _set_generator(self, device: str, state: bytes) -> None:
        try:
            told = torch.frombuffer(bytearray(state), dtype=torch.uint8)
            if device == "cpu":  # it comes first
                # A GPU that was seeded, and not used yet, is not in the snapshot: it has the seed of the CPU.
                torch.manual_seed(torch.Generator().set_state(told).initial_seed())
                torch.set_rng_state(told)
            else:
                torch.cuda.set_rng_state(told, device)
        except Exception as error:  # as of a device that is not there: what was drawn there is lost as well
            self._stream.failure(error)

    def _repeat(self, body: bytes) -> None:
        asked, expected = read_repeat(body)
        question = records.read_ask(asked)
        self._stream.wait_arrivals()
        said = self._stream.answer(question)
        if not expected or TO_MASTER.encode(said) == expected or _have_both_failed(said, expected):
            return
        different = ReplayError("the operator was called again after its node was lost, and returned something else")
        lost = Lost(self._stream.failure(different))
        for id_ in question.outputs:
            if id_ in self._table:
                self._table[id_] = lost


def _have_both_failed(said: Outcome | Failed, expected: bytes) -> bool:
    """Whether both are failures: the texts of such may hold addresses."""
    return isinstance(said, Failed) and isinstance(TO_MASTER.decode(expected), Failed)


class _Taken:
    """What a table holds: each memory once, and all tensors as views of these. ``memories``: as ``[num_bytes]``."""

    def __init__(self, table: Table, position: int) -> None:
        self.memories: list[Tensor] = []
        self._position = position
        self._places: dict[int, int] = {}
        self._views: list[View] = []
        self._lost: list[LostEntry] = []
        for id_, entry in table.items():
            if isinstance(entry, Lost):
                self._lost.append(LostEntry(id_, entry.failure))
            elif isinstance(entry, Tensor):
                self._add(id_, entry)

    def manifest(self) -> Manifest:
        return Manifest(
            position=self._position,
            memories=tuple(StoredMemory(len(memory), str(memory.device)) for memory in self.memories),
            views=tuple(self._views),
            lost=tuple(self._lost),
            generators=_generators(),
        )

    def _add(self, id_: int, tensor: Tensor) -> None:
        reason = _why_not_kept(tensor)
        if reason:
            failed = Failed(stream=0, position=self._position, kind="NotRecoverable", text=reason)
            self._lost.append(LostEntry(id_, failed))
            return
        key = memory_id(tensor)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self.memories)
            self.memories.append(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()))
        self._views.append(View(id_, place, describe(tensor, str(tensor.device))))


def _why_not_kept(tensor: Tensor) -> str:
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout} is not in snapshots"
    if tensor.is_quantized:
        return f"a tensor of {tensor.dtype} is not in snapshots"
    return ""


def _generators() -> tuple[tuple[str, bytes], ...]:
    states = [("cpu", torch.get_rng_state())]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += [(f"cuda:{index}", state) for index, state in enumerate(torch.cuda.get_rng_state_all())]
    return tuple((device, state.numpy().tobytes()) for device, state in states)
