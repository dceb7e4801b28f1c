"""The line that says where the coordinator is."""

from __future__ import annotations

import pytest

from multiworld.elastic.hosts.announcement import announcement, find_coordinator


@pytest.mark.parametrize(("host", "port"), [("10.0.0.1", 41739), ("fd00::1", 1)])
@pytest.mark.parametrize("page", [None, "http://127.0.0.1:39079/"])
def test_a_program_finds_what_people_read(host: str, port: int, page: str | None) -> None:
    line = announcement("my job", host, port, page)
    assert find_coordinator(f"[node1] multiworld train: {line}\n") == (host, port)
    assert "\n" not in line
    assert line.endswith("; 'multiworld status --job 'my job'' shows how it is")
    assert (page or "page") in line or page is None


@pytest.mark.parametrize("line", ["", "job x", "the coordinator 10.0.0.1:1 is lost", "job x, coordinator nowhere"])
def test_other_lines_are_none(line: str) -> None:
    assert find_coordinator(line) is None
