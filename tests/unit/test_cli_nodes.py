"""``multiworld nodes``: the table, and what is refused before anything is started."""

from __future__ import annotations

import pytest

from multiworld.cli import nodes
from multiworld.remote.connecting.listing import Listed
from multiworld.remote.served import NodeState

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
    assert nodes.main(["nowhere"]) == 2
    assert "multiworld nodes: bad store address 'tcp://nowhere'" in capsys.readouterr().err


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
