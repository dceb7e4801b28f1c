"""Fixtures that all tests share: leak checks, a runner for coroutines, simulated hosts where they work."""

from __future__ import annotations

import asyncio
import functools
import gc
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import settings

from multiworld import native
from multiworld.channel import registry
from multiworld.testing import check_returned, hosts_available, measure, scaled
from multiworld.wire.connection.waiter import waiter
from multiworld.wire.endpoints.listener import Pending
from tests.stages import names_mark

T = TypeVar("T")
DEFAULT_TEST_TIMEOUT_S = 60.0

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as of what a script starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what tests start is interrupted by them

# The same examples in every run, so that a run can be repeated; --hypothesis-profile=search looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while pytest collects thousands of tests, all of which stay; no later turn looks at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    no_hosts = hosts_available() if any(_in_folder(item, "hosts") for item in items) else None
    for item in items:
        for folder in ("process", "hosts", "gpu"):
            if _in_folder(item, folder):
                item.add_marker(folder)
        for mark in ("alone", "sources"):
            if item.get_closest_marker(mark) is not None and not names_mark(item.path, mark):
                raise pytest.UsageError(f"{item.nodeid}: name the mark {mark} in its file, where tests.stages looks")
        if _in_folder(item, "gpu"):
            item.add_marker("alone")
        if no_hosts is not None and _in_folder(item, "hosts"):
            item.add_marker(pytest.mark.skip(reason=no_hosts))
        if (no_backend := _why_no_backend(item)) is not None:
            item.add_marker(pytest.mark.skip(reason=no_backend))
        if not native.not_compiled and item.get_closest_marker("sources") is not None:
            item.add_marker(pytest.mark.skip(reason="reaches into modules, which are compiled"))
        if scaled(1.0) > 1.0 and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(scaled(DEFAULT_TEST_TIMEOUT_S)))


def _why_no_backend(item: pytest.Item) -> str | None:
    """Return why the channel that a test asks for by its parameter ``backend`` does not work here, if it does not."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    backend = parameters.get("backend")
    if backend not in ("gloo", "nccl"):
        return None
    support = registry.available().get(backend)
    if support is None:
        return f"there is no channel {backend}"
    return None if support.works else f"{backend}: {support.reason}"


def _in_folder(item: pytest.Item, folder: str) -> bool:
    return item.nodeid.startswith(f"tests/{folder}/")


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail the test when it leaves threads, descriptors or children of this process behind."""
    _start_what_stays()
    before = measure()
    yield
    check_returned(before)


@functools.cache
def _start_what_stays() -> None:
    """Let torch start the threads that it keeps for large tensors, and this thread have the descriptor that wakes it
    from a blocking wait: so that they are there before and after.
    """
    torch.ones(4_000_000).add_(1).sum()
    assert waiter.waker is not None


@pytest.fixture
def challenges(monkeypatch: pytest.MonkeyPatch) -> list[Pending]:
    """Who was challenged by a listener of this process to prove the job token."""
    challenged: list[Pending] = []
    challenge = Pending._challenge

    def record(pending: Pending) -> None:
        challenged.append(pending)
        challenge(pending)

    monkeypatch.setattr(Pending, "_challenge", record)
    return challenged


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Run a coroutine to its end in a fresh event loop, for tests that are plain functions."""
    return asyncio.run
