"""What a host process and the process that started it say to each other, over a pair of sockets."""

from __future__ import annotations

from dataclasses import dataclass

from ....wire.messages import MessageSet, message
from ..messages import Stop
from ..options import HostOptions

OwnerSays = HostOptions | Stop
OWNER_SAYS: MessageSet[OwnerSays] = MessageSet("orders of an owner", OwnerSays, tag="do")


@message("ready")
@dataclass(frozen=True, kw_only=True)
class Ready:
    """Members can be started. ``warnings``: what could not be preloaded, and why."""

    pid: int
    warnings: tuple[str, ...] = ()


TO_OWNER: MessageSet[Ready] = MessageSet("news to an owner", Ready, tag="say")
