"""The lines of the table: which scenario each comes from, and what must hold of it."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Sequence
from statistics import median

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import Pairs
from multiworld.testing import Network, hosts_available

from .cut import far_host
from .sides import ASYNCIO_FLOOR, BLOCKING_FLOOR, OURS, RAY, RAY_TUNED, peers
from .trials import COUNTS, Trials
from .waking import REST_S

__all__ = ["BESIDE", "LINES", "NOT_ALTERNATED"]

KB4, MB4 = 4096, 4 << 20
SERVICE_S = 0.005
LEASE_S = 2.0
US, MS, MB = 1e6, 1e3, 1e-6
SIZES = {"4 kB": (KB4, 8.0), "4 MB": (MB4, 5.0)}
ROUND_S = 300.0
PEER_FAULTS = 3
Measure = Callable[[argparse.Namespace], list[Line]]


def two_stages(options: argparse.Namespace) -> list[Line]:
    lines: list[Line] = []
    for name, (size_bytes, times) in SIZES.items():
        sides = [OURS, ASYNCIO_FLOOR, BLOCKING_FLOOR, *peers(options.ray)]
        trials = Trials(name, "closed", sides, peer=RAY_TUNED, timeout_s=ROUND_S)
        trials.run({"size_bytes": size_bytes, "seconds": options.seconds}, options.alternations)
        for clients in (1, 16):
            at_once = f"{clients} at once"
            rate, p50 = f"rate_{clients}", f"p50_s_{clients}"
            faster, slower = Bound.ratio_at_least(times), Bound.ratio_at_most(1 / times)
            lines.append(trials.line(f"{at_once}, p50", p50, "ms", slower, scale=MS, others=[RAY]))
            lines.append(trials.line(f"{at_once}, throughput", rate, "/s", faster, others=[RAY]))
            of_floor = Bound.ratio_at_least(0.5)
            beside = f"{at_once}, throughput beside {ASYNCIO_FLOOR.name}"
            floors = [BLOCKING_FLOOR.name]
            lines.append(trials.line(beside, rate, "/s", of_floor, peer=ASYNCIO_FLOOR.name, others=floors))
        lines += trials.counts(("lost_1", "lost_16"))
    return lines


def http(options: argparse.Namespace) -> list[Line]:
    lines: list[Line] = []
    for name, size_bytes in (("4 kB", KB4), ("4 MB", MB4)):
        sides = [OURS, *peers(options.ray)]
        trials = Trials(f"HTTP, {name}, 16 at once", "http", sides, peer=RAY_TUNED, timeout_s=ROUND_S)
        trials.run({"size_bytes": size_bytes, "seconds": options.seconds, "clients": 16}, options.alternations)
        bound = Bound.ratio_at_least(4.0) if size_bytes == KB4 else None
        lines.append(trials.line("throughput", "rate", "/s", bound, others=[RAY]))
        lines.append(trials.line("p50", "p50_s", "ms", scale=MS, others=[RAY]))
        lines += trials.counts(("lost",))
    return lines


def killed(options: argparse.Namespace) -> list[Line]:
    return _one_of_two(options, f"{options.kills} kills of one of two", signal.SIGKILL, options.kills)


def stopped(options: argparse.Namespace) -> list[Line]:
    return _one_of_two(options, "one of two stopped", signal.SIGSTOP, max(5, options.alternations))


def _one_of_two(options: argparse.Namespace, name: str, signum: int, times: int) -> list[Line]:
    is_stop = signum == signal.SIGSTOP
    window_s = LEASE_S + 1.0 if is_stop else 1.0
    settings = {"times": times, "service_s": SERVICE_S, "seed": options.seed, "signal": signum, "window_s": window_s}
    trials = Trials(name, "kill", [OURS, *peers(options.ray)[:1]], peer=RAY_TUNED, timeout_s=120 + 15.0 * times)
    trials.run(settings, 1, peer_options={"times": 1 if is_stop else min(times, PEER_FAULTS)})
    p99_s = 0.25 + SERVICE_S
    if is_stop:
        blip = Bound.at_most((LEASE_S + 0.5 + SERVICE_S) * MS)
        timed = [
            trials.line("longest answer in the 3 s after", "worst_after_s", "ms", blip, scale=MS),
            trials.line("until replaced", "replaced_s", "s"),
            trials.line("until replaced, at worst", "replaced_worst_s", "s"),
        ]
    else:
        timed = [
            trials.line("p99 in the second after", "p99_after_s", "ms", Bound.at_most(p99_s * MS), scale=MS),
            trials.line("longest answer in the second after", "worst_after_s", "ms", scale=MS),
            trials.line("until replaced and at full throughput", "full_s", "s", Bound.at_most(2.0)),
            trials.line("the same, at worst", "full_worst_s", "s"),
        ]
    before = trials.line("p99 before", "p99_before_s", "ms", scale=MS)
    return [*trials.counts(), before, *timed, trials.line("capacity", "capacity", "/s")]


def only_replica(options: argparse.Namespace) -> list[Line]:
    settings = {"times": max(5, options.alternations), "service_s": SERVICE_S}
    trials = Trials(
        "the only replica killed", "only", [OURS, *peers(options.ray)[:1]], peer=RAY_TUNED, timeout_s=ROUND_S
    )
    trials.run(settings, 1, peer_options={"times": 1})
    silent = trials.line("longest time without an answer", "silent_s", "s", Bound.at_most(1.5))
    return [*trials.counts(), silent, trials.line("the same, at worst", "silent_worst_s", "s")]


def several(options: argparse.Namespace) -> list[Line]:
    times, seed = max(5, options.alternations), options.seed
    lines: list[Line] = []
    for name, scenario, key, settings in (
        ("two replicas killed at once", "pair", "silent_s", {}),
        ("a new replica killed during scale-out", "newcomer", "scaled_s", {}),
        (
            "the replica that hands its weights over killed",
            "donor",
            "scaled_s",
            {"seed": seed, "weights_bytes": 50_000_000, "within_s": 0.3},
        ),
    ):
        trials = Trials(name, scenario, [OURS], timeout_s=ROUND_S)
        trials.run({"times": times, "service_s": SERVICE_S, **settings}, 1)
        what = "longest time without an answer" if key == "silent_s" else "until the scale-out was done"
        lines += [*trials.counts(), trials.line(what, key, "s")]
    return lines


def changes(options: argparse.Namespace) -> list[Line]:
    lines: list[Line] = []
    cases = {"scale": {"out": "1 to 3", "in": "3 to 1"}, "update": {"update": "rolling update"}}
    for scenario, names in cases.items():
        sides = [OURS, *(peers(options.ray)[:1] if scenario == "scale" else [])]
        trials = Trials(scenario, scenario, sides, peer=RAY_TUNED, timeout_s=ROUND_S)
        trials.run({"service_s": SERVICE_S}, options.alternations)
        lines += trials.counts()
        for key, name in names.items():
            lines.append(trials.line(f"{name}, took", f"took_s_{key}", "s"))
            least = Bound(at="least", limit=0.95)
            lines.append(trials.line(f"{name}, least throughput over what is asked", f"least_{key}", "", least))
            lines.append(_beside_before(trials, name, f"p99_s_{key}"))
    return lines


def _beside_before(trials: Trials, name: str, key: str) -> Line:
    """Return the line of a latency over what it was before the change, ours and the peer's."""

    def ratio(side: str) -> float | None:
        found = [each[side][key] / each[side]["p99_s_before"] for each in trials.rounds if key in each.get(side, {})]
        return median(found) if found else None

    line = f"{trials.name}: {name}, p99 over that before"
    value = ratio(OURS.name)
    if value is None:
        return Line.not_measured(line, "no round of ours succeeded")
    shown = {"before, ms": "p99_s_before", "during, ms": key}
    details = {text: median(trials.values(each)) * MS for text, each in shown.items()}
    return Line(name=line, unit="", value=value, reference=ratio(RAY_TUNED), bound=Bound.at_most(2.0), details=details)


