"""Measure messages between two simulated hosts, network namespaces joined by virtual Ethernet, beside raw Gloo."""

from __future__ import annotations

from collections.abc import Callable

from ..testing import Network, hosts_available
from . import pair
from .options import Options, Size
from .report import Line
from .samples import lane_names
from .team import Team

PREFIX = "over veth: "


def messages(
    backend: str, echo: Size, stream: Size, options: Options, bounds: pair.Bounds, note: Callable[[str], None]
) -> list[Line]:
    """Return round trips of one size and the throughput of another; where there can be no hosts, lines that say why."""
    lanes = lane_names([backend])
    reason = hosts_available()
    if reason is not None:
        names = [f"round trip {echo.label}", stream.label]
        return [Line.not_measured(f"{PREFIX}{name}, {lane}", reason) for name in names for lane in lanes]
    with Network(2) as network, Team(pair.MEMBER, 2, network.hosts) as team:
        team.all("open", backends=[backend])
        note(f"{PREFIX}round trip at {echo.label}")
        lines = pair.round_trips(team, echo, lanes, options, bounds, PREFIX)
        note(f"{PREFIX}throughput at {stream.label}")
        return lines + pair.throughput(team, stream, lanes, options, bounds, PREFIX)
