"""Operators that the master answers in its own way: those that ask for a value, and copies between places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from ..protocol.specs import spec_of
from ..protocol.template import Keywords
from .homing import bring_home
from .moving import Place, copied, send, values_of
from .planned import run_first
from .storage import refuse_storage

Special = Callable[[type[Any], Any, Sequence[Any], Keywords], Any]
aten = torch.ops.aten


def _item(cls: type[Any], func: Any, args: Sequence[Any], kwargs: Keywords) -> Any:
    return values_of(args[0], "item").item()


def _is_same_size(cls: type[Any], func: Any, args: Sequence[Any], kwargs: Keywords) -> bool:
    return bool(args[0].shape == args[1].shape)


def _copy(cls: type[Any], func: Any, args: Sequence[Any], kwargs: Keywords) -> Any:
    """``copy_`` from place to place; towards the master it waits."""
    target, source = args[0], args[1]
    if type(target) is not cls:
        bring_home(cls, source)
        return target.copy_(values_of(source, "copy_"))
    session = target._session
    if type(source) is not cls:
        bring_home(cls, source)
        source = send(cls, session, source)
    elif source._session is not session:
        bring_home(cls, source)
        source = copied(cls, source, Place(session), "copy_")
    elif source._base is target and _cover_the_same(target, source):
        return target  # torch.matmul(out=) copies a result into itself: it can't see that both share their memory
    key = (id(func), target._spec, source._spec, (2, bool(args[2])) if len(args) > 2 else None)
    return run_first(cls, func, [target, source, *args[2:]], kwargs, session, key, [target._id, source._id], [])


def _cover_the_same(one: Any, other: Any) -> bool:
    """Whether two views of one memory are the same elements in the same order."""
    first, second = spec_of(one._spec), spec_of(other._spec)
    return (
        first.num_elements == second.num_elements
        and (first.offset, first.dtype) == (second.offset, second.dtype)
        and one.is_contiguous()
        and other.is_contiguous()
    )


SPECIAL: Final[dict[Any, Special]] = {
    aten._local_scalar_dense.default: _item,
    aten.is_same_size.default: _is_same_size,
    aten.copy_.default: _copy,
    aten.set_.source_Storage: refuse_storage,
    aten.set_.source_Storage_storage_offset: refuse_storage,
}
