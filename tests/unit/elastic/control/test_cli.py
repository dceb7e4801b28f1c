"""What the commands for a running job print, and what they say about lines that make no sense."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from multiworld.cli.agents import agents_table
from multiworld.cli.cluster import ranges, table
from multiworld.cli.main import COMMANDS, main
from multiworld.cli.status import render
from tests.unit.elastic.control.test_questions import job_status, three

CLUSTER = ("status", "agents", "events", "logs", "drain", "kill", "scale")


def test_columns_are_as_wide_as_they_must_be() -> None:
    assert table(("A", "LONG"), [(1, "x"), (1000, "")]) == "A     LONG\n1     x\n1000"


@pytest.mark.parametrize(
    ("numbers", "text"), [([], "-"), ([3], "3"), ([0, 1, 2], "0-2"), ([5, 0, 1, 7, 6], "0-1,5-7"), ([0, 2], "0,2")]
)
def test_ranks_are_shown_as_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_the_status_for_people() -> None:
    some = three()
    some.fail(1)
    some.carry_out(some.job.scale(1, some.now))
    lines = render(job_status(some, page="http://127.0.0.1:1/"), workers=True).splitlines()
    assert lines[:3] == [
        "job job7: running, generation 2, restart policy worker",
        "hosts with ranks: 1 (--nnodes 1:2, scaled to 1), workers running: 2 of 2, worlds: 0, restarts: 1",
        "page: http://127.0.0.1:1/",
    ]
    assert lines[4].split() == ["AGENT", "HOST", "ADDRESS", "PID", "STATE", "RANKS", "WORLDS", "RESTARTS", "DEVICES"]
    assert lines[5].split() == ["0*", "a", "127.0.0.1:1", "1", "active", "0-1", "0", "1", "-"]
    assert lines[6].split() == ["1", "b", "127.0.0.1:1", "1", "waiting", "-", "0", "0", "-"]
    assert lines[-3].split() == ["RANK", "AGENT", "HOST", "PID", "STATE", "RESTARTS", "WORLDS"]
    assert lines[-1].split() == ["1", "0", "a", "-", "running", "1", "-"]
    known = replace(job_status(some), workers=tuple(replace(each, pid=71) for each in job_status(some).workers))
    assert render(known, workers=True).splitlines()[-1].split() == ["1", "0", "a", "71", "running", "1", "-"]


def test_the_agents_for_people_are_one_a_line() -> None:
    assert len(agents_table(job_status(three())).splitlines()) == 4


@pytest.mark.parametrize("command", CLUSTER)
def test_a_job_that_does_not_run_here_is_one_line_and_status_1(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    operands = {"drain": ["0"], "kill": ["0"], "scale": ["1"]}.get(command, [])
    assert main([command, "--job", "no such job", *operands]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(rf"multiworld {command}: no agent of the job 'no such job' .*\n", captured.err)


def test_an_endpoint_where_nobody_listens_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--endpoint", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == "multiworld status: 127.0.0.1:1: Connection refused\n"


@pytest.mark.parametrize(
    "line",
    [
        ["kill"],
        ["kill", "0", "--agent", "1"],
        ["drain"],
        ["scale", "many"],
        ["logs", "--last", "-1"],
        ["status", "--endpoint", "127.0.0.1"],
        ["--ip", "127.0.0.1", "get_agent_list"],
        ["--ip", "127.0.0.1", "--port", "1", "status"],
    ],
)
def test_a_line_that_makes_no_sense_has_status_2(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line)
    assert ended.value.code == 2
    assert capsys.readouterr().err


def test_the_names_of_oobleck_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ip", "127.0.0.1", "--port", "1", "get_agent_list"]) == 1
    assert main(["--ip", "::1", "--port", "1", "kill_agent", "--agent_index", "0"]) == 1
    agents, kill = capsys.readouterr().err.splitlines()
    assert agents.startswith("multiworld agents: 127.0.0.1:1: ")
    assert kill.startswith("multiworld kill: ::1:1: ")


@pytest.mark.parametrize("command", CLUSTER)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "Exit status:" in capsys.readouterr().out
    assert command in COMMANDS
