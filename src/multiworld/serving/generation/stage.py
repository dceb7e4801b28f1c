"""A stage of a pipeline that goes on with each sequence from where it was: takes steps in batches, and keeps states."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...channel.base import Payload
from ..errors import BadRequestError, SequenceTooLongError, StateLostError
from .cache import Fate, Plan, Round, SequenceTable, Step
from .message import is_last, pack, unpack
from .state import KeyValues


class Advance(NamedTuple):
    """One sequence's part in a batch: ``rows`` ``[n, *any]`` for its tokens from ``position`` on.

    ``state``: of all its tokens before; what the new ones add is to be put there. A fresh one in a stage without state.
    """

    rows: Tensor
    position: int
    state: KeyValues


class GenerationStage(nn.Module):
    """Derive from it and define ``advance``. As the work of a stage it takes what a ``Generator`` sends.

    Whatever waits goes together, at any lengths and positions, up to the ``Batch`` of the stage (*continuous
    batching*). A replica that does not have the state of a step answers StateLostError, and the Generator sends the
    sequence again. New weights (``load_state_dict``) empty the cache.
    """

    def __init__(
        self, *, capacity_tokens: int | None = None, max_length: int | None = None, idle_s: float = 600.0
    ) -> None:
        """``capacity_tokens``: for how many tokens states are kept, of all sequences together; None: for none.

        ``max_length``: longer sequences are refused with SequenceTooLongError, which ends a generation that is under
        way. ``idle_s``: the state of a sequence that did not go on for so long is freed.
        """
        super().__init__()
        self.table = None if capacity_tokens is None else SequenceTable(capacity_tokens, idle_s=idle_s)
        self.max_length = max_length
        self._states: dict[bytes, KeyValues] = {}

    @abstractmethod
    def advance(self, batch: list[Advance]) -> list[Tensor]:
        """Return for each part what the next stage gets as its ``rows``; the last stage: logits ``[vocabulary]``.

        Each part is of another sequence. A sequence's rows come in pieces of any size, so nothing may depend on how.
        """
        raise NotImplementedError

    def check(self, rows: Tensor) -> None:
        """Raise BadRequestError for rows that ``advance`` cannot take; it concerns this request alone."""

    def forward(self, payload: Payload) -> Payload:
        """Take one step by itself."""
        (result,) = self.many([payload])
        if isinstance(result, Exception):
            raise result
        return result

    def many(self, payloads: list[Payload]) -> list[Payload | Exception]:
        """Take steps together: a result or an error for each. Raises what ``advance`` raises; states stay right."""
        results: list[Payload | Exception] = [BadRequestError("", "not a step")] * len(payloads)
        indices: list[int] = []
        steps: list[Step] = []
        rows: list[Tensor] = []
        for index, payload in enumerate(payloads):
            try:
                step, part = self._checked(payload)
            except BadRequestError as error:
                results[index] = error
                continue
            if is_last(payload):
                self._forget(step.sequence)
                results[index] = payload
                continue
            indices.append(index)
            steps.append(step)
            rows.append(part)
        with torch.inference_mode():
            taken = self._take(steps, rows)
        for index, result in zip(indices, taken, strict=True):
            results[index] = result
        return results

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As that of a module. The states were made by other weights: each sequence comes again."""
        if self.table is not None:
            self.table.clear()
        self._states.clear()
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    # ---- inside

    def _checked(self, payload: Payload) -> tuple[Step, Tensor]:
        step, rows = unpack(payload)
        if not is_last(payload):
            end = step.position + step.length
            if self.max_length is not None and end > self.max_length:
                raise SequenceTooLongError("", f"the sequence has {end} tokens; {self.max_length} are served")
            self.check(rows)
        return step, rows

    def _take(self, steps: list[Step], rows: list[Tensor]) -> list[Payload | Exception]:
        plan = self._plan(steps)
        results: dict[int, Payload | Exception] = {
            index: self._refusal(steps[index], fate) for index, fate in plan.refused.items()
        }
        untaken = list(plan.rounds)
        try:
            while untaken:
                self._free(untaken[0])
                indices = untaken[0].steps
                for index, output in zip(indices, self._advance(steps, rows, indices), strict=True):
                    results[index] = pack(steps[index], output)
                del untaken[0]
        except BaseException:  # the plan has counted what has not been taken
            for left in untaken:
                self._free(left)
                self._undo([steps[index] for index in left.steps])
            raise
        return [results[index] for index in range(len(steps))]

    def _plan(self, steps: list[Step]) -> Plan:
        if self.table is not None:
            return self.table.plan(steps, now=time.monotonic())
        return Plan((Round(tuple(range(len(steps))), ()),), {})

    def _advance(self, steps: Sequence[Step], rows: Sequence[Tensor], indices: Sequence[int]) -> list[Tensor]:
        if not indices:
            return []
        return self.advance([Advance(rows[i], steps[i].position, self._state_of(steps[i])) for i in indices])

    def _state_of(self, step: Step) -> KeyValues:
        if self.table is None:
            return KeyValues()
        return self._states.setdefault(step.sequence, KeyValues())

    def _undo(self, steps: list[Step]) -> None:
        if self.table is not None:
            for step in steps:
                self.table.undo(step)

    def _free(self, taken: Round) -> None:
        for sequence in taken.dropped:
            self._states.pop(sequence, None)

    def _forget(self, sequence: bytes) -> None:
        if self.table is not None:
            self.table.forget(sequence)
        self._states.pop(sequence, None)

    def _refusal(self, step: Step, fate: Fate) -> Exception:
        if fate is Fate.LOST:
            return StateLostError(type(self).__name__, step.sequence.hex())
        assert self.table is not None
        return SequenceTooLongError(
            "",
            f"the sequence has {step.position + step.length} tokens, and this stage has room for the states of "
            f"{self.table.capacity} in all",
        )
