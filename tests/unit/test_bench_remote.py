"""Remote tensors beside their peers: lines of pairs, peers that are missing, and scenarios on nodes that are played."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from benchmarks.remote import kill as killing
from benchmarks.remote.comparison import Comparison
from benchmarks.remote.kill import VICTIM, kill
from benchmarks.remote.scenarios import copies, meanwhile, operations, round_trip
from benchmarks.remote.sides import Missing, Peer, find_peers
from benchmarks.remote.system import SHAPE
from benchmarks.side import Side, SideFailed
from multiworld.bench.report import Bound

Rounds = Sequence["dict[str, float] | None"]


class Played(Side):
    """Gives the figures that were written for it, one round after the other."""

    def __init__(self, name: str, rounds: Rounds) -> None:
        super().__init__(name=name, command=())
        object.__setattr__(self, "rounds", iter(rounds))

    def run(self, scenario: str, options: Any, timeout_s: float) -> dict[str, float]:
        figures = next(self.rounds)  # type: ignore[attr-defined]  # set above, on a frozen class
        if figures is None:
            raise SideFailed(f"{self.name} fell over")
        return dict(figures)


def compared(ours: Rounds, theirs: Rounds) -> Comparison:
    comparison = Comparison("any", Played("ours", ours), [Played("rpc", theirs), Missing("Ray", "missing: no Ray")])
    comparison.run({}, len(ours))
    return comparison


def test_a_ratio_below_its_bound_fails() -> None:
    found = compared([{"rate": 80.0}, {"rate": 60.0}, {"rate": 70.0}], [{"rate": 10.0}, {"rate": 10.0}, {"rate": 10.0}])
    line = found.beside("rate", "rate", "/s", {"rpc": Bound.ratio_at_least(8)})[0]
    assert (line.name, line.value, line.reference, line.ratio) == ("rate, beside rpc", 70.0, 10.0, 7.0)
    assert line.holds is False
    assert line.details == {"ours lowest": 60, "ours highest": 80, "theirs lowest": 10, "theirs highest": 10}
    assert found.beside("rate", "rate", "/s", {"rpc": Bound.ratio_at_least(7)})[0].holds is True


def test_a_missing_peer_is_named() -> None:
    line = compared([{"rate": 1.0}], [{"rate": 1.0}]).beside("rate", "rate", "/s")[1]
    assert line.name == "rate, beside Ray"
    assert line.value is None
    assert line.note == "not measured: missing: no Ray"


def test_a_round_in_which_one_side_fails_makes_no_pair() -> None:
    found = compared([{"rate": 4.0}, None, {"rate": 6.0}], [None, {"rate": 5.0}, {"rate": 2.0}])
    assert found.beside("rate", "rate", "/s")[0].ratio == 3.0


@pytest.mark.parametrize(("ours", "theirs", "who"), [(None, {"rate": 1.0}, "ours"), ({"rate": 1.0}, None, "rpc")])
def test_a_side_that_never_succeeds_says_why(
    ours: dict[str, float] | None, theirs: dict[str, float] | None, who: str
) -> None:
    line = compared([ours], [theirs]).beside("rate", "rate", "/s", {"rpc": Bound.ratio_at_least(8)})[0]
    assert line.value is None
    assert f"{who} fell over" in line.note
    assert line.reference == (theirs and theirs["rate"]), "what the peer does is known all the same"


def test_there_is_no_ratio_to_what_never_happened() -> None:
    line = compared([{"answered_s": 1.0}], [{"answered_s": math.nan}]).beside("answered", "answered_s", "s")[0]
    assert line.ratio is None
    assert line.reference is not None
    assert math.isnan(line.reference)


def test_ours_alone_is_judged_by_its_median() -> None:
    found = compared([{"rate": 4.0}, {"rate": 6.0}, {"rate": 5.0}], [None] * 3)
    line = found.alone("rate", "rate", "/s", Bound(at="least", limit=6))
    assert (line.value, line.holds) == (5.0, False)
    assert line.details == {"lowest": 4.0, "highest": 6.0}


def test_peers_without_an_interpreter_or_without_their_package_are_missing() -> None:
    wanted = [
        Peer("a", "json", "rpc_workers", "tcp"),
        Peer("b", "no_such_package", "b", ""),
        Peer("c", "none", "c", ""),
    ]
    here, broken, absent = find_peers(wanted, {"json": sys.executable, "no_such_package": sys.executable})
    assert isinstance(here, Side)
    assert here.command[-2:] == ("rpc_workers", "tcp")
    assert isinstance(broken, Missing)
    assert "No module named 'no_such_package'" in broken.reason
    assert absent == Missing("c", "missing: no interpreter with none was given, see --help")


class DeadError(Exception):
    """A node is dead."""


class PlayedNodes:
    """Nodes that are tensors here; a node dies with the process that stands for it. ``losing``: of additions."""

    burst = 20
    deaths: tuple[type[Exception], ...] = (DeadError,)

    def __init__(self, victim: subprocess.Popen[bytes] | None = None, losing: int = 0) -> None:
        self.sums = [torch.zeros(SHAPE) for _ in range(4)]
        self.sent = torch.zeros(0)
        self.victim, self.losing = victim, losing

    def add(self, node: int, times: int) -> None:
        self.sums[node] += times - self.losing

    def value(self, node: int, timeout_s: float) -> float:
        if node == VICTIM and self.victim is not None and self.victim.poll() is not None:
            raise DeadError
        return float(self.sums[node][0, 0])

    def add_and_fetch(self, node: int) -> torch.Tensor:
        self.add(node, 1)
        return self.sums[node]

    def send(self, node: int, tensor: torch.Tensor) -> None:
        self.sent = tensor

    def fetch(self, node: int) -> torch.Tensor:
        return self.sent

    def pid(self, node: int) -> int:
        assert self.victim is not None
        return self.victim.pid

    def noticed_s(self) -> float:
        return math.nan


class DyingNodes(PlayedNodes):
    """The scenario asks for the victim's process, and kills it: the next wait for that node ends with the process."""

    is_doomed = False

    def pid(self, node: int) -> int:
        self.is_doomed = True
        return super().pid(node)

    def value(self, node: int, timeout_s: float) -> float:
        if node == VICTIM and self.is_doomed and self.victim is not None:
            self.victim.wait(timeout_s)
        return super().value(node, timeout_s)


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_lost_additions_are_no_speed() -> None:
    assert operations(PlayedNodes(), {"seconds": 0.01})["rate"] > 0
    with pytest.raises(AssertionError, match=r"20 additions of one made 19\.0"):
        operations(PlayedNodes(losing=1), {"seconds": 0.01})


