"""Which channels there are, by name: ours, and those that installed packages offer as ``multiworld.channels`` entry
points. A class that no package offers goes by its place: ``"package.module:Class"``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

import torch

from .auto import AuthenticatedChannel, AutoChannel
from .base import ChannelSupport, DataChannel
from .gloo.channel import GlooChannel
from .mpi.channel import MpiChannel
from .nccl.channel import NcclChannel
from .shm import ShmChannel
from .tcp import TcpChannel

ENTRY_POINT_GROUP = "multiworld.channels"
OURS: dict[str, type[DataChannel]] = {
    channel.name: channel
    for channel in (ShmChannel, TcpChannel, AuthenticatedChannel, GlooChannel, MpiChannel, NcclChannel)
}


def channel_names() -> list[str]:
    """Return the names that ``backend=`` takes, besides ``"auto"``."""
    return [*OURS, *sorted(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP) if entry.name not in OURS)]


def find_channel(backend: str, device: torch.device) -> type[DataChannel]:
    """Return the channel for a ``backend=``: a name, or the ``"module:Class"`` of one that is not registered.

    Raises ValueError for an unknown name, for a device that it cannot serve, and for CUDA where that does not work.
    """
    if not isinstance(backend, str):
        raise TypeError(f"backend must be the name of a channel, got {backend!r}")
    name = "nccl" if backend == "auto" and device.type == "cuda" else backend
    channel = AutoChannel if name == "auto" else OURS.get(name) or _load(name)
    if channel is None:
        known = ", ".join(["auto", *channel_names()])
        raise ValueError(f"unknown backend {backend!r}: expected one of {known}")
    if device.type not in channel.device_types:
        can = ", ".join(sorted(channel.device_types))
        raise ValueError(
            f"backend {backend!r} moves tensors on {can}, not on {device.type}; choose another backend or device"
        )
    if device.type == "cuda" and not (support := channel.support()).works:
        raise ValueError(
            f"backend {backend!r} cannot move tensors on {device} here: {support.reason}. Move them through the CPU, "
            "with device=None and backend 'tcp' or 'gloo'"
        )
    return channel


def available() -> dict[str, ChannelSupport]:
    """Return for every registered channel, and the default, whether it works on this machine."""
    support = {AutoChannel.name: AutoChannel.support()}
    for name in channel_names():
        channel = OURS.get(name)
        if channel is None:
            try:
                channel = _load(name)
            except Exception as error:  # a third party's package may fail at import in any way
                support[name] = ChannelSupport(name, False, f"cannot be imported: {error}")
                continue
        assert channel is not None
        support[name] = channel.support()
    return support


def _load(name: str) -> type[DataChannel] | None:
    if ":" in name:
        return _import(name)
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            return _checked(entry.load(), f"the entry point {name!r} of {ENTRY_POINT_GROUP}")
    return None


def _import(place: str) -> type[DataChannel]:
    module, _, class_name = place.partition(":")
    try:
        found = getattr(import_module(module), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"backend {place!r} cannot be imported as module:Class: {error}") from error
    return _checked(found, f"backend {place!r}")


def _checked(loaded: object, what: str) -> type[DataChannel]:
    if not (isinstance(loaded, type) and issubclass(loaded, DataChannel)):
        raise TypeError(f"{what} is {loaded!r}, not a DataChannel class")
    return loaded
