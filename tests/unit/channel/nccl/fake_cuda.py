"""Stand-ins for ``torch.cuda`` and for NCCL works, which do what they are told and remember what was asked of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class FakeStream:
    """A stream whose work is done at once; ``log`` holds what it was told."""

    def __init__(self, device: object = None) -> None:
        self.log: list[object] = []

    def wait_event(self, event: FakeEvent) -> None:
        self.log.append(event)

    def synchronize(self) -> None:
        self.log.append("synchronize")


class FakeEvent:
    """Over, unless it is told otherwise."""

    def __init__(self) -> None:
        self.stream: FakeStream | None = None
        self.over = True

    def record(self, stream: FakeStream) -> None:
        self.stream = stream

    def query(self) -> bool:
        return self.over


class FakeCuda:
    """The part of ``torch.cuda`` that orders work."""

    Event = FakeEvent
    Stream = FakeStream

    def __init__(self) -> None:
        self.user_stream = FakeStream()
        self._current = threading.local()

    def current_stream(self, device: object = None) -> FakeStream:
        current: FakeStream = getattr(self._current, "stream", self.user_stream)
        return current

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before = self.current_stream()
        self._current.stream = stream
        try:
            yield
        finally:
            self._current.stream = before


class FakeResult:
    """What ``get_future_result`` returns: done once the work has failed."""

    def __init__(self, failed: bool) -> None:
        self._failed = failed

    def done(self) -> bool:
        return self._failed


class FakeWork:
    """A kernel: ``complete`` and ``failure`` are set by the test."""

    def __init__(self, *, complete: bool = False, failure: str = "") -> None:
        self.complete, self.failure = complete, failure
        self.on_asked: Callable[[], None] | None = None

    def is_completed(self) -> bool:
        if self.on_asked is not None:
            self.on_asked()
        return self.complete or bool(self.failure)

    def get_future_result(self) -> FakeResult:
        return FakeResult(bool(self.failure))

    def exception(self) -> Exception | None:
        return RuntimeError(self.failure) if self.failure else None


class FakeLaunchStream:
    """Starts at once, and remembers behind what."""

    def __init__(self, device: object = None) -> None:
        self.issued: list[list[Any]] = []
        self.ends: list[FakeEvent] = []

    def issue(self, after: Sequence[Any], start: Callable[[], Any]) -> tuple[Any, FakeEvent]:
        self.issued.append(list(after))
        work = start()
        self.ends.append(FakeEvent())
        return work, self.ends[-1]


class Ends:
    """Collects how operations ended."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.outcomes: list[str] = []
        self.threads: list[str] = []

    def __call__(self, error: Exception | None) -> None:
        with self._changed:
            self.outcomes.append("ok" if error is None else str(error))
            self.threads.append(threading.current_thread().name)
            self._changed.notify_all()

    def wait(self, number: int = 1) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.outcomes) >= number, 10), self.outcomes
            return list(self.outcomes)
