"""A group as the backend of its device: what ``ProcessGroup._get_backend`` returns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ..world import GroupOfWorld

NO_TIMEOUT = timedelta(days=365)  # PyTorch knows no backend without a deadline


@dataclass(frozen=True)
class BackendOptions:
    """What a backend was made with. The names are PyTorch's."""

    backend: str
    _timeout: timedelta


class GroupBackend:
    """It has the operations of its group, by the same names.

    ``isinstance`` takes it for Gloo's, although it is not: PyTorch's ``_set_pg_timeout`` asks in this way, and sets the
    deadline of Gloo's and NCCL's backends only.
    """

    supports_coalescing = True
    supports_splitting = True
    supports_shrinking = False
    supports_tensor_alloc = False
    supports_time_estimate = False

    def __init__(self, group: GroupOfWorld) -> None:
        self._group = group

    def __repr__(self) -> str:
        return f"<GroupBackend of {self._group!r}>"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return getattr(dist, "ProcessGroupGloo", GroupBackend)

    @property
    def options(self) -> BackendOptions:
        timeout_s = self._group.timeout_s
        timeout = NO_TIMEOUT if timeout_s is None else timedelta(seconds=timeout_s)
        return BackendOptions(self._group.getBackendName(), timeout)

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._group.set_timeout(timeout)
