"""What the page on training on a cluster shows: its hostfile, the coordinator's line, Oobleck's list."""

from __future__ import annotations

import re

import pytest

from multiworld.cli.oobleck import agent_list
from multiworld.elastic.hosts.announcement import announcement, find_coordinator
from multiworld.elastic.hosts.hostfile import HostfileError, HostLine, parse_hostfile
from tests.examples.test_docs import ROOT
from tests.unit.test_cli_oobleck import AGENT

PAGE = (ROOT / "docs/cluster.md").read_text()


HOSTFILE = PAGE.partition('title="hosts"\n')[2].partition("```")[0]


def test_the_hostfile_of_the_page_is_one() -> None:
    assert parse_hostfile(HOSTFILE, "hosts") == (
        HostLine(name="node1", slots=2, devices=(0, 1)),
        HostLine(name="node2", slots=2, devices=(0, 1), port=2222),
        HostLine(name="alice@node3", slots=4),
    )


def test_the_error_of_the_page_is_what_is_said_of_such_a_file() -> None:
    with pytest.raises(HostfileError) as caught:
        parse_hostfile(HOSTFILE.replace("node2        slots=2", "node2        slots=two"), "hosts")
    assert f"`{caught.value}`" in PAGE


def test_the_line_of_the_page_is_the_coordinators() -> None:
    line = next(each for each in PAGE.splitlines() if each.startswith("[node1] multiworld train: "))
    assert find_coordinator(line) == ("10.0.0.1", 41739)
    said = announcement("gpt2", "10.0.0.1", 41739, "http://127.0.0.1:39079/")
    assert line == f"[node1] multiworld train: {said}"
    pattern = re.search(r"regular expression `([^`]*)`", PAGE)
    assert pattern is not None
    assert re.search(pattern[1], line) is not None


def test_the_list_of_the_page_is_what_is_printed() -> None:
    facts = (("node1", 41739, "01"), ("node2", 33799, "01"), ("node3", 33183, "0123"))
    agents = [
        type(AGENT)(
            **{**AGENT.__dict__, "index": index, "hostname": name, "port": port, "device_indices": tuple(devices)}
        )
        for index, (name, port, devices) in enumerate(facts)
    ]
    assert agent_list(agents) in PAGE
