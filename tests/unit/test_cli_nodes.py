"""``multiworld nodes``: the table, and what is refused before anything is started."""

from __future__ import annotations

import pytest

from multiworld.cli import nodes
from multiworld.elastic.job.remote import remote_status
from multiworld.remote.connecting.listing import Listed
from multiworld.remote.served import NodeState
from multiworld.world.launcher.remote_nodes import RemoteNodes
from tests.unit.world.launcher.test_remote_nodes import LINE, remote_node

STATE = NodeState(
    host="big",
    pid=71,
    multiworld="0.4",
    torch="2.13.0",
    devices=("cpu", "cuda:0"),
    num_tensors=12,
    memory_bytes=250_000_000,
)


def test_the_table_has_a_line_for_each_node_also_for_one_that_is_not_there() -> None:
    listed = [
        Listed(number=1, address="tcp://a:1", state=STATE, master="process 9 on desk"),
        Listed(number=2, address="tcp://b:1", problem="nothing answers"),
    ]
    header, first, second = nodes.render(listed).splitlines()
    assert header.split() == ["NODE", "ADDRESS", "HOST", "PID", "TORCH", "DEVICES", "TENSORS", "MEMORY", "MASTER"]
    assert " ".join(first.split()) == "1 tcp://a:1 big 71 2.13.0 cpu,cuda:0 12 250 MB process 9 on desk"
    assert second.split() == ["2", "tcp://b:1", *"-------"]


def test_a_bad_address_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert nodes.main(["nowhere:x"]) == 2
    assert "multiworld nodes: bad store address 'tcp://nowhere:x'" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["192.0.2.1", "worker-3"])
def test_other_hosts_need_a_token(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MULTIWORLD_TOKEN", raising=False)
    assert nodes.main(["serve", "--host", host]) == 2
    assert "multiworld nodes serve: MULTIWORLD_TOKEN is not set" in capsys.readouterr().err


def test_a_module_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert nodes.main(["serve", "--import", "no_such_module_here"]) == 2
    assert "no_such_module_here" in capsys.readouterr().err


def test_nodes_of_a_job_are_a_table_with_the_lines_that_wait() -> None:
    news = RemoteNodes(rank=0, syncs=3, nodes=(remote_node(1), remote_node(2, "it died")), lines=(LINE,))
    head, _, first, second, _, line = nodes.render_job(remote_status(news, at=1000.0)).splitlines()
    assert head.startswith("master: rank 0, told at ")
    assert first.split() == ["1", "a", "7", "1", "10", "0.0", "MB", "0.0", "MB", "3", "1000.0", "MB", "alive"]
    assert second.split()[-4:] == ["-", "-", "it", "died"]
    assert line == "  0.500 s, 2 times, for item: a.py:3 in f"


def test_a_job_is_not_asked_for_nodes_at_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    assert nodes.main(["tcp://127.0.0.1:9", "--job", "x"]) == 2
    assert "leave the addresses out" in capsys.readouterr().err


def test_without_a_job_the_error_names_the_addresses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("multiworld.elastic.control.client.unix_sockets", str)
    assert nodes.main([]) == 1
    assert "Nodes at addresses are listed by multiworld nodes tcp://HOST:PORT,..." in capsys.readouterr().err
    assert nodes.main(["--job", "another"]) == 1
    assert "Nodes at addresses" not in capsys.readouterr().err
