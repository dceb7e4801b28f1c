"""``oobleck``: what it prints of a job, and the lines that it refuses."""

from __future__ import annotations

import pytest

from multiworld.cli.main import main
from multiworld.cli.oobleck import agent_list
from multiworld.elastic.agent.environment import device_indices
from multiworld.elastic.job.status import AgentStatus

AGENT = AgentStatus(
    index=0,
    id="a",
    hostname="node1",
    host="10.0.0.1",
    port=10000,
    pid=1,
    role="default",
    devices="2 × GPU",
    state="active",
    coordinates=True,
    node_rank=0,
    num_workers=2,
    worlds=(),
    restarts=0,
    device_indices=("0", "1"),
)


def test_the_list_is_printed_as_oobleck_prints_it() -> None:
    waiting = AgentStatus(**{**AGENT.__dict__, "index": 1, "hostname": "fd00::1", "state": "waiting"})
    assert agent_list([AGENT, waiting]) == (
        "=== Agents ===\n"
        "[0] IP: node1:10000 Status: up (device indices: 0,1)\n"
        "[1] IP: [fd00::1]:10000 Status: waiting (device indices: 0,1)"
    )


@pytest.mark.parametrize(
    ("variables", "num_devices", "indices"),
    [
        ({}, 4, ("0", "1", "2", "3")),
        ({}, 0, ("0", "1")),
        ({"CUDA_VISIBLE_DEVICES": "2, 3"}, 4, ("2", "3")),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f"}, 4, ("GPU-8f",)),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0, ("0", "1")),
    ],
)
def test_the_devices_of_an_agent_are_those_that_its_two_workers_see(
    variables: dict[str, str], num_devices: int, indices: tuple[str, ...]
) -> None:
    assert device_indices(variables, num_devices, 2) == indices


@pytest.mark.parametrize(
    "line",
    [
        ["get_agent_list"],
        ["--ip", "127.0.0.1", "--port", "1"],
        ["--ip", "127.0.0.1", "--port", "x", "get_agent_list"],
        ["--ip", "127.0.0.1", "--port", "1", "kill_agent"],
        ["--ip", "127.0.0.1", "--port", "1", "get_agent_list", "--agent_index", "1"],
        ["--ip", "127.0.0.1", "--port", "1", "list"],
    ],
)
def test_a_line_that_makes_no_sense_has_status_2(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["oobleck", *line])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("multiworld oobleck: ")


def test_an_address_where_nobody_listens_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["oobleck", "--ip", "127.0.0.1", "--port", "1", "get_agent_list"]) == 1
    assert capsys.readouterr().err == "multiworld oobleck: 127.0.0.1:1: Connection refused\n"