def test_round_trips_have_percentiles() -> None:
    found = round_trip(PlayedNodes(), {"times": 20})
    assert 0 < found["two_best_s"] <= found["two_p50_s"] <= found["two_p99_s"]
    assert 0 < found["one_best_s"] <= found["one_p50_s"] <= found["one_p99_s"]


def test_a_copy_that_comes_back_changed_is_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.remote.scenarios.BIG_BYTES", 4096)
    assert copies(PlayedNodes(), {"times": 1, "seconds": 0.01})["fetch"] > 0
    nodes = PlayedNodes()
    monkeypatch.setattr(nodes, "fetch", lambda node: nodes.sent + 1)
    with pytest.raises(AssertionError, match="not what was sent"):
        copies(nodes, {"times": 1, "seconds": 0.01})


def test_a_copy_that_fails_meanwhile_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.remote.scenarios.BIG_BYTES", 4096)
    nodes = PlayedNodes()
    assert meanwhile(nodes, torch.ones(4), 0.01)["p50_s"] > 0

    def fail(node: int) -> torch.Tensor:
        raise DeadError

    monkeypatch.setattr(nodes, "fetch", fail)
    with pytest.raises(DeadError):
        meanwhile(nodes, torch.ones(4), 0.01)


def test_a_kill_is_timed_and_the_others_are_checked(
    victim: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(killing, "RECOVERY_S", 0.01)
    found = kill(DyingNodes(victim), {"seconds": 0.02, "limit_s": 5.0})
    assert 0 < found["error_s"] < 5
    assert found["wrong"] == 0
    assert found["throughput"] > 0
    assert "noticed_s" not in found


def test_sums_that_the_others_lost_are_counted(
    victim: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(killing, "RECOVERY_S", 0.01)
    assert kill(DyingNodes(victim, losing=1), {"seconds": 0.01, "limit_s": 5.0})["wrong"] == 3


def test_others_that_do_not_go_on_have_no_throughput(
    victim: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = DyingNodes(victim)
    died = nodes.value

    def value(node: int, timeout_s: float) -> float:
        if node != VICTIM and victim.poll() is not None:
            raise TimeoutError
        return died(node, timeout_s)

    monkeypatch.setattr(nodes, "value", value)
    found = kill(nodes, {"seconds": 0.01, "limit_s": 5.0})
    assert found["throughput"] == 0
    assert math.isnan(found["answered_s"])
    assert math.isnan(found["wrong"])


def test_a_dead_node_that_answers_is_no_success(
    victim: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = PlayedNodes(victim)
    monkeypatch.setattr(nodes, "value", lambda node, timeout_s: float(nodes.sums[node][0, 0]))
    with pytest.raises(AssertionError, match="a dead node answered"):
        kill(nodes, {"seconds": 0.01, "limit_s": 5.0})
