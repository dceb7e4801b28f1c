"""What torchrun finds by its entry points: ``--rdzv-backend multiworld`` and ``--rdzv-backend multiworld-etcd``.

torchrun loads this module for every use. So the handler, and with it an agent, is imported when one is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousHandlerCreator, RendezvousParameters


def get_embedded() -> RendezvousHandlerCreator:
    """Return what makes a handler: agents meet at an endpoint, and no single one of them is needed."""
    return _create_embedded


def get_etcd() -> RendezvousHandlerCreator:
    """Return what makes a handler: agents meet through etcd."""
    return _create_etcd


def _create_embedded(params: RendezvousParameters) -> RendezvousHandler:
    return _create(params, "embedded")


def _create_etcd(params: RendezvousParameters) -> RendezvousHandler:
    return _create(params, "etcd")


def _create(params: RendezvousParameters, kind: str) -> RendezvousHandler:
    from .handler import Handler

    return Handler(params, kind)
