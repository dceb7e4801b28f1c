"""What every client of our store has in common: how requests are put into fields, and answers into values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..errors import StoreError
from ..wire.progress.operation import Operation
from .state import Request, Status

T = TypeVar("T")
Answer = tuple[Status, list[bytes]]


class StoreClient(ABC):
    """Implements ``Store`` over two methods that carry requests to a ``StoreState``, which says what the fields are."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def _request(self, request: Request, fields: list[bytes], lease: bool = False) -> Operation[Answer]:
        """Ask; fails with StoreError when the store is lost, and for an answer that says INVALID."""

    @abstractmethod
    def _tell(self, request: Request, fields: list[bytes]) -> None:
        """Ask without wanting an answer."""

    @abstractmethod
    def close(self) -> None: ...

    def get(self, key: str) -> Operation[bytes | None]:
        return self._map(self._request(Request.GET, [key.encode()]), _first)

    def set(self, key: str, value: bytes, *, lease: bool = False) -> Operation[None]:
        return self._map(self._request(Request.SET, [key.encode(), value], lease), _nothing)

    def add(self, key: str, amount: int) -> Operation[int]:
        return self._map(self._request(Request.ADD, [key.encode(), b"%d" % amount]), _number)

    def compare_set(
        self,
        key: str,
        expected: bytes | None,
        desired: bytes,
        *,
        lease: bool = False,
        guard: tuple[str, bytes] | None = None,
    ) -> Operation[bytes | None]:
        fields = [key.encode(), desired, *([] if expected is None else [expected])]
        if guard is not None:
            fields += [guard[0].encode(), guard[1]]
        return self._map(self._request(Request.COMPARE_SET, fields, lease), _first)

    def delete(self, keys: Sequence[str]) -> Operation[None]:
        return self._map(self._request(Request.DELETE, [key.encode() for key in keys]), _nothing)

    def discard(self, keys: Sequence[str]) -> None:
        self._tell(Request.DELETE, [key.encode() for key in keys])

    def entries(self, prefix: str) -> Operation[dict[str, bytes]]:
        return self._map(self._request(Request.LIST, [prefix.encode()]), _pairs)

    def wait(
        self, keys: Sequence[str], *, unless: tuple[str, bytes] | None = None, then: bytes | None = None
    ) -> Operation[list[bytes] | None]:
        fields = [b"%d" % len(keys), *(key.encode() for key in keys)]
        if unless is not None:
            fields += [unless[0].encode(), unless[1], *([] if then is None else [then])]
        return self._map(self._request(Request.WAIT, fields), _values_or_none)

    def _map(self, request: Operation[Answer], convert: Callable[[Status, list[bytes]], T]) -> Operation[T]:
        mapped: Operation[T] = Operation(lambda: _discard(request, self.url))

        def finish(_: Operation[Answer]) -> None:
            try:
                value = convert(*request.result())
            except StoreError as error:
                error.__traceback__ = None  # it leads to ``mapped``
                mapped.fail(error)
            except (IndexError, ValueError) as error:
                mapped.fail(StoreError(self.url, f"its answer makes no sense: {error}"))
            else:
                mapped.succeed(value)

        request.add_callback(finish)
        return mapped


def _discard(request: Operation[Answer], url: str) -> None:
    request.cancel(StoreError(url, "no longer wanted"))


def _first(status: Status, values: list[bytes]) -> bytes | None:
    return values[0] if status is Status.OK else None


def _nothing(status: Status, values: list[bytes]) -> None:
    return None


def _number(status: Status, values: list[bytes]) -> int:
    return int(values[0])


def _pairs(status: Status, values: list[bytes]) -> dict[str, bytes]:
    return {key.decode(): value for key, value in zip(values[::2], values[1::2], strict=True)}


def _values_or_none(status: Status, values: list[bytes]) -> list[bytes] | None:
    return values if status is Status.OK else None
