"""What replays a step: the record of one run, new tensors for its results, and checks that it still fits."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import CaptureError
from ..protocol.graphs import define_graph, forget_graph, key_of, run_graph
from ..session.origins import here, origin
from ..session.session import next_id
from ..session.step_name import StepName
from ..tensor.remote_tensor import RemoteTensor
from ..tensor.wrapping import make
from .building import Built
from .recording import Recorder
from .scalars import Scalars


class Replay:
    """Keeps alive what the step uses from before its block, which are ``external_ids``."""

    def __init__(
        self,
        recorder: Recorder,
        scalars: Scalars,
        built: Built,
        *,
        name: str,
        output_specs: Sequence[int],
        kept: Mapping[int, RemoteTensor],
        written: Sequence[RemoteTensor],
        written_inputs: Sequence[int],
    ) -> None:
        """``kept``: tensors by the id that they had. ``written``: those of them that each run writes."""
        self._session, self._stream, self._scalars = recorder.session, recorder.stream, scalars
        self.external_ids = built.graph.externals
        self._number, self._layout = built.graph.number, built.graph.run_layout
        self._name = StepName(name, [(each.name, each.place) for each in recorder.recorded])
        self._needed = scalars.needed_for(built.floats)
        self._floats = [each.number for each in built.floats]
        self._specs = tuple(output_specs)
        self._kept = list(kept.items())
        self._written, self._written_inputs = tuple(written), tuple(written_inputs)
        self._plans = [each.calls for each in recorder.recorded]  # a node that is made anew needs them for the graph
        definition = define_graph(built.graph)
        self._stream.queue.append((definition, "remote.capture", None))
        self._stream.definitions[key_of(self._number)] = definition
        self._is_known = True
        self._stream.queued()

    @property
    def num_operations(self) -> int:
        return len(self._name.operations)

    def run(self, inputs: Sequence[RemoteTensor], scalars: Mapping[str, float], depth: int) -> Any:
        """Replay the step, and return its results. ``depth``: of the frame that asks for it."""
        if not self.fits():
            raise _replaced()
        return _as_returned(self.results(inputs, scalars, depth + 1))

    def fits(self) -> bool:
        """Whether what it uses from before its block is still what it was."""
        return all(getattr(tensor, "_id", None) == id_ for id_, tensor in self._kept)

    def results(self, inputs: Sequence[RemoteTensor], scalars: Mapping[str, float], depth: int) -> list[RemoteTensor]:
        """As ``run``, of a step that fits; the results as a list."""
        floats = self._values_of(scalars)
        session, specs = self._session, self._specs
        results = [make(RemoteTensor, session, spec, next_id()) for spec in specs]
        ids = [each._id for each in inputs] + [each._id for each in results]
        self.send(run_graph(self._layout, self._number, ids, floats), depth + 1)
        if self._written:
            torch.autograd.graph.increment_version(self._written)
        if self._written_inputs:
            torch.autograd.graph.increment_version([inputs[place] for place in self._written_inputs])
        return results

    def send(self, record: bytes, depth: int) -> None:
        """Send a record at once: a step is long enough for a message of its own."""
        stream = self._stream
        if stream.is_closed:
            reason = f"stream {stream.number}, on which it was captured, was closed"
            raise CaptureError("a step", here(), reason, "Capture the step again")
        stream.queue.append((record, self._name, origin(sys._getframe(depth))))
        stream.flush()

    def forget(self) -> None:
        """Have the node forget the step. Any thread, also in a finalizer. Again: nothing."""
        if self._is_known and self._stream.takes_commands:
            self._is_known = False
            self._stream.definitions.pop(key_of(self._number), None)
            self._stream.queue.append((forget_graph(self._number), "a step", None))

    def __del__(self) -> None:
        if getattr(self, "_is_known", False):  # else it failed while it was made
            self.forget()

    def _values_of(self, given: Mapping[str, float]) -> list[float]:
        initial = self._scalars.initial
        if not initial and not given:
            return []
        for name, value in given.items():
            if name not in initial:
                known = ", ".join(initial) or "none"
                raise TypeError(f"the step has no scalar {name!r}; it has: {known}")
            if not isinstance(value, (int, float)):
                raise TypeError(f"the scalar {name!r} of the step has to be a number, not {type(value).__name__}")
        values = self._scalars.evaluate(self._needed, {**initial, **given})
        return [values[index] for index in self._floats]


def _as_returned(results: list[RemoteTensor]) -> Any:
    return results[0] if len(results) == 1 else tuple(results) or None


def _replaced() -> CaptureError:
    return CaptureError(
        "a step",
        here(),
        "a tensor that it uses was replaced since it was captured, as a parameter is by p.data = ... or by moving its "
        "module",
        "Capture the step again",
    )
