"""``remote.capture``: a block of a program that runs as usual is recorded, and runs again as one message."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, NoReturn

from torch import Tensor

from ..errors import CaptureError
from ..protocol.specs import spec_of
from ..session.origins import here, line_of
from ..session.session import Session
from ..session.sync_points import forbid_sync
from ..tensor.moving import send
from ..tensor.remote_tensor import RemoteTensor
from .building import build, externals_of
from .optimizers import OptimizersOfBlock
from .recording import Recorder
from .replay import Replay
from .scalars import Scalars, StepScalar
from .watching import Watch

_numbers = itertools.count(1)
_capturing: Final = threading.local()


class Step:
    """A captured step. Inside of the block: ``returns`` and ``scalar``. Behind it a call replays the step.

    A replay does on the node what the block did, with other inputs. It draws new random numbers. What the block wrote
    in place is written again. A tensor that the block made, that is still in use at its end and that ``returns`` does
    not name, as ``p.grad``, gets its new value in each replay. Python code of the block does not run again.
    """

    def __init__(self, session: Session, inputs: Sequence[RemoteTensor]) -> None:
        self._session = session
        self._inputs = tuple(inputs)
        self._specs = tuple(each._spec for each in inputs)
        self._returned: tuple[RemoteTensor, ...] = ()
        self._scalars = Scalars()
        self._replay: Replay | None = None
        self._why_not = "its block has not ended"
        self._block = ExitStack()

    # ---- inside of the block

    def __enter__(self) -> Step:
        if getattr(_capturing, "step", None) is not None:
            self._refuse("a step is captured inside of another one", "Capture the whole in one block")
        if self._replay is not None or self._why_not == "its block failed":
            self._refuse("the step was captured already", "Write with remote.capture(...) as step: again")
        self._session.check_usable("remote.capture")
        self._recorder = Recorder(self._session, self._scalars)
        self._watch = Watch(self._session, self._recorder, self._scalars)
        self._optimizers = OptimizersOfBlock()
        with ExitStack() as block:
            self._recorder.start()
            block.callback(self._recorder.stop)
            block.callback(self._scalars.stop)
            _capturing.step = self
            block.callback(setattr, _capturing, "step", None)
            block.enter_context(forbid_sync(_waits))
            block.enter_context(self._optimizers)
            block.enter_context(self._watch)
            self._block = block.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._block.close()
        self._why_not = "its block failed"
        try:
            if kind is None:
                self._replay = self._build()
        finally:
            del self._recorder, self._watch, self._optimizers
            self._inputs = self._returned = ()

    def returns(self, *tensors: Tensor) -> None:
        """Name the results of a replay: ``step(...)`` returns new tensors for them, one alone or a tuple."""
        self._check_inside("returns")
        named = tuple(each for each in tensors if isinstance(each, RemoteTensor) and each._session is self._session)
        if len(named) < len(tensors):
            raise TypeError(f"step.returns takes tensors of node {self._session.number} only")
        self._returned = named

    def scalar(self, name: str, value: float) -> StepScalar:
        """Return a number that each replay can give anew: ``step(x, lr=0.05)``. Without, it has this value.

        What the block computes of it by arithmetic is computed anew, too. What depends on its value, as a comparison,
        raises CaptureError.
        """
        self._check_inside("scalar")
        if not name.isidentifier():
            raise ValueError(f"a scalar needs the name of a keyword argument, not {name!r}")
        return self._scalars.named(name, float(value))

    def _check_inside(self, what: str) -> None:
        if getattr(_capturing, "step", None) is not self:
            raise RuntimeError(f"step.{what} belongs into the block of its with remote.capture(...) as step:")

    # ---- behind it

    def __call__(self, *inputs: Tensor, **scalars: float) -> Any:
        """Replay the step on other inputs of the same shapes; a local tensor is sent first. Nothing waits.

        Returns new tensors for those that ``returns`` named, without autograd. Raises CaptureError for a step that
        can't be replayed any more, ValueError and TypeError for other inputs.
        """
        replay = self._replay
        if replay is None:
            self._refuse(self._why_not, "Capture the step in a block that ends well")
        return replay.run(self._ids_of(inputs), scalars, 2)

    def close(self) -> None:
        """Have the node forget the step. Again: nothing."""
        replay, self._replay, self._why_not = self._replay, None, "it was closed"
        if replay is not None:
            replay.forget()

    def __del__(self) -> None:
        replay = getattr(self, "_replay", None)
        if replay is not None:
            replay.forget()

    def __repr__(self) -> str:
        state = self._why_not if self._replay is None else f"{self._replay.num_operations} operations"
        return f"<Step node={self._session.number} {state}>"

    def _ids_of(self, inputs: Sequence[Tensor]) -> list[RemoteTensor]:
        if len(inputs) != len(self._specs):
            raise TypeError(f"the step was captured with {len(self._specs)} inputs, and {len(inputs)} are given")
        session, found = self._session, []
        for place, (given, spec) in enumerate(zip(inputs, self._specs, strict=True)):
            if type(given) is not RemoteTensor:
                given = self._sent(place, given)
            if given._session is not session:
                self._refuse_session(place, given._session)
            if given._spec != spec:
                raise ValueError(
                    f"input {place} of the step is {_described(given._spec)}, and it was captured with "
                    f"{_described(spec)}: capture a step for each shape"
                )
            found.append(given)
        return found

    def _sent(self, place: int, given: object) -> RemoteTensor:
        if not isinstance(given, Tensor):
            raise TypeError(f"input {place} of the step has to be a tensor, not {_shown(given)}")
        return send(RemoteTensor, self._session, given)  # type: ignore[no-any-return]

    def _refuse_session(self, place: int, there: Session) -> NoReturn:
        here_ = self._session
        if there.number != here_.number:
            raise ValueError(
                f"input {place} of the step is on node {there.number}, and the step was captured on node {here_.number}"
            )
        self._refuse(
            f"it was captured in generation {here_.generation} of node {here_.number}, and input {place} lives in "
            f"generation {there.generation}",
            "The node was replaced: capture the step again",
        )

    def _refuse(self, reason: str, advice: str) -> NoReturn:
        raise CaptureError("a step", here(), reason, advice)

    # ---- from one to the other

    def _build(self) -> Replay:
        """Return what replays the recorded block, and tell the node. Raises CaptureError."""
        recorder, watch = self._recorder, self._watch
        self._optimizers.check(recorder.first_id)
        inputs = [each._id for each in self._inputs]
        outputs = [each._id for each in self._returned]
        externals = externals_of(recorder.recorded, {*inputs, *recorder.constants})
        for id_, first in externals.items():
            if id_ >= recorder.first_id:
                raise CaptureError(
                    first.name,
                    line_of(first.place),
                    "it uses a tensor that was made in the block in a way that is not recorded",
                    "Make it before the block",
                )
            if id_ in recorder.freed:
                raise CaptureError(
                    first.name,
                    line_of(first.place),
                    "it uses a tensor from before the block that the block gave up: a replay would not find it",
                    "As for gradients: call zero_grad() at the start of the block, or before it",
                )
        made = {id_ for each in recorder.recorded for id_ in each.outputs} - recorder.freed
        for id_ in outputs:
            if id_ not in made and id_ not in inputs:
                externals.setdefault(id_, recorder.recorded[0])
        handles = {id_: seen.tensor() for id_, seen in watch.seen.items() if id_ in externals}
        _check_views(self._inputs, handles.values())
        number = next(_numbers)
        built = build(
            number,
            recorder.recorded,
            inputs=inputs,
            externals=list(externals),
            constants=recorder.constants,
            statics=sorted(made - set(outputs)),
            outputs=outputs,
        )
        return Replay(
            recorder,
            self._scalars,
            built,
            output_specs=[each._spec for each in self._returned],
            kept={id_: tensor for id_, tensor in handles.items() if tensor is not None},
            written=[tensor for id_, tensor in handles.items() if tensor is not None and watch.is_written(id_)],
            written_inputs=[place for place, id_ in enumerate(inputs) if watch.is_written(id_)],
        )


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
        if base is not None and any(base is each for each in given):
            raise CaptureError(
                "a step",
                here(),
                f"it uses a view {_described(other._spec)} of an input that was made before the block",  # type: ignore[union-attr]
                "Make the view inside of the block: each replay makes it of its own input then",
            )


def _described(number: int) -> str:
    spec = spec_of(number)
    text = f"a tensor of shape {spec.size}, {spec.dtype}, strides {spec.stride}"
    return text if spec.device == "cpu" else f"{text}, on {spec.device}"


def _shown(value: object) -> str:
    return f"a local tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