def overload(options: argparse.Namespace) -> list[Line]:
    seconds = options.overload_s
    trials = Trials(
        f"2x overload for {seconds:g} s",
        "overload",
        [OURS, *peers(options.ray)[:1]],
        peer=RAY_TUNED,
        timeout_s=ROUND_S + 3 * seconds,
    )
    trials.run({"service_s": SERVICE_S, "seconds": seconds}, 1)
    return [
        *trials.counts(),
        trials.line("goodput over capacity", "goodput", "", Bound(at="least", limit=0.95)),
        trials.line("refused (429 over HTTP)", "refused", ""),
        trials.line("p99 of the answered", "p99_s", "s"),
        trials.line("memory, most beyond the beginning", "memory_bytes", "MB", Bound.at_most(256), scale=MB),
        trials.line("memory, growth once it had set in", "growth_bytes", "MB", Bound.at_most(32), scale=MB),
        trials.line("back to normal after", "normal_s", "s", Bound.at_most(2.0)),
    ]


def added(options: argparse.Namespace) -> list[Line]:
    sides = [OURS, ASYNCIO_FLOOR, BLOCKING_FLOOR]
    trials = Trials("three stages of 5 ms", "added", sides, timeout_s=ROUND_S)
    trials.run({"times": 200}, options.alternations)
    own = [found[OURS.name] for found in trials.rounds if OURS.name in found]
    if not own:
        return trials.counts(("wrong",))
    pairs = Pairs.of([(each["pipeline_s"] * MS, each["direct_s"] * MS) for each in own])
    floors = {f"{side.name} adds, ms": _added_ms(trials, side.name) for side in sides[1:]}
    bound = Bound.above_reference_at_most(1.0)
    name = f"{trials.name}: p50 beside one process that calls the modules"
    woken = [(each["woken_s"] * US, each["awake_s"] * US) for each in own]
    waking = f"some Python after {REST_S * MS:g} ms of sleep, beside the same at once again"
    return [
        Line.of_pairs(name, "ms", pairs, bound, {text: value for text, value in floors.items() if value is not None}),
        Line.of_pairs(waking, "µs", Pairs.of(woken)),
        *trials.counts(("wrong",)),
    ]


