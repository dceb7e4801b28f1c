"""The end of a connection says for what it waits, and gives up when it is told to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from multiworld.remote.master.settling import settle_all
from multiworld.remote.protocol.calls import DeclaredCall

from .. import functions_of_nodes
from ..fake_node import FakeNode, remote_of

NAME = "tests.unit.remote.functions_of_nodes:wait"


@pytest.fixture
def busy() -> Iterator[FakeNode]:
    """A node that executes a call until ``functions_of_nodes.GO`` is set."""
    functions_of_nodes.GO.clear()
    functions_of_nodes.BEGAN.clear()
    fake = FakeNode(calls=[DeclaredCall(name=NAME)])
    try:
        yield fake
    finally:
        functions_of_nodes.GO.set()
        fake.close()


def begin(busy: FakeNode) -> None:
    busy.session.flush()
    assert functions_of_nodes.BEGAN.wait(30)


def test_it_waits_for_what_was_issued_and_loses_nothing(busy: FakeNode) -> None:
    like = busy.node.ones(1)
    busy.node.call(NAME, like=like)
    threading.Timer(0.05, functions_of_nodes.GO.set).start()
    assert settle_all([busy.session]) == []
    assert busy.session.first_unconfirmed() == ""


def test_it_says_for_which_node_and_line_it_waits(busy: FakeNode, caplog: pytest.LogCaptureFixture) -> None:
    said = threading.Event()

    class Hears(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.set()
            functions_of_nodes.GO.set()

    logger = logging.getLogger("multiworld.remote.master.settling")
    handler = Hears()
    logger.addHandler(handler)
    try:
        like = busy.node.ones(1)
        busy.node.call(NAME, like=like)
        begin(busy)
        settle_all([busy.session], say_s=0.01)
    finally:
        logger.removeHandler(handler)
    assert said.is_set()
    (record, *_) = caplog.records
    assert "waits for node 1 since" in record.getMessage()
    assert f"not done with {NAME} at " in record.getMessage()
    assert "test_settling.py" in record.getMessage()


def test_a_node_that_is_busy_for_too_long_is_taken_for_lost(busy: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def later(after_s: float, call: Callable[[], object]) -> None:
        if not after_s:  # as on the progress thread
            threading.Thread(target=call).start()

    monkeypatch.setattr(busy.world, "later", later)
    with FakeNode(2) as other:
        made = busy.node.call(NAME, like=busy.node.ones(1))
        kept = other.node.ones(2)
        other.session.settle()
        begin(busy)
        (error,) = settle_all([busy.session, other.session], timeout_s=0.05)
        assert error.node == 1
        assert "it was busy for 0.05 s after nodes.close(timeout_s=0.05)" in error.reason
        assert "test_settling.py" in error.first_lost
        assert busy.session.dead is not None
        assert remote_of(kept).fetch().tolist() == [1.0, 1.0]
        del made
