"""Block main threads, hold interpreter locks and overload the machine for long, and see that no world breaks."""

from __future__ import annotations

import sys

from multiworld.testing import Crew, WorkerGroup

from .report import Report, arguments


def run_one(report: Report, command: str, seconds: float, backend: str) -> None:
    """One member of three misbehaves while another waits for it, and sends when it is done."""
    with WorkerGroup() as workers:
        crew = Crew(workers, 3)
        crew.form("w", backend=backend)
        receive = crew[0].call("recv", world="w", src=1).started()
        crew[1].call(command, seconds=seconds).result(seconds + 60)
        crew[1].call("send", world="w", dst=0, value=3.0)
        report.count(
            f"receives that failed beside {command} for {seconds:g} s", int(receive.outcome().error is not None)
        )
        finish(crew, report, f"worlds broken by {command} for {seconds:g} s")


def run_all(report: Report, size: int, seconds: float, backend: str) -> None:
    """All members compute at once, on fewer cores than there are members."""
    with WorkerGroup() as workers:
        crew = Crew(workers, size)
        crew.form("w", backend=backend)
        for call in [member.call("burn", seconds=seconds) for member in crew.members]:
            call.result(seconds + 120)
        finish(crew, report, f"worlds broken by {size} busy processes for {seconds:g} s")


def finish(crew: Crew, report: Report, name: str) -> None:
    outcomes = [member.call("collective", world="w", kind="all_reduce") for member in crew.members]
    failed = sum(call.outcome(60).error is not None for call in outcomes)
    report.count(name, max(failed, sum(member.is_broken("w") for member in crew.members)))


def main() -> int:
    parser = arguments(__doc__, trials=1)
    parser.add_argument("--blocked", type=float, default=60.0, help="seconds of a blocked main thread (default 60)")
    parser.add_argument("--gil", type=float, default=10.0, help="seconds of a held interpreter lock (default 10)")
    parser.add_argument("--burn", type=float, default=60.0, help="seconds of 8 busy processes (default 60)")
    options = parser.parse_args()
    report = Report(f"busy is not dead, {options.trials} times, default lease, {options.backend}")
    for _ in range(options.trials):
        run_one(report, "block_main_thread", options.blocked, options.backend)
        run_one(report, "hold_gil", options.gil, options.backend)
        run_all(report, 8, options.burn, options.backend)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
