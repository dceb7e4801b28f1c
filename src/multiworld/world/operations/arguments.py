"""Check what a caller hands to an operation, and lay it out as channels want it: contiguous, on the world's device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...channel.base import Payload
from ...channel.collectives.validate import check_reduce_op
from ...channel.payload.tensors import CODES
from ...errors import InvalidTypeError, InvalidValueError, UnsupportedTensorError

MAX_TAG = 2**62
Finish = Callable[[], None] | None


def check_seconds(seconds: float, name: str, of_what: str = "of seconds") -> None:
    """Raise InvalidTypeError or InvalidValueError for what is no positive number."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise InvalidTypeError(f"{name} must be a number {of_what}, got {seconds!r}")
    if not seconds > 0:
        raise InvalidValueError(f"{name} must be a positive number {of_what}, got {seconds!r}")


def check_dense(tensor: Tensor, name: str) -> None:
    """Raise UnsupportedTensorError for a tensor that is not one piece of memory with strides."""
    if tensor.is_nested:
        raise UnsupportedTensorError(f"{name} is a nested tensor; send its .unbind(), or its .to_padded_tensor(0)")
    if tensor.is_quantized:
        raise UnsupportedTensorError(
            f"{name} is quantized ({tensor.dtype}); send its .int_repr(), or its .dequantize()"
        )
    if tensor.layout != torch.strided:
        raise UnsupportedTensorError(
            f"{name} is a {tensor.layout} tensor; only dense (strided) tensors can be sent: use .to_dense()"
        )


class Arguments:
    """The checks of one world. All raise InvalidValueError or a TypeError at once; nothing has been sent then."""

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        self._rank, self._world_size, self._device = rank, world_size, device
        self._on_cpu = device.type == "cpu"

    def check_rank(self, rank: int, name: str) -> None:
        if not isinstance(rank, int) or isinstance(rank, bool):
            raise InvalidTypeError(f"{name} must be a rank (int), got {rank!r}")
        if not 0 <= rank < self._world_size:
            raise InvalidValueError(f"{name}={rank} is not a rank of this world: ranks are 0 to {self._world_size - 1}")

    def check_peer(self, rank: int, name: str) -> None:
        self.check_rank(rank, name)
        if rank == self._rank:
            raise InvalidValueError(f"{name}={rank} is this process itself; send to and receive from other ranks")

    def check_message(self, rank: int, name: str, tag: int) -> None:
        """Check the peer and the tag of a message."""
        is_usual = type(rank) is int and type(tag) is int and 0 <= rank < self._world_size and rank != self._rank
        if not is_usual or not 0 <= tag < MAX_TAG:
            self.check_peer(rank, name)
            self.check_tag(tag)

    def check_tag(self, tag: int) -> None:
        if not isinstance(tag, int) or isinstance(tag, bool):
            raise InvalidTypeError(f"tag must be an int, got {tag!r}")
        if not 0 <= tag < MAX_TAG:
            raise InvalidValueError(f"tag={tag} is out of range: tags are 0 to 2**62 - 1")

    def check_reduce(self, op: Any, tensor: Tensor) -> None:
        self._check_tensor(tensor, "tensor")
        check_reduce_op(op, tensor.dtype)

    def outgoing(self, tensor: Tensor, name: str) -> Tensor:
        """Return the tensor as contiguous memory: itself, or a copy."""
        if self._is_plain(tensor):
            return tensor
        self._check_tensor(tensor, name)
        return _plain(tensor).contiguous()

    def incoming(self, tensor: Tensor, name: str, *, keep: bool = False) -> tuple[Tensor, Finish]:
        """Return memory to receive into, and what copies it into the caller's layout if that is not contiguous.

        ``keep``: the present contents matter (all_reduce).
        """
        if self._is_plain(tensor):
            return tensor, None
        self._check_tensor(tensor, name)
        own = tensor.detach()
        if own.is_contiguous() and not own.is_conj() and not own.is_neg():
            return own, None
        _check_apart(own, name)
        memory = _plain(own).contiguous() if keep else torch.empty(own.shape, dtype=own.dtype, device=own.device)
        return memory, partial(_copy_back, own, memory)

    def payload(self, payload: Payload) -> Payload:
        """Return a payload of contiguous tensors."""
        if isinstance(payload, Tensor):
            return self.outgoing(payload, "payload")
        if isinstance(payload, dict):
            for key in payload:
                if not isinstance(key, str):
                    raise InvalidTypeError(f"payload: the keys of a dict must be str, got {key!r}")
            return {key: self.outgoing(tensor, f"payload[{key!r}]") for key, tensor in payload.items()}
        if isinstance(payload, (list, tuple)):
            return [self.outgoing(tensor, f"payload[{index}]") for index, tensor in enumerate(payload)]
        raise InvalidTypeError(
            f"payload must be a tensor, a list of tensors or a dict of tensors, got {type(payload).__name__}"
        )

    def outgoing_list(self, tensors: list[Tensor], name: str, *, like: Tensor | None) -> list[Tensor]:
        self._check_list(tensors, name, like)
        return [self.outgoing(tensor, f"{name}[{index}]") for index, tensor in enumerate(tensors)]

    def incoming_list(self, tensors: list[Tensor], name: str, *, like: Tensor | None) -> tuple[list[Tensor], Finish]:
        self._check_list(tensors, name, like)
        pairs = [self.incoming(tensor, f"{name}[{index}]") for index, tensor in enumerate(tensors)]
        finishes = [finish for _, finish in pairs if finish is not None]
        if not finishes:
            return [memory for memory, _ in pairs], None

        def finish_all() -> None:
            for finish in finishes:
                finish()

        return [memory for memory, _ in pairs], finish_all

    def incoming_at(
        self, tensors: list[Tensor] | None, name: str, *, root: int, like: Tensor
    ) -> tuple[list[Tensor] | None, Finish]:
        """As ``incoming_list`` on the root; nothing elsewhere."""
        if not self._at_root(tensors, name, root) or tensors is None:
            return None, None
        return self.incoming_list(tensors, name, like=like)

    def outgoing_at(self, tensors: list[Tensor] | None, name: str, *, root: int, like: Tensor) -> list[Tensor] | None:
        """As ``outgoing_list`` on the root; nothing elsewhere."""
        if not self._at_root(tensors, name, root) or tensors is None:
            return None
        return self.outgoing_list(tensors, name, like=like)

    def _at_root(self, tensors: list[Tensor] | None, name: str, root: int) -> bool:
        if self._rank == root and tensors is None:
            raise InvalidValueError(f"{name} is missing: rank {root} must give a list of {self._world_size} tensors")
        if self._rank != root and tensors:
            raise InvalidValueError(f"{name} must be None on rank {self._rank}: only rank {root} gives it")
        return self._rank == root

    def _check_list(self, tensors: list[Tensor], name: str, like: Tensor | None) -> None:
        if not isinstance(tensors, (list, tuple)):
            raise InvalidTypeError(f"{name} must be a list of tensors, got {type(tensors).__name__}")
        if len(tensors) != self._world_size:
            raise InvalidValueError(
                f"{name} holds {len(tensors)} tensors, but the world has {self._world_size} ranks: one for each"
            )
        for index, tensor in enumerate(tensors):
            self._check_tensor(tensor, f"{name}[{index}]")
            if like is not None and (tensor.dtype, tensor.shape) != (like.dtype, like.shape):
                raise InvalidValueError(
                    f"{name}[{index}] is {tensor.dtype}{list(tensor.shape)}, but must be "
                    f"{like.dtype}{list(like.shape)} like the tensor"
                )

    def _is_plain(self, tensor: Tensor) -> bool:
        """The quick look at the usual tensor: True means that ``_check_tensor`` would pass and nothing need be laid
        out.
        """
        return (
            type(tensor) is Tensor
            and tensor.is_cpu
            and self._on_cpu
            and not tensor.requires_grad
            and tensor.layout is torch.strided
            and tensor.is_contiguous()
            and tensor.dtype in CODES
            and not tensor.is_conj()
            and not tensor.is_neg()
            and (tensor.data_ptr() != 0 or not tensor.numel())
        )

    def _check_tensor(self, tensor: Tensor, name: str) -> None:
        if not isinstance(tensor, Tensor):
            raise InvalidTypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        check_dense(tensor, name)
        if tensor.dtype not in CODES:
            raise UnsupportedTensorError(f"{name} has dtype {tensor.dtype}, which cannot be sent")
        device = tensor.device
        if device.type != self._device.type or (self._device.index is not None and device.index != self._device.index):
            raise InvalidValueError(
                f"{name} is on {device}, but this world moves tensors on {self._device}: use "
                f".to({str(self._device)!r}), "
                "or join with device= of the tensors"
            )
        if tensor.numel() and not tensor.data_ptr():
            raise InvalidTypeError(_without_memory(tensor, name))


