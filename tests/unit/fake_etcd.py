"""A small etcd for tests: the calls of its v3 gateway that we use, in memory; and whatever else a port may answer."""

from __future__ import annotations

import base64
import http.server
import json
import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

Fields = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """What is under a key."""

    value: bytes
    lease: int
    revision: int


class FakeEtcd:
    """Serves on a port of loopback while it is open; what it holds outlives that, as on a disk.

    ``instead`` is asked first: bytes are sent as they are, and the connection is closed then.
    """

    def __init__(self, *, users: dict[str, str] | None = None) -> None:
        self.entries: dict[str, Entry] = {}
        self.leases: dict[int, int] = {}
        self.revision = 1
        self.users = users
        self.tokens: set[str] = set()
        self.calls: list[str] = []
        self.num_watches = 0
        self.instead: Callable[[str], bytes | None] = lambda path: None
        self.after: Callable[[str], bytes | None] = lambda path: None
        """As ``instead``, when the call has been carried out."""
        self.changed = threading.Condition()
        self.is_closing = False
        self._port = 0
        self._server: _Server | None = None
        self.open()

    def __enter__(self) -> FakeEtcd:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def endpoint(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def open(self) -> None:
        """Serve, on the same port as before."""
        self.is_closing = False
        self._server = _Server(self, self._port)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,)).start()

    def close(self) -> None:
        with self.changed:
            self.is_closing = True
            self.changed.notify_all()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def put(self, key: str, value: bytes, lease: int = 0) -> None:
        with self.changed:
            self.revision += 1
            self.entries[key] = Entry(value, lease, self.revision)
            self.changed.notify_all()

    def expire(self, lease: int) -> bool:
        """End a lease."""
        with self.changed:
            for key in [key for key, entry in self.entries.items() if entry.lease == lease]:
                self.revision += 1
                del self.entries[key]
            self.changed.notify_all()
            return self.leases.pop(lease, None) is not None

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), (self.entries, self.leases)

    # ---- the calls

    def answer(self, path: str, fields: Fields, token: str | None) -> tuple[int, Fields]:
        with self.changed:
            self.calls.append(path)
            self.changed.notify_all()
        if path == "/v3/auth/authenticate":
            return self._authenticate(fields)
        if self.users is not None and token not in self.tokens:
            return _error(401, 16, "invalid auth token") if token else _error(400, 3, "user name is empty")
        carry_out = {
            "/v3/kv/range": self._range,
            "/v3/kv/txn": self._replace,
            "/v3/lease/grant": self._grant,
            "/v3/lease/keepalive": self._keep_alive,
            "/v3/lease/revoke": self._revoke,
        }[path]
        status, answer = carry_out(fields)
        return status, answer if "code" in answer else {"header": {"revision": str(self.revision)}, **answer}

    def _authenticate(self, fields: Fields) -> tuple[int, Fields]:
        if self.users is None:
            return _error(412, 9, "authentication is not enabled")
        if self.users.get(fields["name"]) != fields["password"]:
            return _error(400, 3, "authentication failed, invalid user ID or password")
        token = f"token {self.calls.count('/v3/auth/authenticate')}"
        self.tokens.add(token)
        return 200, {"header": {}, "token": token}

    def _range(self, fields: Fields) -> tuple[int, Fields]:
        entry = self.entries.get(_decode(fields["key"]).decode())
        if entry is None:
            return 200, {}
        value = base64.b64encode(entry.value).decode()
        return 200, {"kvs": [{"value": value, "lease": str(entry.lease), "mod_revision": str(entry.revision)}]}

    def _replace(self, fields: Fields) -> tuple[int, Fields]:
        (compare,), (success,) = fields["compare"], fields["success"]
        put = success["request_put"]
        with self.changed:
            key, lease = _decode(put["key"]).decode(), int(put["lease"])
            entry = self.entries.get(key)
            if (entry.revision if entry else 0) != int(compare["mod_revision"]):
                return 200, {}
            if lease not in self.leases:
                return _error(404, 5, "requested lease not found")
            self.put(key, _decode(put["value"]), lease)
        return 200, {"succeeded": True}

    def _grant(self, fields: Fields) -> tuple[int, Fields]:
        lease = len(self.calls)
        self.leases[lease] = int(fields["TTL"])
        return 200, {"ID": str(lease), "TTL": fields["TTL"]}

    def _keep_alive(self, fields: Fields) -> tuple[int, Fields]:
        ttl = self.leases.get(int(fields["ID"]))
        return 200, {} if ttl is None else {"TTL": str(ttl)}

    def _revoke(self, fields: Fields) -> tuple[int, Fields]:
        return (200, {}) if self.expire(int(fields["ID"])) else _error(404, 5, "requested lease not found")


def http_answer(status: str, body: bytes, length: int | None = None) -> bytes:
    """Return the bytes of an answer; ``length``: another one than it has."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {length or len(body)}\r\n\r\n".encode() + body


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    block_on_close = True
    daemon_threads = False

    def __init__(self, etcd: FakeEtcd, port: int) -> None:
        self.etcd = etcd
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away within an answer is part of the tests."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Say nothing."""

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        etcd = self.server.etcd  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.close_connection = True
        if (raw := etcd.instead(self.path)) is not None:
            self.wfile.write(raw)
            return
        if self.path == "/v3/watch":
            self._watch(etcd, json.loads(body)["create_request"])
            return
        status, answer = etcd.answer(self.path, json.loads(body), self.headers.get("Authorization"))
        if self.path == "/v3/lease/keepalive":  # a stream, of one answer
            answer = {"result": answer}
        raw = etcd.after(self.path)
        self.wfile.write(raw if raw is not None else http_answer(f"{status} -", json.dumps(answer).encode()))

    def _watch(self, etcd: FakeEtcd, wanted: Fields) -> None:
        key, since = _decode(wanted["key"]).decode(), int(wanted["start_revision"])
        before = etcd.entries.get(key)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._send_line({"result": {"header": {}, "created": True}})
        with etcd.changed:
            etcd.num_watches += 1
            etcd.changed.notify_all()
            etcd.changed.wait_for(
                lambda: etcd.is_closing or etcd.entries.get(key) != before or _is_since(etcd.entries.get(key), since)
            )
        if not etcd.is_closing:
            self._send_line({"result": {"header": {}, "events": [{}]}})
            self.wfile.write(b"0\r\n\r\n")

    def _send_line(self, fields: Fields) -> None:
        line = json.dumps(fields).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()


def _is_since(entry: Entry | None, revision: int) -> bool:
    return entry is not None and entry.revision >= revision


def _error(status: int, code: int, message: str) -> tuple[int, Fields]:
    message = f"etcdserver: {message}"
    return status, {"error": message, "message": message, "code": code}


def _decode(text: str) -> bytes:
    return base64.b64decode(text)
