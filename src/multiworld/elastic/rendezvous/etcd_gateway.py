"""Ask etcd's own gateway, which speaks JSON over HTTP: endpoints in turn, passwords, and what can be wrong there."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from ...errors import MessageError, MultiworldError
from ...wire.endpoints.bracketed import bracketed
from ...wire.messages import Json, from_json, parse
from .etcd_answers import Authenticated

MAX_ANSWER_BYTES = 1 << 20
INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, FAILED_PRECONDITION, UNAUTHENTICATED = 3, 5, 7, 9, 16  # gRPC's codes

Endpoint = tuple[str, int]
A = TypeVar("A")


class EtcdError(MultiworldError):
    """A call that etcd did not carry out. ``endpoint`` says where; ``reason`` is one clause."""

    def __init__(self, endpoint: str, reason: str) -> None:
        super().__init__(endpoint, reason)
        self.endpoint, self.reason = endpoint, reason

    def __str__(self) -> str:
        return f"etcd at {self.endpoint}: {self.reason}"


class EtcdAwayError(EtcdError):
    """It does not answer, or cannot serve now. The call may have been carried out all the same."""


class LeaseGoneError(EtcdAwayError):
    """The lease has run out: it takes a new one."""


class EtcdRefusedError(EtcdError):
    """It will not, however often it is asked; or it is no etcd."""


class _NoEtcdError(EtcdRefusedError):
    """What listens there is no etcd that we can talk to: another endpoint may be one."""


class _AnsweredError(Exception):
    """etcd's own answer that it cannot do it, with gRPC's code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message


@dataclass(frozen=True, kw_only=True)
class EtcdAccess:
    """Where etcd is, and what it wants to see. ``endpoints`` are tried in turn; names are resolved at each call."""

    endpoints: tuple[Endpoint, ...]
    tls: ssl.SSLContext | None = None
    username: str | None = None
    password: str | None = None
    timeout_s: float = 2.0
    """For connecting, and for each piece of an answer."""

    def __str__(self) -> str:
        return ", ".join(map(_show, self.endpoints))


