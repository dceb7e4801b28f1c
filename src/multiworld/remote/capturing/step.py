"""``remote.capture``: a block of a program that runs as usual is recorded, and runs again as one message."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, NoReturn

from torch import Tensor

from ..errors import CaptureError
from ..session.origins import here
from ..session.session import Session
from ..tensor.moving import send
from ..tensor.remote_tensor import RemoteTensor
from .block import Block, described, present
from .replay import Replay
from .scalars import StepScalar


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
        self._replay: Replay | None = None
        self._why_not = "its block has not ended"
        self._block: Block | None = None
        self._was_entered = False

    # ---- inside of the block

    def __enter__(self) -> Step:
        if self._was_entered:
            self._refuse("the step was captured already", "Write with remote.capture(...) as step: again")
        self._was_entered = True
        self._block = Block(self._session)
        self._block.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block = self._block
        assert block is not None
        block.__exit__(kind, error, traceback)
        self._why_not = "its block failed"
        if kind is None:
            inputs, returned = self._inputs, self._returned
            outputs = [(each._id, each._spec) for each in returned]
            self._replay = block.replay([each._id for each in inputs], outputs, given=inputs)
        self._inputs = self._returned = ()
        self._block = None

    def returns(self, *tensors: Tensor) -> None:
        """Name the results of a replay: ``step(...)`` returns new tensors for them, one alone or a tuple."""
        self._block_now("returns")
        named = tuple(each for each in tensors if isinstance(each, RemoteTensor) and each._session is self._session)
        if len(named) < len(tensors):
            raise TypeError(f"step.returns takes tensors of node {self._session.number} only")
        self._returned = named

    def scalar(self, name: str, value: float) -> StepScalar:
        """Return a number that each replay can give anew: ``step(x, lr=0.05)``. Without, it has this value.

        What the block computes of it by arithmetic is computed anew, too. What depends on its value, as a comparison,
        raises CaptureError.
        """
        block = self._block_now("scalar")
        if not name.isidentifier():
            raise ValueError(f"a scalar needs the name of a keyword argument, not {name!r}")
        return block.scalars.named(name, float(value))

    def _block_now(self, what: str) -> Block:
        block = self._block
        if block is None or present() is not block:
            raise RuntimeError(f"step.{what} belongs into the block of its with remote.capture(...) as step:")
        return block

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
                    f"input {place} of the step is {described(given._spec)}, and it was captured with "
                    f"{described(spec)}: capture a step for each shape"
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


def _shown(value: object) -> str:
    return f"a local tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