def _added_ms(trials: Trials, side: str) -> float | None:
    """Return what the same modules take more where a message over TCP, and nothing else, is between two of them."""
    pairs = zip(trials.values("pipeline_s", side), trials.values("direct_s", side), strict=True)
    added = [(pipeline - direct) * MS for pipeline, direct in pairs]
    return median(added) if added else None


def idle(options: argparse.Namespace) -> list[Line]:
    trials = Trials("idle, two stages", "idle", [OURS, *peers(options.ray)[:1]], peer=RAY_TUNED, timeout_s=ROUND_S)
    trials.run({"seconds": 10.0}, 1)
    return [
        trials.line("processor", "cpu", "% of a core", Bound.at_most(2.0)),
        trials.line("processes beside the replicas", "beside", "", Bound.at_most(3)),
        trials.line("a process's own memory, at most", "private_bytes", "MB", Bound.at_most(40), scale=MB),
        trials.line("resident memory of all, shared pages each time", "rss_bytes", "MB", scale=MB),
        *trials.counts(()),
    ]


def burst(options: argparse.Namespace) -> list[Line]:
    trials = Trials("burst of 200", "burst", [OURS, *peers(options.ray)[:1]], peer=RAY_TUNED, timeout_s=ROUND_S)
    trials.run({"service_s": SERVICE_S}, options.alternations)
    return [
        *trials.counts(),
        trials.line("drained after", "drained_s", "s"),
        _over(trials, "drained over ideal", "drained_s", "ideal_s", 1.1),
    ]


def slow(options: argparse.Namespace) -> list[Line]:
    trials = Trials("one of three 4 times slower", "slow", [OURS], timeout_s=ROUND_S)
    trials.run({"service_s": SERVICE_S, "seconds": 10.0, "seed": options.seed}, options.alternations)
    return [
        *trials.counts(),
        trials.line("p99", "p99_s", "ms", scale=MS),
        _over(trials, "p99 over the oracle's", "p99_s", "oracle_p99_s", 1.5),
    ]


def _over(trials: Trials, what: str, key: str, ideal: str, limit: float) -> Line:
    own = [found[OURS.name] for found in trials.rounds if OURS.name in found]
    if not own:
        return Line.not_measured(f"{trials.name}: {what}", "no round of ours succeeded")
    value = median([each[key] / each[ideal] for each in own])
    return Line(name=f"{trials.name}: {what}", unit="", value=value, bound=Bound.at_most(limit))


def readiness(options: argparse.Namespace) -> list[Line]:
    trials = Trials("last replica of a stage gone", "readiness", [OURS], timeout_s=ROUND_S)
    trials.run({"times": max(5, options.alternations), "service_s": SERVICE_S, "setup_s": 3.0}, 1)
    known = trials.line("until not ready", "known_s", "s", Bound.at_most(1.0))
    worst = trials.line("the same, at worst", "known_worst_s", "s", Bound.at_most(1.0))
    return [known, worst, *trials.counts(())]


