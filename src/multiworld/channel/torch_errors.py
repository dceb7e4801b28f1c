"""Make our errors kinds of those that ``torch.distributed`` raises, so that one ``except`` catches both."""

from __future__ import annotations

from torch import distributed as dist

from .. import errors

_KINDS: tuple[tuple[type[BaseException], type[BaseException]], ...] = (
    (errors.MultiworldError, dist.DistError),
    (errors.WorldBrokenError, dist.DistBackendError),
    (errors.WorldClosedError, dist.DistBackendError),
    (errors.OperationTimeoutError, dist.DistBackendError),
    (errors.RequestCancelledError, dist.DistBackendError),
    (errors.TensorMismatchError, dist.DistBackendError),
    (errors.CollectiveMismatchError, dist.DistBackendError),
    (errors.JoinError, dist.DistBackendError),
    (errors.PeerUnreachableError, dist.DistNetworkError),
    (errors.ProtocolError, dist.DistNetworkError),
    (errors.JoinTimeoutError, dist.DistStoreError),
    (errors.StoreError, dist.DistStoreError),
)


def derive_from_torch() -> None:
    """Add PyTorch's classes to the bases of ours. Idempotent.

    ``except`` looks at nothing but bases. The errors' own module cannot name these: importing PyTorch takes a second,
    and much of what raises errors works without it.
    """
    for ours, theirs in _KINDS:
        if not issubclass(ours, theirs):
            kept = tuple(base for base in ours.__bases__ if base is not errors.RuntimeBase)
            ours.__bases__ = (*kept, theirs)
