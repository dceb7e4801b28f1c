"""The record that calls a function which this node declared."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ...errors import MultiworldError
from ..protocol import specs
from ..protocol.calls import CALL, MAX_TENSORS, Call, Like, arguments, read_call
from ..protocol.messages import Failed, Outcome
from ..protocol.outcomes import show
from .plan import conformed
from .replies import Replies
from .shared import Shared
from .table import Lost, first_lost, lose_written


class UnlikeError(MultiworldError):
    """A function returned something else than ``like=`` says (``reason``)."""

    def __init__(self, function: str, reason: str) -> None:
        super().__init__(function, reason)
        self.function, self.reason = function, reason

    def __str__(self) -> str:
        return f"{self.function} returned something else than like= says: {self.reason}"


class Calls:
    """Handles records of calls for one executor, on its thread.

    ``arrive`` waits for tensors that are on their way, ``tell_failures`` precedes each answer, ``failed`` notes a
    failure with the place of it.
    """

    def __init__(
        self,
        shared: Shared,
        replies: Replies,
        *,
        arrive: Callable[[Iterable[int]], object],
        tell_failures: Callable[[], None],
        failed: Callable[[BaseException, str], Failed],
    ) -> None:
        self._shared, self._replies = shared, replies
        self._arrive, self._tell_failures, self._failed = arrive, tell_failures, failed

    @property
    def handlers(self) -> Mapping[int, Callable[[bytes], object]]:
        """What an executor calls with the body of each kind of record."""
        return {CALL: self._call}

    def _call(self, body: bytes) -> None:
        asked = read_call(body)
        self._arrive(asked.ids)
        self._tell_failures()
        table = self._shared.table
        tensors = [table[id_] for id_ in asked.ids]
        lost = first_lost(tensors)
        if lost is None:
            versions = [each._version for each in tensors if isinstance(each, Tensor)]
            try:
                outcome = self._run(asked, tensors)
            except (Exception, SystemExit) as error:
                lost = Lost(self._failed(error, _place_of(error)))
                self._lose_changed(asked, tensors, versions, lost)
            else:
                if asked.like is None:
                    self._replies.say(asked.request, outcome)
                return
        if asked.like is None:
            self._replies.fail(asked.request, lost.failure)
            return
        for place in range(len(asked.like.specs)):
            table[asked.first + place] = lost

    def _run(self, asked: Call, tensors: Sequence[Any]) -> Outcome:
        """Call the function, and keep the tensors that it returns."""
        name = asked.template.operator
        function = self._shared.functions.find(name)
        self._shared.wait_sends(tensors)  # it may write them
        args, keywords = arguments(asked.template, tensors)
        shown, returned = show(function(*args, **keywords))
        if len(returned) > MAX_TENSORS:
            raise ValueError(f"{name} returned {len(returned)} tensors: at most {MAX_TENSORS} can be")
        if any(each.is_meta for each in returned):
            raise ValueError(f"{name} returned a tensor without data")
        found = [each.detach() for each in returned]
        if asked.like is not None:
            found = _as_foreseen(name, shown, found, asked.like)
        for place, tensor in enumerate(found):
            self._shared.table[asked.first + place] = tensor
        described = tuple(specs.to_json(specs.describe(each, str(each.device))) for each in found)
        return Outcome(shown=shown, specs=described)

    def _lose_changed(self, asked: Call, tensors: Sequence[Any], versions: Sequence[int], lost: Lost) -> None:
        """What is now in the tensors that it wrote is neither the old value nor the new one."""
        pairs = zip(asked.ids, tensors, versions, strict=True)
        lose_written(self._shared.table, [id_ for id_, each, before in pairs if each._version != before], lost)


def _as_foreseen(name: str, shown: Any, found: Sequence[Tensor], like: Like) -> list[Tensor]:
    """Return the tensors with the strides that the master foresaw. Raises UnlikeError."""
    if shown != like.shown:
        raise UnlikeError(name, f"{shown} in place of {like.shown}")
    for place, (tensor, spec) in enumerate(zip(found, like.specs, strict=True)):
        there = specs.describe(tensor, str(tensor.device))
        if (there.size, there.dtype, there.device) != (spec.size, spec.dtype, spec.device):
            raise UnlikeError(
                name,
                f"tensor {place} has shape {there.size}, {there.dtype}, on {there.device}; "
                f"expected {spec.size}, {spec.dtype}, on {spec.device}",
            )
    return [conformed(tensor, spec) for tensor, spec in zip(found, like.specs, strict=True)]


def _place_of(error: BaseException) -> str:
    """Return where on the node a function failed; empty if it was not begun."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(_LIBRARIES)]
    return f" [at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}, on the node]" if frames else ""


_LIBRARIES: Final = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep,
    "<frozen",
)
