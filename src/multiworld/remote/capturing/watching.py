"""Watch the operators of a block that is captured: which tensors from before it uses, and what the master computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NoReturn

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import TensorWeakRef

from ..errors import CaptureError
from ..protocol.template import Keywords
from ..session.origins import here
from ..session.session import Session
from ..tensor.foreseeing import name_of
from ..tensor.remote_tensor import RemoteTensor
from .recording import Recorder
from .scalars import Scalars

aten = torch.ops.aten
_FRESH: Final = (aten.lift_fresh.default, aten.lift_fresh_copy.default)
"""Called with what ``torch.tensor`` made just now."""
_PASS_IT: Final = "Make it an input: remote.capture(x, t), or send it before the block: nodes[1].send(t)"
_OF_OPTIMIZERS: Final = (
    "Compute it outside of the block, or on the node. An optimizer that counts its steps here counts them on the node "
    "with fused=True or capturable=True, and with parameters on the device 'remote:N'"
)


class Seen:
    """A tensor from before the block. ``version``: as it was first seen, which grows when it is written."""

    def __init__(self, tensor: RemoteTensor) -> None:
        self.reference = TensorWeakRef(tensor)
        self.version = tensor._version
        self.requires_grad = tensor.requires_grad

    def tensor(self) -> RemoteTensor | None:
        return self.reference()  # type: ignore[no-any-return]


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``seen``: tensors of the node from before the block, by id. Raises CaptureError for what can't be replayed.

    A tensor of the master is a constant if it was made in the block, of constants and without random numbers: a replay
    would make the same. All others vary, or may vary.
    """

    def __init__(self, session: Session, recorder: Recorder, scalars: Scalars) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: dict[int, Seen] = {}
        self._session, self._recorder, self._scalars = session, recorder, scalars
        self._constants: set[StorageWeakRef] = set()  # the storage of an object that is gone is never found again

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Keywords | None = None
    ) -> Any:
        kwargs = kwargs or {}
        values = (*args, *kwargs.values())
        remote: list[RemoteTensor] = []
        local: list[Tensor] = []
        for each in _tensors_in(values):
            if isinstance(each, RemoteTensor):
                remote.append(each)
            else:
                local.append(each)
        for tensor in remote:
            self._look_at(func, tensor)
        if func in _FRESH:
            self._check_fresh(func, local)
        elif local:
            self._check_local(func, local, args, kwargs, is_written_here=not remote)
        if not remote:
            self._check_floats(func, values)
        self._recorder.may_send = bool(local)
        try:
            returned = func(*args, **kwargs)
        finally:
            self._recorder.may_send = False
        for each in _tensors_in((returned,)):
            if isinstance(each, RemoteTensor):
                self._look_at(func, each)
            elif each.device.type != "meta" and torch.Tag.nondeterministic_seeded not in func.tags:
                self._constants.add(_storage_of(each))
        return returned

    def is_written(self, id_: int) -> bool:
        """Whether a tensor from before the block was written in it."""
        seen = self.seen.get(id_)
        tensor = None if seen is None else seen.tensor()
        return seen is not None and tensor is not None and tensor._version != seen.version

    def _look_at(self, func: Any, tensor: RemoteTensor) -> None:
        if tensor._session is not self._session:
            _refuse(
                func,
                f"it is on node {tensor._session.number}, and the step belongs to node {self._session.number}",
                "Capture a step for each node, and copy from node to node between them",
            )
        if tensor._id < self._recorder.first_id and tensor._id not in self.seen:
            self.seen[tensor._id] = Seen(tensor)

    def _check_fresh(self, func: Any, made: Iterable[Tensor]) -> None:
        for tensor in made:
            is_suspect = self._scalars.initial and type(tensor) is Tensor and tensor.is_floating_point()
            if is_suspect and bool(tensor.isnan().any()):
                _refuse(func, "it makes a tensor of a scalar of the step, which would be fixed", "Use it as a number")

    def _check_local(
        self, func: Any, local: Iterable[Tensor], args: Sequence[Any], kwargs: Keywords, *, is_written_here: bool
    ) -> None:
        for tensor in local:
            if tensor.device.type == "meta" or _storage_of(tensor) in self._constants or _is_gradient_of_zeros(tensor):
                continue
            if is_written_here:
                reason = "it computes with a tensor of the master, and a replay would not"
                _refuse(func, reason, _OF_OPTIMIZERS)
            _refuse(
                func,
                f"a tensor of the master (shape {tuple(tensor.shape)}, {tensor.dtype}) travels with it, and each "
                "replay would get the values that it has now",
                _PASS_IT,
            )

    def _check_floats(self, func: Any, values: Iterable[Any]) -> None:
        """A scalar of the step in a tensor of the master would be fixed."""
        for value in values:
            if isinstance(value, (list, tuple)):
                self._check_floats(func, value)
            elif type(value) is float and value != value:
                try:
                    is_scalar = self._scalars.place_of(value) is not None
                except ValueError:
                    is_scalar = True
                if is_scalar:
                    _refuse(
                        func, "it makes a tensor of a scalar of the step, which would be fixed", "Use it as a number"
                    )


def _refuse(func: Any, reason: str, advice: str) -> NoReturn:
    raise CaptureError(name_of(func), here(), reason, advice)


def _is_gradient_of_zeros(tensor: Tensor) -> bool:
    """Whether it is one that C++ makes within a backward, in place of one that is undefined: nobody sees it do so."""
    return torch._C._current_graph_task_id() != -1 and not bool(tensor.any())


def _storage_of(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)