def network_cut(options: argparse.Namespace) -> list[Line]:
    name = "network cut between two hosts"
    if reason := hosts_available():
        return [Line.not_measured(name, reason)]
    trials = Trials(name, "cut", [OURS], timeout_s=ROUND_S)
    for _ in range(options.alternations):
        with Network(2) as network:
            near, far = network.hosts
            command, environment = far_host(near.address, far.address)
            far.popen(*command, env=environment)
            trials.sides = [OURS.inside(near.netns, {"MULTIWORLD_TOKEN": environment["MULTIWORLD_TOKEN"]})]
            trials.run({"service_s": SERVICE_S, "far": far.address, "address": near.address}, 1)
    blip = Bound.at_most(LEASE_S + 0.5 + SERVICE_S)
    return [
        *trials.counts(),
        trials.line("longest answer", "worst_s", "s", blip),
        trials.line("longest time without an answer", "silent_s", "s", blip),
        trials.line("until replaced", "replaced_s", "s"),
    ]


def command(options: argparse.Namespace) -> list[Line]:
    lines: list[Line] = []
    for what in ("gateway", "controller"):
        trials = Trials(f"{what} killed", "lose", [OURS], timeout_s=ROUND_S)
        trials.run({"what": what}, options.alternations)
        lines += trials.counts(("lost", "wrong"))
        refused = trials.line("answers other than 200", "answers_refused", "", Bound.at_most(0), reduce=max)
        lines += [
            refused,
            trials.line("until all run again", "whole_s", "s"),
            trials.line("longest answer, retries included", "worst_s", "s"),
            trials.line("then a replica killed, until all run again", "whole_s_replica", "s"),
            trials.line("then a replica killed, longest answer", "worst_s_replica", "s", Bound.at_most(1.5)),
        ]
    return lines


def bad_input(_: argparse.Namespace) -> list[Line]:
    trials = Trials("bad input", "bad", [OURS], timeout_s=ROUND_S)
    trials.run({}, 1)
    return trials.counts(("unclear", "harmed"))


def soak(options: argparse.Namespace) -> list[Line]:
    minutes = options.soak_minutes
    trials = Trials(f"{minutes:g} minutes of faults", "soak", [OURS], timeout_s=180 + 120 * minutes)
    trials.run({"minutes": minutes, "every_s": 20.0, "service_s": SERVICE_S, "seed": options.seed}, 1)
    return [
        *trials.counts((*COUNTS, "hangs")),
        trials.line("faults and changes", "events", ""),
        trials.line("throughput over that without faults", "throughput", "", Bound(at="least", limit=0.97)),
        trials.line("p99", "p99_s", "ms", scale=MS),
        trials.line("growth of resident memory", "grown_rss_bytes", "MB", Bound.at_most(64), scale=MB),
        trials.line("growth of descriptors", "grown_descriptors", "", Bound.at_most(16)),
        trials.line("growth of threads", "grown_threads", "", Bound.at_most(4)),
    ]


LINES: dict[str, tuple[str, Measure]] = {
    "trivial": ("two trivial stages, 4 kB and 4 MB, one and 16 at once", two_stages),
    "kill": ("one of two replicas in a rhombus killed again and again, at 70 % of capacity", killed),
    "stop": ("one of two replicas in a rhombus stopped, at 70 % of capacity", stopped),
    "only": ("the only replica of a stage killed, at 70 % of capacity", only_replica),
    "several": ("two replicas at once, a new replica, and the donor of weights killed", several),
    "changes": ("scale-out, scale-in and a rolling update, at 70 % of capacity", changes),
    "overload": ("twice as many requests as can be answered", overload),
    "added": ("three stages beside one process that calls the three modules", added),
    "idle": ("two trivial stages that nobody asks", idle),
    "burst": ("200 requests at once for two replicas", burst),
    "slow": ("one of three replicas 4 times slower, at 70 % of capacity", slow),
    "readiness": ("the last replica of a stage killed, and slow to come back", readiness),
    "cut": ("the network cut between two hosts, each with a replica (needs root)", network_cut),
    "http": ("two trivial stages over HTTP", http),
    "command": ("a gateway, or the controller, of multiworld serve killed while clients ask over HTTP", command),
    "bad": ("bad input over HTTP, and a good request after each", bad_input),
    "soak": ("a fault or a change every 20 s, from a seeded plan", soak),
}
BESIDE = {"added": "one process", "trivial": f"{RAY_TUNED}, or as named"}
NOT_ALTERNATED: Sequence[str] = ("kill", "stop", "only", "several", "overload", "idle", "readiness", "bad", "soak")
