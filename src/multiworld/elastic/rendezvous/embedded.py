"""The embedded rendezvous: agents meet at an endpoint, and the first of them that can listen there coordinates."""

from __future__ import annotations

from collections.abc import Callable

from ..options import JobOptions
from .base import Address, Advice, Rendezvous
from .endpoint import Endpoint, find_endpoints, local_address

__all__ = ["EmbeddedRendezvous", "from_options"]

PATIENT_LOOKS = 8
YES = ("1", "true", "t", "yes", "y")


class EmbeddedRendezvous(Rendezvous):
    """No service of its own: ``endpoints`` are addresses of agents' hosts. With several, any one of them is enough.

    Who can listen at the first of them leads at once; who can at another only if nobody answers at those before it.
    """

    def __init__(self, endpoints: list[Endpoint]) -> None:
        self._endpoints = endpoints
        self._num_looks = 0

    async def look(self, listen: Callable[[Address], bool]) -> Advice:
        self._num_looks += 1
        call: list[Address] = []
        for endpoint in self._endpoints:
            address = Address(endpoint.host, endpoint.port)
            is_turn = not call or self._num_looks > PATIENT_LOOKS
            if endpoint.is_here and is_turn and listen(address):
                return Advice(leads=True)
            call.append(address)
        return Advice(call=call)

    def lookouts(self) -> list[Address]:
        return [Address(each.host, each.port) for each in self._endpoints if each.port]

    def __str__(self) -> str:
        return ", ".join(map(str, self._endpoints))


def from_options(options: JobOptions) -> tuple[Rendezvous, str]:
    """Return the rendezvous, and this host's address. Raises ValueError for an endpoint that means nothing."""
    endpoints = find_endpoints(options.meeting_place, is_host=_is_host(options))
    return EmbeddedRendezvous(endpoints), local_address(endpoints[0], options.local_addr)


def _is_host(options: JobOptions) -> bool | None:
    """Whether this agent may listen at the endpoint, as far as the options say."""
    if options.node_rank is not None:
        return options.node_rank == 0
    given = options.rdzv_config.get("is_host")
    return None if given is None else given.strip("'\" ").lower() in YES
