"""What was sent before a record may be read behind it, by another thread: the record waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import pytest
import torch

from multiworld.errors import ProtocolError
from multiworld.remote.node.peers import Peers
from multiworld.remote.node.shared import Shared
from multiworld.remote.protocol import specs
from multiworld.remote.protocol.messages import Arrives, Meet
from multiworld.world.world import World

from ..fake_node import fake_pair

MEET = Meet(world=3, name="x", rank=0, nodes=(1, 2), sessions=(1, 2), store=None, backend="auto")


def outcome_of(call: Callable[[], object], before_the_end: Callable[[], object]) -> object:
    """Return what a call in a thread returns or raises, that goes on until something else happened."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    before_the_end()
    thread.join(10)
    return found[0]


@pytest.fixture
def shared() -> Shared:
    world = cast("World", fake_pair()[0])
    return Shared(world, world)


def test_a_record_waits_for_the_news_of_its_large_tensor(shared: Shared) -> None:
    arrives = Arrives(id=7, spec=specs.to_json(specs.describe(torch.zeros(3))))
    arriving = outcome_of(lambda: shared.take_arrival(7), lambda: shared.expect(arrives))
    assert type(arriving).__name__ == "Arriving"


def test_a_wait_for_such_news_ends_with_the_session(shared: Shared) -> None:
    assert isinstance(outcome_of(lambda: shared.take_arrival(7), shared.end), KeyError)


def test_a_record_waits_for_the_word_of_its_world() -> None:
    peers = Peers()
    world = outcome_of(lambda: peers._of(3), lambda: peers.heard(MEET))
    assert type(world).__name__ == "PeerWorld"
    with pytest.raises(ProtocolError, match="no world 2"):
        peers._of(2)


def test_a_wait_for_such_a_word_ends_with_the_master() -> None:
    peers = Peers()
    assert isinstance(outcome_of(lambda: peers._of(3), peers.abort), ProtocolError)
