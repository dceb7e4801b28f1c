"""What a hostfile means, and where one that does not parse is wrong."""

from __future__ import annotations

import pytest

from multiworld.elastic.hosts.hostfile import HostfileError, HostLine, parse_hostfile

FILE = """\
# the cluster

node1 slots=2 devices=0,1 port=22
node2   slots=4     # all its devices
me@node3 devices=1,3
[fd00::1] port=2222
node1 port=10001
10.0.0.7
"""


def test_each_line_is_a_host_with_its_workers_devices_and_port() -> None:
    assert parse_hostfile(FILE, "hosts") == (
        HostLine(name="node1", slots=2, devices=(0, 1), port=22),
        HostLine(name="node2", slots=4),
        HostLine(name="me@node3", slots=2, devices=(1, 3)),
        HostLine(name="fd00::1", port=2222),
        HostLine(name="node1", port=10001),
        HostLine(name="10.0.0.7"),
    )


def test_a_host_is_reached_by_its_name_without_the_user_and_an_ipv6_address_in_brackets() -> None:
    assert [each.address for each in parse_hostfile("me@node1\nyou@[fd00::1]\n", "hosts")] == ["node1", "[fd00::1]"]


def test_names_that_mean_every_host_to_itself_are_known() -> None:
    hosts = parse_hostfile("localhost\n127.0.1.1\n[::1]\nnode1\n127node\n", "hosts")
    assert [each.is_only_for_itself for each in hosts] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("text", "line", "column", "reason"),
    [
        ("", 1, 1, "no host is named"),
        ("# a\n\n", 2, 1, "no host is named"),
        ("slots=2\n", 1, 1, "'slots=2' is no host"),
        ("a\n  -oProxyCommand=x\n", 2, 3, "'-oProxyCommand=x' is no host"),
        ("a,b slots=2\n", 1, 1, "'a,b' is no host"),
        ("me@\n", 1, 1, "'me@' is no host"),
        ("a slots=two\n", 1, 9, "slots=two: expected a number of workers, at least 1"),
        ("a slots=0\n", 1, 9, "slots=0: expected"),
        ("a slots=-1\n", 1, 9, "slots=-1: expected"),
        ("a slots=²\n", 1, 9, "slots=²: expected"),
        ("a slots=\n", 1, 9, "slots=: expected"),
        ("a slots = 2\n", 1, 3, "'slots': expected slots= or devices= or port=, without spaces"),
        ("a slot=2\n", 1, 3, "'slot=2': expected slots= or devices= or port="),
        ("a slots=2 slots=2\n", 1, 11, "slots= stands twice in this line"),
        ("a port=22 gpus\n", 1, 11, "'gpus': expected"),
        ("a devices=0,x\n", 1, 13, "devices=0,x: expected numbers of devices, such as 0,1"),
        ("a devices=0,,1\n", 1, 13, "devices=0,,1: expected numbers"),
        ("a devices=0,1,0\n", 1, 15, "devices=0,1,0: 0 stands twice"),
        ("a slots=3 devices=0,1\n", 1, 9, "slots=3, but devices=0,1 names 2"),
        ("a port=0\n", 1, 8, "port=0: expected a port, 1 to 65535"),
        ("a port=65536\n", 1, 8, "port=65536: expected a port"),
        ("a\nb\na slots=2\n", 3, 1, "a stands in line 1 already, with the same port"),
        ("a port=1\n  a port=1\n", 2, 3, "a stands in line 1 already"),
    ],
)
def test_what_does_not_parse_is_refused_with_line_and_column(text: str, line: int, column: int, reason: str) -> None:
    with pytest.raises(HostfileError) as caught:
        parse_hostfile(text, "hosts")
    assert (caught.value.line, caught.value.column) == (line, column)
    assert str(caught.value).startswith(f"--hostfile hosts, line {line}, column {column}: {reason}")
