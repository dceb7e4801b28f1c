"""What is done to a service, ours and the peer's alike, by name: each scenario returns figures.

A side is a process of its own: ``run_side`` is what it does, and it says the figures as JSON in its last line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from . import bad_input, changes, command, cut, faults, idleness, pressure, soak, traffic, web
from .system import Deployer

__all__ = ["SCENARIOS", "run_side"]

Scenario = Callable[[Deployer, Mapping[str, Any]], Awaitable[dict[str, float]]]
SCENARIOS: dict[str, Scenario] = {
    "closed": traffic.closed,
    "added": traffic.added,
    "burst": traffic.burst,
    "slow": traffic.slow_replica,
    "kill": faults.one_of_several,
    "only": faults.only_one,
    "pair": faults.all_at_once,
    "newcomer": faults.newcomer,
    "donor": faults.donor,
    "readiness": faults.readiness,
    "scale": changes.scale_out_and_in,
    "update": changes.update,
    "overload": pressure.overload,
    "idle": idleness.idle,
    "soak": soak.soak,
    "http": web.http,
    "cut": cut.cut,
    "lose": command.lose,
    "bad": bad_input.bad_input,
}


async def run_side(deploy: Deployer, scenario: str, options: str) -> int:
    """Run a scenario, given as on a command line, and write its figures to the descriptor in ``FIGURES_FD``."""
    figures = await SCENARIOS[scenario](deploy, json.loads(options))
    with os.fdopen(int(os.environ["FIGURES_FD"]), "w") as out:
        json.dump(figures, out)
    return 0
