"""A node that stands at an address: master after master, one at a time, with the right token only."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from multiworld import remote
from multiworld.remote.connecting.listing import nodes_at
from multiworld.testing import scaled, wait_until
from tests.process.served_nodes import TOKEN, served_node

CALLED = "tests.unit.remote.functions_of_nodes"

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served_node("--call", f"{CALLED}:load_shard") as url:
        yield url


def test_masters_come_one_after_the_other_and_a_second_one_is_told_who_is_there(address: str) -> None:
    with remote.connect(address, token=TOKEN) as nodes:
        kept = nodes[1].ones(3)
        assert kept.fetch().tolist() == [1.0, 1.0, 1.0]
        with pytest.raises(remote.ConnectError, match=f"has a master already: process {os.getpid()} on "):
            remote.connect(address, token=TOKEN)
        assert wait_until(lambda: _tensors_of(address) > 0, 10)
        assert nodes_at(address, token=TOKEN)[0].master.startswith(f"process {os.getpid()} on ")
    with pytest.raises(remote.ConnectionEndedError, match=r"nodes\.close\(\) was called"):
        kept.fetch()
    with remote.connect(address, token=TOKEN) as nodes:
        assert nodes[1].ones(2).fetch().tolist() == [1.0, 1.0]
        for _ in range(2):  # what was freed travels behind the first wait, and is done before the second
            nodes[1].synchronize()
        assert nodes[1].statistics.num_tensors == 0  # nothing of the first master's either


def test_a_function_that_is_declared_there_is_called_and_others_are_not(address: str) -> None:
    with remote.connect(address, token=TOKEN) as nodes:
        assert nodes[1].call(f"{CALLED}:load_shard", "ab").fetch().tolist() == [[0.5, 0.5], [0.5, 0.5]]
        with pytest.raises(remote.CallNotDeclaredError, match=f"declared: {CALLED}:load_shard"):
            nodes[1].call(f"{CALLED}:state", 1.0, [])
    with pytest.raises(ValueError, match="a node at an address declares its own: multiworld nodes serve --call"):
        remote.connect(address, token=TOKEN, calls=["torch:load"])


def test_a_wrong_token_and_an_address_without_a_node_are_told_at_once(address: str) -> None:
    with pytest.raises(remote.ConnectError, match="the job tokens differ"):
        remote.connect(address, token="another-secret-of-20", timeout_s=10)
    with pytest.raises(
        remote.ConnectError, match=r"at tcp://127\.0\.0\.1:9: .*refused\. Start one there: multiworld nodes"
    ):
        remote.connect("tcp://127.0.0.1:9", token=TOKEN, timeout_s=0.5)
    assert nodes_at("tcp://127.0.0.1:9", token=TOKEN, timeout_s=0.5)[0].problem


def test_a_node_that_is_started_again_at_its_address_comes_back() -> None:
    with served_node() as first, remote.connect(first, token=TOKEN) as nodes:
        nodes[1].ones(1).fetch()
        before, lost = nodes[1].generation, nodes[1].ones(3)
        os.kill(nodes[1].pid, signal.SIGKILL)
        with pytest.raises(remote.NodeDeadError, match="it died"):
            lost.fetch()
        with served_node(port=int(first.rpartition(":")[2])):
            nodes[1].wait_alive(scaled(20))
            assert nodes[1].generation > before
            assert nodes[1].ones(2).fetch().tolist() == [1.0, 1.0]
            with pytest.raises(remote.ConnectError, match="has a master already"):
                remote.connect(first, token=TOKEN)
            with pytest.raises(remote.NodeDeadError, match="it died"):
                lost.fetch()


def _tensors_of(address: str) -> int:
    (listed,) = nodes_at(address, token=TOKEN)
    assert listed.state is not None, listed.problem
    return listed.state.num_tensors
