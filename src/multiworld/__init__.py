"""Process groups for PyTorch that fail one by one: many small worlds per process, typed errors, online rejoin."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import (
    BrokenWorldException,
    ChannelUnavailableError,
    CollectiveMismatchError,
    HandshakeError,
    InvalidTypeError,
    InvalidValueError,
    JoinError,
    JoinMismatchError,
    JoinRefusedError,
    JoinTimeoutError,
    MessageError,
    MissingTensorError,
    MultiworldError,
    OperationTimeoutError,
    PeerDiedError,
    PeerLeftError,
    PeerSilentError,
    PeerStoppedError,
    PeerUnreachableError,
    ProtocolError,
    RecordError,
    RequestCancelledError,
    StaleGenerationError,
    StoreError,
    TensorMismatchError,
    TokenError,
    UnsupportedTensorError,
    WorldBrokenError,
    WorldClosedError,
)
from .events import Event, PeerLost, PeerSuspected, WorldBroken, WorldFormed, WorldLeft

if TYPE_CHECKING:
    from torch.distributed import ReduceOp

    from . import serving, training
    from .channel.base import ChannelContext, ChannelStatistics, ChannelSupport, DataChannel
    from .compat.communicator import WorldCommunicator
    from .compat.in_torch import install_in_torch
    from .compat.manager import WatchDog, WorldManager
    from .world.operations.request import Request
    from .world.process_group.mesh import WorldMesh
    from .world.state import WorldState
    from .world.world import World, WorldStatistics

__all__ = [
    "BrokenWorldException",
    "ChannelContext",
    "ChannelStatistics",
    "ChannelSupport",
    "ChannelUnavailableError",
    "CollectiveMismatchError",
    "DataChannel",
    "Event",
    "HandshakeError",
    "InvalidTypeError",
    "InvalidValueError",
    "JoinError",
    "JoinMismatchError",
    "JoinRefusedError",
    "JoinTimeoutError",
    "MessageError",
    "MissingTensorError",
    "MultiworldError",
    "OperationTimeoutError",
    "PeerDiedError",
    "PeerLeftError",
    "PeerLost",
    "PeerSilentError",
    "PeerStoppedError",
    "PeerSuspected",
    "PeerUnreachableError",
    "ProtocolError",
    "RecordError",
    "ReduceOp",
    "Request",
    "RequestCancelledError",
    "StaleGenerationError",
    "StoreError",
    "TensorMismatchError",
    "TokenError",
    "UnsupportedTensorError",
    "WatchDog",
    "World",
    "WorldBroken",
    "WorldBrokenError",
    "WorldClosedError",
    "WorldCommunicator",
    "WorldFormed",
    "WorldLeft",
    "WorldManager",
    "WorldMesh",
    "WorldState",
    "WorldStatistics",
    "install_in_torch",
    "serving",
    "training",
]

_LAZY = {  # these import torch, which takes a second: `multiworld --help` must not
    "ChannelContext": ".channel.base",
    "ChannelStatistics": ".channel.base",
    "ChannelSupport": ".channel.base",
    "DataChannel": ".channel.base",
    "ReduceOp": "torch.distributed",
    "Request": ".world.operations.request",
    "WatchDog": ".compat.manager",
    "World": ".world.world",
    "WorldCommunicator": ".compat.communicator",
    "WorldManager": ".compat.manager",
    "WorldMesh": ".world.process_group.mesh",
    "WorldState": ".world.state",
    "WorldStatistics": ".world.world",
    "install_in_torch": ".compat.in_torch",
}

importlib.import_module(".native", __name__)  # decides whether modules are loaded compiled, before any of them is


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata  # takes as long to import as all that is imported above

        return metadata.version("multiworld")
    if name in ("serving", "training"):
        return importlib.import_module(f".{name}", __name__)
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