def _without_memory(tensor: Tensor, name: str) -> str:
    if type(tensor) is Tensor:
        return f"{name} has {tensor.numel()} elements, but its memory was freed (its storage was resized)"
    return (
        f"{name} is a {type(tensor).__name__}, which has no memory of its own: give the tensor that it stands for "
        "(of a DTensor .to_local(), of the result of a functional collective .wait())"
    )


def _check_apart(tensor: Tensor, name: str) -> None:
    """Raise InvalidValueError for a layout in which elements share memory.

    Nothing can be received into them all.
    """
    inner = 0  # how far the dimensions that were looked at reach
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= inner and _has_equal_offsets(tensor):
            raise InvalidValueError(
                f"elements of {name} share memory (shape {list(tensor.shape)}, strides {list(tensor.stride())}: it was "
                "expanded, perhaps): nothing can be received into them all; give a tensor of its own, as .clone() is"
            )
        inner += (size - 1) * stride


def _has_equal_offsets(tensor: Tensor) -> bool:
    offsets = torch.zeros((), dtype=torch.int64)
    for stride, size in zip(tensor.stride(), tensor.shape, strict=True):
        if stride == 0 and size > 1:
            return True
        offsets = offsets[..., None] + torch.arange(size) * stride
    ordered = offsets.flatten().sort().values
    return bool((ordered[1:] == ordered[:-1]).any())


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg()


def _copy_back(into: Tensor, memory: Tensor) -> None:
    """Returns when it is done; on a stream of its own, as the present one may hold anything."""
    with torch.inference_mode():  # it may have been made in it, and be asked for outside
        if not into.is_cuda:
            into.copy_(memory)
            return
        stream = torch.cuda.Stream(into.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            into.copy_(memory)
        stream.synchronize()