class EtcdGateway:
    """Each call blocks, and all are made by one thread; ``cut``, ``stop`` and ``resume`` are for any.

    A connection serves one call, so that one which died while nobody looked never fails the next call.
    """

    def __init__(self, access: EtcdAccess) -> None:
        self._access = access
        self._at = 0  # the endpoint that answered last
        self._token: str | None = None
        self._socket: socket.socket | None = None  # of the call under way
        self._is_stopped = False

    def call(self, path: str, fields: Mapping[str, Json], answer: type[A]) -> A:
        """Return the answer. Raises EtcdAwayError or EtcdRefusedError."""
        troubles: list[EtcdError] = []
        for _ in self._access.endpoints:
            try:
                return self._call_here(path, fields, answer)
            except _AnsweredError as error:
                raise self._explain(error) from None
            except (EtcdAwayError, _NoEtcdError) as error:
                troubles.append(error)
                self._at = (self._at + 1) % len(self._access.endpoints)
        raise _together(troubles)

    def read_stream(self, path: str, fields: Mapping[str, Json], answer: type[A], silence_s: float) -> Generator[A]:
        """Yield one answer after the other, of the endpoint that answered last. Ends after ``silence_s`` without."""
        try:
            with self._open(path, fields) as response:
                if self._socket is not None:
                    self._socket.settimeout(silence_s)
                while True:
                    yield self._parse(response.status, response.readline(MAX_ANSWER_BYTES), answer)
        except TimeoutError:
            return
        except _AnsweredError as error:
            raise self._explain(error) from None

    def cut(self) -> None:
        """Have the call under way fail, soon. Never blocks."""
        connected = self._socket
        if connected is not None:
            try:
                socket.socket.shutdown(connected, socket.SHUT_RDWR)  # that of an SSLSocket pulls it from under a reader
            except OSError:
                return  # it has ended by itself

    def stop(self) -> None:
        """As ``cut``, and every later call fails, too, until ``resume``."""
        self._is_stopped = True
        self.cut()

    def resume(self) -> None:
        self._is_stopped = False

    def nonsense(self, said: str = "its answer makes no sense") -> EtcdRefusedError:
        """Return the error for an answer that is not etcd's."""
        return _NoEtcdError(self._here, f"what listens there is no etcd: {said}")

    # ---- one endpoint

    @property
    def _here(self) -> str:
        return _show(self._access.endpoints[self._at])

    def _call_here(self, path: str, fields: Mapping[str, Json], answer: type[A]) -> A:
        was_known = self._token is not None
        if self._access.username is not None and not was_known:
            self._authenticate()
        try:
            return self._ask(path, fields, answer)
        except _AnsweredError as error:
            if not was_known or error.code not in (INVALID_ARGUMENT, UNAUTHENTICATED):
                raise
        self._authenticate()  # our token has run out, or etcd was restarted and knows it no longer
        return self._ask(path, fields, answer)

    def _authenticate(self) -> None:
        self._token = None
        credentials = {"name": self._access.username, "password": self._access.password or ""}
        try:
            self._token = self._ask("/v3/auth/authenticate", credentials, Authenticated).token
        except _AnsweredError as error:
            if error.code != FAILED_PRECONDITION:
                raise  # else it wants no passwords: one too many does no harm, as with its own client

    def _ask(self, path: str, fields: Mapping[str, Json], answer: type[A]) -> A:
        try:
            with self._open(path, fields) as response:
                body = response.read(MAX_ANSWER_BYTES)
                if response.length and len(body) < MAX_ANSWER_BYTES:  # which it would not say by itself
                    raise http.client.IncompleteRead(body)
        except TimeoutError as error:
            raise EtcdAwayError(self._here, f"no answer within {self._access.timeout_s:g} s") from error
        if response.status == http.client.NOT_FOUND and not body.startswith(b"{"):
            raise self._explain_not_found()
        return self._parse(response.status, body, answer)

    @contextmanager
    def _open(self, path: str, fields: Mapping[str, Json] | None) -> Iterator[http.client.HTTPResponse]:
        """Send a request, and map what may happen to it and its answer, but for the TimeoutError."""
        if self._is_stopped:
            raise EtcdAwayError(self._here, "the connection was given up")
        connection = self._new_connection()
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if self._token is not None:
            headers["Authorization"] = self._token
        body = None if fields is None else json.dumps(fields)
        try:
            connection.connect()
            self._socket = connection.sock
            connection.request("GET" if body is None else "POST", path, body, headers)
            with connection.getresponse() as response:
                yield response
        except TimeoutError:
            raise
        except (ConnectionResetError, BrokenPipeError) as error:  # it may be ending, or know nothing but TLS
            hint = "" if self._access.tls is not None else ": does it want --rdzv-conf protocol=https?"
            raise EtcdAwayError(self._here, f"it closed the connection{hint}") from error
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:  # it may be ending, or know no TLS
            raise EtcdAwayError(self._here, "it closed the connection amid TLS: does it speak HTTPS?") from error
        except http.client.IncompleteRead as error:
            raise EtcdAwayError(self._here, "the connection was cut within an answer") from error
        except http.client.HTTPException as error:
            spoken = "HTTP" if self._access.tls is None else "HTTPS"
            raise self.nonsense(f"it does not speak {spoken}") from error
        except ssl.SSLError as error:
            raise _NoEtcdError(self._here, _tls_reason(error)) from error
        except OSError as error:
            raise EtcdAwayError(self._here, (error.strerror or str(error)).lower()) from error
        finally:
            self._socket = None
            connection.close()

    def _new_connection(self) -> http.client.HTTPConnection:
        host, port = self._access.endpoints[self._at]
        if self._access.tls is None:
            return http.client.HTTPConnection(host, port, timeout=self._access.timeout_s)
        return http.client.HTTPSConnection(host, port, timeout=self._access.timeout_s, context=self._access.tls)

    # ---- what an answer says

    def _parse(self, status: int, body: bytes, answer: type[A]) -> A:
        """Return one answer, or what one line of a stream says, where it is wrapped once more."""
        told = _inner(_load(body), "result")
        error = _inner(told, "error")
        code, message = error.get("grpc_code", error.get("code")), error.get("message")
        if isinstance(code, int) and isinstance(message, str):
            raise _AnsweredError(code, message.removeprefix("etcdserver: "))
        if status == http.client.OK and "header" in told:
            try:
                return from_json(answer, told)
            except MessageError as wrong:
                raise self.nonsense() from wrong
        if status == http.client.OK and not body:
            raise EtcdAwayError(self._here, "it closed the connection")
        said = f"{status} {http.client.responses.get(status, '')}".strip()
        if status >= http.client.INTERNAL_SERVER_ERROR:
            raise EtcdAwayError(self._here, f"it answered {said}")
        if status == http.client.BAD_REQUEST and b"HTTPS" in body:
            raise _NoEtcdError(self._here, "it speaks HTTPS: give --rdzv-conf protocol=https")
        raise self.nonsense() if status == http.client.OK else self.nonsense(f"it answered {said}")

    def _explain_not_found(self) -> EtcdError:
        """Who has no such page may be an older etcd, or another service."""
        try:
            with self._open("/version", None) as response:
                version = str(_load(response.read(MAX_ANSWER_BYTES)).get("etcdserver", ""))
        except (EtcdError, TimeoutError):
            version = ""
        if not version:
            return self.nonsense("it answered 404 Not Found")
        if _is_old(version):
            return _NoEtcdError(self._here, f"it is etcd {version}, and 3.4 or newer is needed, which has the v3 API")
        reason = (
            f"it is etcd {version} with its JSON gateway switched off: start it without --enable-grpc-gateway=false"
        )
        return _NoEtcdError(self._here, reason)

    def _explain(self, error: _AnsweredError) -> EtcdError:
        username = self._access.username
        if error.code == NOT_FOUND:
            return LeaseGoneError(self._here, error.message)
        if error.code not in (INVALID_ARGUMENT, PERMISSION_DENIED, UNAUTHENTICATED):
            return EtcdAwayError(self._here, error.message)
        if username is None:
            hint = "give --rdzv-conf username=NAME,password=PASSWORD"
            return EtcdRefusedError(self._here, f"{error.message}; {hint}")
        return EtcdRefusedError(self._here, f"{error.message} (user {username!r})")


