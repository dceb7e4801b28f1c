"""One stream of commands on a node: executes record after record, and keeps what fails in place of its results."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from ... import native
from ...errors import ProtocolError
from ..protocol import lanes, records, specs
from ..protocol.elements import tensor_of
from ..protocol.messages import Ending, Executed, Failed, Outcome
from ..protocol.outcomes import show
from ..protocol.records import FIRST_PLAN, HEAD, Kind
from ..protocol.template import FLOAT, TENSOR, decode
from .calls import Calls
from .failing import describe_failure
from .graph import Graphs
from .peer_world import PeerFailedError
from .plan import Plan
from .replies import Replies
from .shared import Shared
from .snapshots import Snapshots
from .table import RECORDED, Arriving, Entry, Lost, first_lost, lose_written
from .unusable import DeviceUnusableError, leaves_unusable

MAX_UNREPORTED: Final = 1024
"""Records that were executed before the node says so, if nobody waits."""
_NUMBER: Final = struct.Struct("<I")
if native.for_remote is not None:
    native.for_remote.set_up_node(tensor_type=Tensor, tensor_slot=TENSOR, float_slot=FLOAT)


class Executor:
    """``execute`` is called with batch after batch, by one thread. ``is_ended``: its last record was executed."""

    def __init__(self, stream: int, shared: Shared, replies: Replies) -> None:
        self._stream, self._shared, self._replies = stream, shared, replies
        self._table = shared.table
        self._plans: dict[int, Plan] = {}
        self._position = self._reported = 0
        self._failures: list[Failed] = []
        self._has_news = False
        self._graphs = Graphs(shared, self._plans, self._arrive, self.failure, replies.tell)
        self.is_ended = False
        self._built_in: dict[int, Callable[[bytes], object]] = {
            Kind.DEFINE: self._define,
            Kind.FORGET: lambda body: self._plans.pop(records.read_forget(body), None),
            Kind.FREE: lambda body: shared.streams.free(records.read_free(body)),
            Kind.RELEASE: lambda body: shared.streams.release(*records.read_release(body)),
            Kind.RECORD: self._record_event,
            Kind.WAIT: self._wait_event,
            Kind.END: self._end,
            Kind.LOAD: self._load,
            Kind.ARRIVED: self._arrived,
            Kind.FETCH: self._fetch,
            Kind.SEED: lambda body: torch.manual_seed(records.read_seed(body)),
            Kind.KEEP_GENERATOR: self._keep_generator,
            Kind.RESTORE_GENERATOR: self._restore_generator,
            Kind.ASK: self._ask,
            Kind.SYNC: self._sync,
            **Calls(
                shared, replies, arrive=self._arrive, tell_failures=self._tell_failures, failed=self.failure
            ).handlers,
            **Snapshots(shared, replies, self).handlers,
            **self._graphs.handlers,
            **shared.peers.handlers(shared, arrive=self._arrive, failed=self.failure),
        }

    @property
    def position(self) -> int:
        """How many records were executed."""
        return self._position

    def execute(self, batch: memoryview) -> None:
        """Run a batch of records. Raises ProtocolError for what is none."""
        at, end, shared, table = 0, len(batch), self._shared, self._table
        awaited = shared.streams.awaited
        while at < end and not shared.is_dropping:
            try:
                if native.for_remote is not None:
                    at = self._execute_quickly(native.for_remote, batch, at)
                    if at >= end or shared.is_dropping:
                        break
                (number,) = _NUMBER.unpack_from(batch, at)
                if number >= FIRST_PLAN:
                    plan = self._plans[number]
                    values = plan.numbers.unpack_from(batch, at)
                    at += plan.numbers.size
                    if plan.is_plain:
                        try:
                            table[values[1]] = plan.function(*[table[id_] for id_ in values[2:]])
                        except Exception as error:
                            self._failed(plan, values, values[2:], error)
                    else:
                        self._run(plan, values)
                else:
                    number, size = HEAD.unpack_from(batch, at)
                    at += HEAD.size + size
                    if at > end:
                        raise ProtocolError(f"a record ends at {at} in a batch of {end} bytes")
                    self._built_in[number](bytes(batch[at - size : at]))
            except (KeyError, struct.error) as error:
                raise ProtocolError(f"a bad record {number} at {at} of {end} bytes: {error}") from error
            self._position += 1
            if awaited:
                shared.streams.tell_made()
        if shared.streams.releases:
            shared.streams.free_passed()
        if end > lanes.INLINE_BYTES:
            self._has_news = True
        if self._has_news or self._failures or self._position - self._reported >= MAX_UNREPORTED:
            self.report()

    def _execute_quickly(self, quickly: ModuleType, batch: memoryview, at: int) -> int:
        """Run records in C, as far as they are usual; return where the first that is not begins."""
        shared, table = self._shared, self._table
        awaited = shared.streams.awaited
        at, count, error = quickly.execute(batch, at, self._plans, table, shared, awaited)
        self._position += count
        if error is not None:
            plan = self._plans[_NUMBER.unpack_from(batch, at)[0]]
            values = plan.numbers.unpack_from(batch, at)
            at += plan.numbers.size
            first = 1 + plan.num_outputs
            self._failed(plan, values, values[first : first + plan.num_tensors], error)
            self._position += 1
        if awaited:
            shared.streams.tell_made()
        return at

    # ---- for recovery

    def go_to(self, position: int) -> None:
        """The record that is executed now has this position."""
        self._position = self._reported = position

    def define(self, definitions: bytes) -> None:
        """Execute records that define something, without counting them. Raises ProtocolError."""
        at = 0
        while at < len(definitions):
            try:
                number, size = HEAD.unpack_from(definitions, at)
                at += HEAD.size + size
                self._built_in[number](definitions[at - size : at])
            except (KeyError, struct.error) as error:
                raise ProtocolError(f"a bad definition at {at} of {len(definitions)} bytes: {error}") from error

    def wait_arrivals(self) -> None:
        """Wait for all tensors that are still to arrive."""
        self._arrive(list(self._table))

    def answer(self, question: records.Ask) -> Outcome | Failed:
        """Call the operator of a question, and keep its results."""
        table = self._table
        try:
            lost = first_lost(table[id_] for id_ in question.ids)
            if lost is not None:
                return lost.failure
            plan = Plan(decode(question.template), self._shared.allowed)
            if self._shared.sending:  # it may write them
                self._shared.wait_sends([table[id_] for id_ in question.ids])
            returned = plan.call([table[id_] for id_ in question.ids], question.floats)  # type: ignore[misc]
            shown, tensors = show(returned)
            for id_, tensor in zip(question.outputs, tensors, strict=False):
                table[id_] = tensor
            described = tuple(specs.to_json(specs.describe(tensor, str(tensor.device))) for tensor in tensors)
            return Outcome(shown=shown, specs=described)
        except Exception as error:
            return self.failure(error)

    # ---- news

    def report(self, request: int | None = None) -> None:
        """Tell the master what was executed, and what failed. ``request``: it is the answer to that."""
        failures = tuple(self._failures)
        self._reported, self._failures, self._has_news = self._position, [], False
        self._replies.tell(Executed(stream=self._stream, position=self._position, failures=failures, request=request))

    # ---- operators

    def _run(self, plan: Plan, values: tuple[Any, ...]) -> None:
        num_outputs, table = plan.num_outputs, self._table
        last = 1 + num_outputs + plan.num_tensors
        ids = values[1 + num_outputs : last]
        try:
            if plan.writes and self._shared.sending:
                self._shared.wait_sends([table.get(ids[place]) for place in plan.writes])
            returned = plan.call([table[id_] for id_ in ids], values[last:])  # type: ignore[misc]
            if plan.is_usual:
                table[values[1]] = returned
                return
            for id_, tensor in zip(values[1 : 1 + num_outputs], plan.results(returned), strict=True):
                table[id_] = tensor
        except Exception as error:
            self._failed(plan, values, ids, error)

    def _failed(self, plan: Plan, values: tuple[Any, ...], ids: Sequence[int], error: Exception) -> None:
        """An operator that got something else than tensors did not begin: its failure is that of what it got."""
        table = self._table
        lost = first_lost(table[id_] for id_ in ids if id_ in table)
        if lost is None and self._arrive(ids):
            self._run(plan, values)
            return
        if lost is None:
            lost = Lost(self.failure(error))
        for id_ in values[1 : 1 + plan.num_outputs]:
            table[id_] = lost
        if plan.writes:
            lose_written(table, [ids[place] for place in plan.writes], lost)

    def _arrive(self, ids: Iterable[int]) -> bool:
        """Wait for those of the ids that are still to arrive, or that another stream is still to make.

        One that does not come is lost. False: there was none to wait for.
        """
        waited = False
        for id_ in ids:
            if id_ not in self._table:
                self.report()  # it may take long
                waited = self._shared.streams.wait_made(id_) or waited
            entry = self._table.get(id_)
            if type(entry) is Arriving:
                came = self._entry(entry.wait)
                if self._table.get(id_) is entry:  # no other stream was first
                    self._table[id_] = came
                waited = True
        return waited

    def _entry(self, make: Callable[[], Entry]) -> Entry:
        """Return what is made, or why it was not."""
        try:
            return make()
        except Exception as error:
            return Lost(self.failure(error))

    def failure(self, error: BaseException, place: str = "", call: int | None = None) -> Failed:
        """Return the failure of the present record, and tell it with the next report.

        ``place``: where on the node it was raised, if that is in a program of the user's. ``call``: which of a graph.
        Raises DeviceUnusableError if nothing can run on a device any more; the master is told.
        """
        if isinstance(error, DeviceUnusableError):
            raise error
        kind, text, live = describe_failure(error, self._table)
        group, peer = (error.group, error.peer) if isinstance(error, PeerFailedError) else (0, 0)
        failed = Failed(
            stream=self._stream,
            position=self._position,
            kind=kind,
            text=f"{text}{place}",
            call=call,
            group=group,
            peer=peer,
            live=live,
        )
        if leaves_unusable(error):
            self._end_node(failed, error)
        self._failures.append(failed)
        return failed

    def _end_node(self, failed: Failed, error: BaseException) -> NoReturn:
        """Nothing on this device would succeed: the master learns why, and this process makes room for another."""
        self._shared.is_dropping = True
        self.report()
        first_line = failed.text.partition("\n")[0]
        self._replies.tell(Ending(failed=replace(failed, text=first_line)))
        unusable = DeviceUnusableError(first_line)
        unusable.__cause__ = error  # compiled, ``raise`` would lose it
        raise unusable

    # ---- built-in records

    def _define(self, body: bytes) -> None:
        number, template = records.read_define(body)
        self._plans[number] = Plan(decode(template), self._shared.allowed)

    def _keep_generator(self, body: bytes) -> None:
        self._table[records.read_generator(body)] = torch.get_rng_state()

    def _restore_generator(self, body: bytes) -> None:
        id_ = records.read_generator(body)
        self._arrive((id_,))
        state = self._table.get(id_)
        try:
            if not isinstance(state, Tensor):
                raise ProtocolError(f"no state of a generator: {state!r}")
            torch.set_rng_state(state)
        except Exception as error:  # the state of another release, or a lost one
            self.failure(error)

    def _load(self, body: bytes) -> None:
        id_, spec, memory = records.read_load(body)
        elements = torch.empty(0, dtype=spec.dtype)
        if memory:
            elements = torch.frombuffer(bytearray(memory), dtype=spec.dtype).clone()  # PyTorch's own memory may grow
        self._table[id_] = self._entry(lambda: tensor_of(elements, spec).to(spec.device))

    def _arrived(self, body: bytes) -> None:
        id_ = records.read_arrived(body)
        self._table[id_] = self._entry(partial(self._shared.take_arrival, id_))

    def _tell_failures(self) -> None:
        """Before an answer: it confirms all before it, and the master forgets the lines of what is confirmed."""
        if self._failures:
            self.report()

    def _fetch(self, body: bytes) -> None:
        id_, request = records.read_fetch(body)
        self._arrive((id_,))
        self._tell_failures()
        entry = self._table.get(id_)
        if isinstance(entry, Tensor):
            try:
                self._replies.send(request, entry)
                return
            except Exception as error:  # as of a tensor that has no data to send
                entry = Lost(self.failure(error))
        failed = entry.failure if isinstance(entry, Lost) else self.failure(KeyError(f"no tensor has the id {id_}"))
        self._replies.fail(request, failed)

    def _ask(self, body: bytes) -> None:
        question = records.read_ask(body)
        self._arrive(question.ids)
        self._tell_failures()
        self._replies.say(question.request, self.answer(question))

    def _sync(self, body: bytes) -> None:
        request = records.read_sync(body)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._wait_gpus()
        self._report_this(request)

    def _wait_gpus(self) -> None:
        """Wait for the kernels that this process has started. One that failed shows it only here."""
        try:
            torch.cuda.synchronize()
        except Exception as error:
            self.failure(error)

    def _record_event(self, body: bytes) -> None:
        self._table[records.read_event(body)] = RECORDED
        self._report_this()  # the master may look whether it was recorded

    def _wait_event(self, body: bytes) -> None:
        id_ = records.read_event(body)
        self._arrive((id_,))
        if id_ not in self._table:
            self.failure(KeyError(f"no event has the id {id_}"))

    def _end(self, body: bytes) -> None:
        self.is_ended = True
        self._report_this()

    def _report_this(self, request: int | None = None) -> None:
        """Tell that this record is executed, too."""
        self._position += 1
        self.report(request)
        self._position -= 1
