"""The embedded rendezvous: agents meet at an endpoint, and the first of them that can listen there coordinates."""

from __future__ import annotations

from collections.abc import Callable

from ..job.agreement import setting
from ..job.options import JobOptions
from .base import Address, Advice, Rendezvous
from .endpoint import DEFAULT_PORT, STATIC_PORT, Endpoint, find_endpoints, local_address

PATIENT_LOOKS = 8
YES, NO = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")


class EmbeddedRendezvous(Rendezvous):
    """No service of its own: ``endpoints`` are addresses of agents' hosts. With several, any one of them is enough.

    Who can listen at the first of them leads at once; who can at another only if nobody answers at those before it.
    """

    def __init__(self, endpoints: list[Endpoint]) -> None:
        self._endpoints = endpoints
        self._num_looks = 0
        self._listening: set[Endpoint] = set()  # those at which this agent itself is met

    async def look(self, listen: Callable[[Address], bool]) -> Advice:
        self._num_looks += 1
        call: list[Address] = []
        taken: list[Address] = []
        for endpoint in self._endpoints:
            address = Address(endpoint.host, endpoint.port)
            is_turn = not call or self._num_looks > PATIENT_LOOKS
            if endpoint.is_here and is_turn:
                if listen(Address(endpoint.listens_at, endpoint.port)):
                    self._listening.add(endpoint)
                    return Advice(leads=True)
                taken.append(address)
            call.append(address)
        return Advice(call=call, taken=taken)

    def lookouts(self) -> list[Address]:
        others = [each for each in self._endpoints if each not in self._listening]
        return [Address(each.host, each.port) for each in others if each.port]

    def __str__(self) -> str:
        return ", ".join(map(str, self._endpoints))


def from_options(options: JobOptions) -> tuple[Rendezvous, str]:
    """Return the rendezvous, and this host's address. Raises ValueError for an endpoint that means nothing."""
    _check_store_type(options)
    for_others = not options.is_for_one_host
    default_port = STATIC_PORT if options.rdzv_backend == "static" else DEFAULT_PORT
    endpoints = find_endpoints(
        options.meeting_place, is_host=_is_host(options), default_port=default_port, for_others=for_others
    )
    foreign = next((each for each in endpoints if each.is_here and not each.is_own), None)
    if foreign is not None and not for_others:
        raise ValueError(
            f"{foreign} is no address of this host: give one with --master-addr or --rdzv-endpoint, such as localhost"
        )
    unknown = next((each for each in endpoints if for_others and not each.port), None)
    if unknown is not None:
        raise ValueError(
            f"--rdzv-endpoint {unknown}: port 0 is any free port of a host, and the other hosts do not know which: "
            "give a port"
        )
    return EmbeddedRendezvous(endpoints), local_address(endpoints[0], options.local_addr)


def _is_host(options: JobOptions) -> bool | None:
    """Whether this agent may listen at the endpoint, as far as the options say."""
    if options.node_rank is not None:
        return options.node_rank == 0
    given = setting(options, "is_host")
    if given is not None and given.lower() not in YES + NO:
        raise ValueError(f"--rdzv-conf is_host={given}: expected 1 or 0, true or false")
    return None if given is None else given.lower() in YES


def _check_store_type(options: JobOptions) -> None:
    kind = setting(options, "store_type")
    if kind is not None and kind.lower() != "tcp" and not (kind.lower() == "file" and options.is_for_one_host):
        raise ValueError(
            f"--rdzv-conf store_type={kind}: agents of several hosts meet at an address: give --rdzv-endpoint "
            "HOST:PORT, and no store_type"
        )
