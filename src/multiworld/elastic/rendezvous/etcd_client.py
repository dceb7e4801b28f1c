"""The few calls of etcd's v3 API that a rendezvous needs: keys that change only as expected, leases, a watch."""

from __future__ import annotations

import base64
import time
from contextlib import closing
from dataclasses import dataclass

from .etcd_answers import KeptLease, Lease, Nothing, Range, Transaction, Watched
from .etcd_gateway import EtcdGateway, LeaseGoneError


@dataclass(frozen=True, kw_only=True)
class Found:
    """What is under a key now; nothing: ``value`` is None. Revisions count the changes of the whole store."""

    value: bytes | None = None
    lease: int = 0
    changed_at: int = 0
    """The revision that changed this key last; 0: there is none."""
    seen_at: int
    """The revision of the store when it was looked at."""


class EtcdClient:
    """Each call blocks, and raises EtcdAwayError or EtcdRefusedError. For one thread."""

    def __init__(self, gateway: EtcdGateway) -> None:
        self._gateway = gateway

    def get(self, key: str) -> Found:
        answer = self._gateway.call("/v3/kv/range", {"key": _encode(key.encode())}, Range)
        seen_at = int(answer.header.revision)
        if not answer.kvs:
            return Found(seen_at=seen_at)
        entry = answer.kvs[0]
        return Found(value=entry.value, lease=int(entry.lease), changed_at=int(entry.mod_revision), seen_at=seen_at)

    def replace(self, key: str, value: bytes, *, lease: int, expected: int) -> bool:
        """Set the key if it was changed at revision ``expected`` last (0: if it is absent), while the lease lasts."""
        name = _encode(key.encode())
        compare = {"key": name, "target": "MOD", "result": "EQUAL", "mod_revision": str(expected)}
        put = {"request_put": {"key": name, "value": _encode(value), "lease": str(lease)}}
        return self._gateway.call("/v3/kv/txn", {"compare": [compare], "success": [put]}, Transaction).succeeded

    def grant(self, ttl_s: int) -> int:
        return int(self._gateway.call("/v3/lease/grant", {"TTL": str(ttl_s)}, Lease).id)

    def keep_alive(self, lease: int) -> bool:
        """Renew a lease; False: it has run out."""
        return int(self._gateway.call("/v3/lease/keepalive", {"ID": str(lease)}, KeptLease).ttl_s) > 0

    def revoke(self, lease: int) -> None:
        """End a lease, and every key that depends on it."""
        try:
            self._gateway.call("/v3/lease/revoke", {"ID": str(lease)}, Nothing)
        except LeaseGoneError:
            return

    def wait_change(self, key: str, after: int, timeout_s: float) -> None:
        """Wait until the key has changed since the store's revision ``after``, for about ``timeout_s`` at most."""
        wanted = {"create_request": {"key": _encode(key.encode()), "start_revision": str(after + 1)}}
        deadline = time.monotonic() + timeout_s
        with closing(self._gateway.read_stream("/v3/watch", wanted, Watched, timeout_s)) as stream:
            for news in stream:
                if news.events or news.canceled or time.monotonic() > deadline:
                    return


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