def _load(body: bytes) -> dict[str, object]:
    """Return a JSON object, empty if it is none."""
    try:
        told = parse(body)
    except MessageError:
        return {}
    return told if isinstance(told, dict) else {}


def _inner(fields: dict[str, object], name: str) -> dict[str, object]:
    """Return the object of that name within another, which need not have it."""
    inner = fields.get(name)
    return inner if isinstance(inner, dict) else fields


def _together(troubles: list[EtcdError]) -> EtcdError:
    """Return one error for endpoints that all failed: final only if each of them is."""
    if len(troubles) == 1:
        return troubles[0]
    is_final = all(isinstance(each, EtcdRefusedError) for each in troubles)
    first, *others = troubles
    reasons = "; at ".join([first.reason, *(f"{each.endpoint}: {each.reason}" for each in others)])
    return (EtcdRefusedError if is_final else EtcdAwayError)(first.endpoint, reasons)


def _is_old(version: str) -> bool:
    numbers = version.split(".")[:2]
    return all(each.isdecimal() for each in numbers) and [int(each) for each in numbers] < [3, 4]


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return f"TLS fails: {(error.reason or str(error)).lower().replace('_', ' ')}"


def _show(endpoint: Endpoint) -> str:
    host, port = endpoint
    return f"{bracketed(host)}:{port}"
