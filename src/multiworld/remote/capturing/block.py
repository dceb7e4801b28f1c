"""A block of a program whose commands to one node are recorded, and what replays them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final

from ..errors import CaptureError
from ..protocol.specs import spec_of
from ..session.origins import here, line_of
from ..session.session import Session
from ..session.sync_points import forbid_sync
from ..tensor.remote_tensor import RemoteTensor
from .building import build, externals_of
from .optimizers import OptimizersOfBlock
from .recording import Recorded, Recorder
from .replay import Replay
from .scalars import Scalars
from .watching import Watch

_numbers = itertools.count(1)


class Block:
    """A context manager. What a replay could not do raises CaptureError inside."""

    def __init__(self, session: Session, *, is_issued: bool = True) -> None:
        """``is_issued``: whether what is recorded goes to the node, too. Else its tensors exist nowhere."""
        self.scalars = Scalars()
        self.recorder = Recorder(session, self.scalars, is_issued=is_issued)
        self.watch = Watch(session, self.recorder, self.scalars)
        self._optimizers = OptimizersOfBlock()
        self._stack = ExitStack()

    def __enter__(self) -> Block:
        if present() is not None:
            raise CaptureError(
                "a step", here(), "a step is captured inside of another one", "Capture the whole in one block"
            )
        self.recorder.session.check_usable("remote.capture")
        with ExitStack() as stack:
            self.recorder.start()
            stack.callback(self.recorder.stop)
            stack.callback(self.scalars.stop)
            _present.block = self
            stack.callback(setattr, _present, "block", None)
            stack.enter_context(forbid_sync(_waits))
            stack.enter_context(self._optimizers)
            stack.enter_context(self.watch)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def made(self) -> set[int]:
        """Return the ids of tensors that it made, and that are still in use."""
        return {id_ for each in self.recorder.recorded for id_ in each.outputs} - self.recorder.freed

    def replay(
        self,
        inputs: Sequence[int],
        outputs: Sequence[tuple[int, int]],
        *,
        given: Sequence[RemoteTensor] = (),
        name: str = "a replay",
        is_compiled: bool = False,
    ) -> Replay:
        """Return what replays it, and define it on the node; after its end. Raises CaptureError.

        ``inputs``: ids, of tensors from before it. ``outputs``: ids with the numbers of their specs. ``given``: the
        inputs themselves. What it made, what is still in use, and is no output gets new values in each replay.
        ``is_compiled``: whether the node is to compile it.
        """
        recorder, watch = self.recorder, self.watch
        self._optimizers.check(recorder.first_id)
        externals: dict[int, Recorded | None] = {**externals_of(recorder.recorded, {*inputs, *recorder.constants})}
        self._check(externals)
        made, returned = self.made, {id_ for id_, _ in outputs}
        externals.update(dict.fromkeys(returned - made - externals.keys() - set(inputs)))
        handles = {id_: seen.tensor() for id_, seen in watch.seen.items() if id_ in externals}
        _check_views(given, handles.values())
        built = build(
            next(_numbers),
            recorder.recorded,
            inputs=inputs,
            externals=list(externals),
            constants=recorder.constants,
            statics=sorted(made - returned) if recorder.is_issued else (),
            outputs=[id_ for id_, _ in outputs],
            is_compiled=is_compiled,
        )
        return Replay(
            recorder,
            self.scalars,
            built,
            name=name,
            output_specs=[spec for _, spec in outputs],
            kept={id_: tensor for id_, tensor in handles.items() if tensor is not None},
            written=[tensor for id_, tensor in handles.items() if tensor is not None and watch.is_written(id_)],
            written_inputs=[place for place, id_ in enumerate(inputs) if watch.is_written(id_)],
        )

    def _check(self, externals: dict[int, Recorded | None]) -> None:
        for id_, first in externals.items():
            assert first is not None
            if id_ >= self.recorder.first_id:
                raise CaptureError(
                    first.name,
                    line_of(first.place),
                    "it uses a tensor that was made in the block in a way that is not recorded",
                    "Make it before the block",
                )
            if id_ in self.recorder.freed:
                raise CaptureError(
                    first.name,
                    line_of(first.place),
                    "it uses a tensor from before the block that the block gave up: a replay would not find it",
                    "As for gradients: call zero_grad() at the start of the block, or before it",
                )


class _Present(threading.local):
    """``block``: of this thread."""

    block: Block | None = None


_present: Final = _Present()


def present() -> Block | None:
    """Return the block that this thread is in."""
    return _present.block


def _waits(operation: str, line: str) -> CaptureError:
    return CaptureError(
        operation,
        line,
        "it waits for a value, and a replay can't depend on one",
        "Wait outside of the captured block: name the tensor in step.returns",
    )


def _check_views(inputs: Iterable[RemoteTensor], others: Iterable[RemoteTensor | None]) -> None:
    """A view of an input that was made before the block stays a view of the input of the block."""
    given = list(inputs)
    for other in others:
        base = None if other is None else other._base
        if other is not None and base is not None and any(base is each for each in given):
            raise CaptureError(
                "a step",
                here(),
                f"it uses a view {described(other._spec)} of an input that was made before the block",
                "Make the view inside of the block: each replay makes it of its own input then",
            )


def described(number: int) -> str:
    """Return a spec in words."""
    spec = spec_of(number)
    text = f"a tensor of shape {spec.size}, {spec.dtype}, strides {spec.stride}"
    return text if spec.device == "cpu" else f"{text}, on {spec.device}"
