"""Cut the network between two simulated hosts in four ways, and measure when both sides know. Needs root."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from multiworld.testing import Crew, Host, Network, WorkerGroup, hosts_available

from .report import Report, arguments
from .roster import leave_all

KNOWN_S = 2.5
CUTS: Mapping[str, Callable[[Host, Host], float]] = {
    "cable pulled": lambda here, there: here.cut(),
    "packets dropped both ways": lambda here, there: here.drop(to=there, direction="both"),
    "packets dropped to the other": lambda here, there: here.drop(to=there, direction="out"),
    "packets dropped from the other": lambda here, there: here.drop(to=there, direction="in"),
}


def trial(network: Network, crew: Crew, report: Report, number: int, backend: str) -> None:
    world = f"w{number}"
    way = list(CUTS)[number % len(CUTS)]
    crew.form(world, [0, 1], backend=backend)
    calls = [crew[rank].call("recv", world=world, src=1 - rank).started() for rank in (0, 1)]
    cut_at = CUTS[way](network.hosts[0], network.hosts[1])
    for call in calls:
        outcome = call.outcome()
        report.latency(f"{way} until pending operation raised", outcome.at - cut_at, limit_s=KNOWN_S)
        report.count("operations that did not raise PeerUnreachableError", int(outcome.error != "PeerUnreachableError"))
    network.heal()
    leave_all(crew.members[:2], [world])


def lossy(network: Network, crew: Crew, report: Report, percent: float, num_rounds: int, backend: str) -> None:
    """Lose packets for some time: all operations end well, and nothing breaks."""
    crew.form("lossy", [0, 1], backend=backend)
    network.lose(percent)
    plays = [crew[rank].call("play", world="lossy", kind="all_reduce", num_rounds=num_rounds) for rank in (0, 1)]
    for play in plays:
        outcome = play.outcome(600)
        report.count(f"members for whom {percent:g} % loss broke something", int(outcome.value != num_rounds))
    network.heal()


def main() -> int:
    parser = arguments(__doc__, trials=40)
    parser.add_argument("--loss-rounds", type=int, default=300, help="all_reduces under 5 %% loss (default 300)")
    options = parser.parse_args()
    if (reason := hosts_available()) is not None:
        print(f"cannot run: {reason}", file=sys.stderr)
        return 2
    report = Report(f"cut between two hosts, {options.trials} times, {options.backend}")
    with Network(3) as network, WorkerGroup() as workers:
        crew = Crew(workers, 3, hosts=network.hosts, store_host=2)
        for number in range(options.trials):
            trial(network, crew, report, number, options.backend)
        lossy(network, crew, report, 5.0, options.loss_rounds, options.backend)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
