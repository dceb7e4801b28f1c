"""The dispatch that PyTorch calls: in C where that was built, with the one in Python for what is not usual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ... import native
from ..session import origins
from ..session.command_stream import BATCH
from ..session.session import ids_to_come
from . import wrapping
from .dispatch import dispatch
from .planned import BY_VALUE, PLANS


def fastest_dispatch() -> Callable[..., Any]:
    """Return what ``__torch_dispatch__`` is to be. See ``docs/decisions/050-native-remote.md``."""
    if native.for_remote is None:
        return dispatch
    native.for_remote.set_up_master(
        slow=dispatch,
        plans=PLANS,
        by_value=BY_VALUE,
        make=wrapping.make_wrapper,
        forbid_writes=wrapping.forbid_writes,
        label=wrapping.LABEL,
        dispatch_keys=wrapping.KEYS,
        tensor_type=Tensor,
        generator_type=torch.Generator,
        is_users=origins.is_users,
        look_up=origins.look_up,
        ids_to_come=ids_to_come,
        batch_size=BATCH,
    )
    fast: Callable[..., Any] = native.for_remote.dispatch
    return fast


def fastest_giving_up() -> Callable[..., None]:
    """Return what ``__del__`` is to be."""
    return _give_up if native.for_remote is None else native.for_remote.give_up


def _give_up(tensor: Any) -> None:
    """Called as a remote tensor goes: its id is used no more."""
    try:
        tensor._session.free(tensor._id)
    except AttributeError:  # it was never given an id
        return
