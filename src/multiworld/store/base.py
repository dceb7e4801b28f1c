"""What a store offers: a Protocol of few operations, and the URL that names one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..wire.endpoints.bracketed import bracketed
from ..wire.progress.operation import Operation


class Store(Protocol):
    """A store client. Keys are text, values bytes. Every operation fails with StoreError when the store is lost.

    The store handles one client's requests in the order in which they were made, answered or not.

    ``lease=True`` binds the key to this client: the store deletes it when the client's connection ends, however it
    ends.
    """

    def get(self, key: str) -> Operation[bytes | None]: ...

    def set(self, key: str, value: bytes, *, lease: bool = False) -> Operation[None]: ...

    def add(self, key: str, amount: int) -> Operation[int]:
        """Add to a decimal counter (absent: 0) and return the sum."""

    def compare_set(
        self,
        key: str,
        expected: bytes | None,
        desired: bytes,
        *,
        lease: bool = False,
        guard: tuple[str, bytes] | None = None,
    ) -> Operation[bytes | None]:
        """Set the key if it holds ``expected`` (None: if it is absent). Return what it holds afterwards.

        With ``guard=(key, value)``, only if that other key holds that value at the same moment.
        """

    def delete(self, keys: Sequence[str]) -> Operation[None]: ...

    def discard(self, keys: Sequence[str]) -> None:
        """Delete without an answer; it is done before what this client asks for afterwards."""

    def entries(self, prefix: str) -> Operation[dict[str, bytes]]: ...

    def wait(
        self, keys: Sequence[str], *, unless: tuple[str, bytes] | None = None, then: bytes | None = None
    ) -> Operation[list[bytes] | None]:
        """Wait until all keys exist at the same time; return their values.

        With ``unless=(key, value)``, return None as soon as that key holds another value, if not all exist by then.
        With ``then``, that key is set to it in the moment when all exist: what is done after that sees the change.
        """

    def close(self) -> None: ...


@dataclass(frozen=True)
class StoreURL:
    """``tcp://host:port``."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{bracketed(self.host)}:{self.port}"


def parse_store_url(url: str) -> StoreURL:
    """Parse a store URL; raises ValueError that shows the form."""
    scheme, separator, rest = url.partition("://")
    host, colon, port = rest.rstrip("/").rpartition(":")
    if not separator or scheme != "tcp" or not colon or not host:
        raise ValueError(f"bad store address {url!r}: expected tcp://HOST:PORT, for example tcp://127.0.0.1:29500")
    if not port.isdigit() or int(port) > 65535:
        raise ValueError(f"bad store address {url!r}: the port {port!r} is not a number from 0 to 65535")
    return StoreURL(scheme, host.strip("[]"), int(port))
