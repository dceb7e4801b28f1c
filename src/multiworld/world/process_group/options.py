"""The options of a c10d call, in each of the forms in which c10d takes them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ...channel.base import ReduceOp
from ...errors import InvalidTypeError, InvalidValueError

_OPTIONS = "Options"  # how the names of c10d's classes of options end


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """``timeout_s`` None: the group's own deadline."""

    root: int = 0
    op: Any = ReduceOp.SUM
    timeout_s: float | None = None


def read_options(
    opts: Any = None, *, root: int | None = None, op: Any = None, timeout: timedelta | None = None
) -> CallOptions:
    """Return the options of a call that was made with an object of options, or with values by their names.

    What c10d takes by position stands in ``opts``: a root, a reduce operation or a timeout.
    """
    if isinstance(opts, timedelta):
        opts, timeout = None, opts
    elif isinstance(opts, ReduceOp | ReduceOp.RedOpType):
        opts, op = None, opts
    elif isinstance(opts, int) and not isinstance(opts, bool):
        opts, root = None, opts
    elif opts is not None and not type(opts).__name__.endswith(_OPTIONS):
        raise InvalidTypeError(f"opts must be an object of options of torch.distributed, got {opts!r}")
    if getattr(opts, "rootTensor", 0) not in (0, -1):
        raise InvalidValueError(f"rootTensor={opts.rootTensor}: a rank has one tensor, which is number 0")
    return CallOptions(
        root=getattr(opts, "rootRank", 0) if root is None else root,
        op=getattr(opts, "reduceOp", ReduceOp.SUM) if op is None else op,
        timeout_s=_seconds(getattr(opts, "timeout", None) if timeout is None else timeout),
    )


def _seconds(timeout: Any) -> float | None:
    """c10d says by -1 ms that the group's own deadline holds."""
    if timeout is None:
        return None
    if not isinstance(timeout, timedelta):
        raise InvalidTypeError(f"timeout must be a datetime.timedelta, got {timeout!r}")
    return None if timeout <= timedelta(0) else timeout.total_seconds()
