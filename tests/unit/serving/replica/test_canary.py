"""What a new replica must answer before it gets requests, and who tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from multiworld.errors import StoreError
from multiworld.serving.control.fleet.actions import CanaryPassed, CanarySkipped, Send, UpdateRolledBack
from multiworld.serving.control.fleet.members import Member, MemberState
from multiworld.serving.errors import CanaryFailedError
from multiworld.serving.flow.node import Place
from multiworld.serving.flow.packets import Item, Kind
from multiworld.serving.graph import Graph, Stage
from multiworld.serving.member.files import MemberFiles
from multiworld.serving.member.member import ReplicaMember
from multiworld.serving.member.orders import ORDERS
from multiworld.serving.member.reports import REPLICA_REPORTS
from multiworld.serving.replica.canary import CanaryKeeper, answer_canary, difference, given_inputs
from tests.unit.serving.simulated_fleet import SimulatedFleet, chain, hear, order_of, send
from tests.unit.serving.wires import Plant

ONE = torch.ones(2, 3)


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize(
    ("expected", "got", "said"),
    [
        (ONE, ONE * 5, ""),
        ({"a": ONE}, {"a": -ONE}, ""),
        (ONE, ONE.double(), "the answer has dtype torch.float64, expected torch.float32"),
        (ONE, ONE[0], r"the answer has shape \[3\], expected \[2, 3\]"),
        (ONE, [ONE], "the answer is a list, expected a Tensor"),
        ([ONE], [ONE, ONE], "the answer has 2 tensors, expected 1"),
        ({"a": ONE}, {"b": ONE}, "the answer has the names b, expected a"),
        ([ONE, ONE], [ONE, ONE * torch.nan], "tensor 1 has 6 of 6 elements that are not finite, where they were"),
        (ONE * torch.inf, ONE * torch.nan, ""),
        (torch.ones(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), ""),
        (ONE.to(torch.float8_e5m2), ONE.to(torch.float8_e5m2), ""),
    ],
)
def test_values_may_differ_and_nothing_else(expected: Any, got: Any, said: str) -> None:
    text = difference(expected, got)
    assert bool(text) == bool(said)
    if said:
        with pytest.raises(CanaryFailedError, match=said):
            raise CanaryFailedError("a", text)


def item(payload: Any) -> Item:
    return Item(Kind.ITEM, b"x" * 16, 1).carry(payload)


def test_a_recent_request_is_kept_as_it_was() -> None:
    keeper = CanaryKeeper(Stage("a", twice), twice)
    x, y = torch.ones(2), torch.ones(2) * 2
    assert keeper.due
    keeper.take(b"1", [item(x)])
    x.zero_()
    keeper.keep(y)
    assert keeper.kept is not None
    y.zero_()
    assert keeper.kept.inputs[0].tolist() == [1, 1]  # type: ignore[union-attr]
    assert keeper.kept.output.tolist() == [2, 2]  # type: ignore[union-attr]
    keeper.tick(100.0)
    assert keeper.due
    keeper.take(b"2", [item(torch.zeros(1))])
    keeper.keep(ValueError("no"))
    assert keeper.kept.output.tolist() == [2, 2]  # type: ignore[union-attr]
    keeper.tick(105.0)
    assert not keeper.due
    keeper.tick(110.0)
    keeper.take(b"3", [item(torch.zeros(2 << 20))])  # too large
    assert keeper.taken is None


class Steps(nn.Module):
    def many(self, payloads: list[Any]) -> list[Any]:
        return payloads


def test_nothing_is_kept_of_stages_that_cannot_be_asked_again() -> None:
    assert not CanaryKeeper(Stage("a", twice, canary=False), twice).due
    assert not CanaryKeeper(Stage("a", twice, idempotent=False), twice).due
    assert not CanaryKeeper(Stage("a", Steps()), Steps()).due
    assert not CanaryKeeper(Stage("a", twice, canary=ONE), twice).due


def test_examples_fit_the_stage() -> None:
    assert given_inputs(Stage("a", twice)) == ()
    assert len(given_inputs(Stage("a", twice, canary=ONE))) == 1
    assert len(given_inputs(Stage("a", twice, inputs=("b", "c"), canary=(ONE, {"x": ONE})))) == 2
    with pytest.raises(CanaryFailedError, match="has 1 payloads, the stage takes 2"):
        given_inputs(Stage("a", twice, inputs=("b", "c"), canary=ONE))
    with pytest.raises(CanaryFailedError, match="is no payload"):
        given_inputs(Stage("a", twice, canary="x"))


async def test_what_does_not_answer_is_said_so() -> None:
    stage = Stage("a", twice, limit_s=0.05)

    def fails(x: Any) -> Any:
        raise KeyError("lost")

    async def waits(x: Any) -> Any:
        raise asyncio.TimeoutError("of its own")

    def leaves(x: Any) -> Any:
        raise SystemExit(3)

    async def sleeps(x: Any) -> Any:
        await asyncio.sleep(5)

    async def cancels(x: Any) -> Any:
        raise asyncio.CancelledError

    async def leaves_late(x: Any) -> Any:
        raise SystemExit(4)

    assert torch.equal(await answer_canary(stage, twice, [ONE]), ONE * 2)  # type: ignore[arg-type]
    assert torch.equal(await answer_canary(stage, Steps(), [ONE]), ONE)  # type: ignore[arg-type]
    for work, said in (
        (fails, "it raised KeyError: 'lost'"),
        (leaves, r"the work called sys.exit\(3\)"),
        (waits, "it raised TimeoutError: of its own"),
        (sleeps, "no answer within"),
        (cancels, "it raised RuntimeError: the work was cancelled by its own code"),
        (leaves_late, r"the work called sys.exit\(4\)"),
        (str, "returned a str"),
    ):
        with pytest.raises(CanaryFailedError, match=said):
            await answer_canary(stage, work, [ONE])


async def test_work_that_is_cancelled_with_its_canary_is_called_off() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def waits(x: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    answering = asyncio.ensure_future(answer_canary(Stage("a", waits), waits, [ONE]))
    await begun.wait()
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert ended.is_set()


@dataclass
class Line:
    tell: Callable[[Any], None]


class CancelledSetup:
    async def setup(self) -> None:
        raise asyncio.CancelledError

    def __call__(self, x: Any) -> Any:
        return x


async def cancelled_work(x: Any) -> Any:
    raise asyncio.CancelledError


@pytest.mark.parametrize("work", [CancelledSetup, cancelled_work])
async def test_a_replica_whose_work_is_cancelled_by_itself_has_not_loaded(work: Any, tmp_path: Path) -> None:
    place = Place(member="a-1", stage="a", graph=Graph([Stage("a", work, canary=ONE)]), store="tcp://127.0.0.1:1")
    member = ReplicaMember(None, place, host="", files=MemberFiles(tmp_path, ("", 0), ""))  # type: ignore[arg-type]
    told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    member.line = Line(lambda report: told.put_nowait(REPLICA_REPORTS.to_json(report)))
    member.obey(ORDERS.from_json({"do": "load", "version": 1, "donor": None, "weights": None}))
    news = await asyncio.wait_for(told.get(), 5)
    assert (news["event"], news["hand_over_failed"]) == ("load_failed", False)
    assert "the work was cancelled by its own code" in news["error"]
    member.stop()


class Unmade:
    def __init__(self) -> None:
        raise RuntimeError("no such accelerator")


class NobodyComes:
    """A manager whose worlds are not formed."""

    async def join(self, name: str, **options: Any) -> Any:
        raise StoreError("tcp://127.0.0.1:1", f"nobody came to {name}")


@pytest.mark.parametrize(("work", "failed"), [(Unmade, False), (twice, True)])
async def test_a_replica_says_whether_its_work_or_the_hand_over_of_weights_failed(
    work: Any, failed: bool, tmp_path: Path
) -> None:
    place = Place(member="a-2", stage="a", graph=Graph([Stage("a", work)]), store="tcp://127.0.0.1:1")
    member = ReplicaMember(NobodyComes(), place, host="", files=MemberFiles(tmp_path, ("", 0), ""))  # type: ignore[arg-type]
    told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    member.line = Line(lambda report: told.put_nowait(REPLICA_REPORTS.to_json(report)))
    member.obey(ORDERS.from_json({"do": "load", "version": 1, "donor": "a-1", "weights": None}))
    news = await asyncio.wait_for(told.get(), 5)
    assert (news["event"], news["hand_over_failed"]) == ("load_failed", failed)
    member.stop()


async def test_replicas_keep_a_request_of_theirs() -> None:
    plant = Plant([Stage("a", twice)])
    replica = await plant.add("a-1")
    await plant.ingress.infer(torch.ones(2))
    assert replica.canary.kept is not None
    assert torch.equal(replica.canary.kept.output, torch.full((2,), 2.0))  # type: ignore[arg-type]
    await plant.aclose()


def sent_at_hello(simulation: SimulatedFleet, new: Member, host: str = "127.0.0.1") -> list[Send]:
    """Have a new member introduce itself, and return what is sent then."""
    hello = {"event": "hello", "pid": new.pid or 1, "host": host, "state": "starting", "edges": []}
    return [each for each in hear(simulation.fleet, new.id, hello, simulation.now) if isinstance(each, Send)]


def test_an_old_replica_tells_each_new_one_of_an_update_what_to_answer() -> None:
    simulation = SimulatedFleet(chain("a", replicas=2))
    simulation.run_until_settled()
    fleet = simulation.fleet
    simulation.do(fleet.update("a", "new.pt", simulation.now))
    new = next(member for member in fleet.state.of_stage("a") if member.version == 2)
    sends = sent_at_hello(simulation, new)
    assert sends[0] == send("a-1", {"do": "canary", "to": new.id})
    assert order_of(sends[1])["canary"] == "a-1"
    missed = {"event": "canary_missed", "giver": "a-1"}
    again = [each for each in hear(fleet, new.id, missed, simulation.now) if isinstance(each, Send)]
    assert again[0] == send("a-2", {"do": "canary", "to": new.id})
    loaded = {"event": "loaded", "version": 2, "canary": "a-2"}
    events = [each.event for each in hear(fleet, new.id, loaded, simulation.now) if hasattr(each, "event")]
    assert CanaryPassed(member=new.id, stage="a", version=2, giver="a-2") in events
    assert new.state is MemberState.CONNECTING


@pytest.mark.parametrize(
    ("missed", "loaded", "reason"),
    [
        (("a-1", "a-2"), {}, "no old replica could be asked"),
        ((), {"asked": "a-1"}, "a-1 has kept none"),
    ],
)
def test_a_new_replica_that_nothing_was_compared_with_is_told_of(
    missed: tuple[str, ...], loaded: dict[str, str], reason: str
) -> None:
    simulation = SimulatedFleet(chain("a", replicas=2))
    simulation.run_until_settled()
    assert "CanarySkipped" not in simulation.kinds()
    fleet = simulation.fleet
    simulation.do(fleet.update("a", "new.pt", simulation.now))
    new = next(member for member in fleet.state.of_stage("a") if member.version == 2)
    sent_at_hello(simulation, new)
    for giver in missed:
        hear(fleet, new.id, {"event": "canary_missed", "giver": giver}, simulation.now)
    simulation.do(hear(fleet, new.id, {"event": "loaded", "version": 2, **loaded}, simulation.now))
    assert [event for event in simulation.events if isinstance(event, CanarySkipped)] == [
        CanarySkipped(member=new.id, stage="a", version=2, reason=reason)
    ]


def test_weights_that_do_not_answer_are_not_fetched_from_elsewhere() -> None:
    simulation = SimulatedFleet(chain("a", replicas=2))
    simulation.run_until_settled()
    fleet = simulation.fleet
    simulation.do(fleet.update("a", "new.pt", simulation.now))
    new = next(member for member in fleet.state.of_stage("a") if member.version == 2)
    sent_at_hello(simulation, new, host="10.0.0.9")
    assert new.donor == "controller"
    failed = {
        "event": "load_failed",
        "donor": "controller",
        "error": "CanaryFailedError: NaN",
        "hand_over_failed": False,
    }
    simulation.do(hear(fleet, new.id, failed, simulation.now))
    assert new.id not in fleet.state.members
    (undone,) = [event for event in simulation.events if isinstance(event, UpdateRolledBack)]
    assert "CanaryFailedError: NaN" in undone.reason


def test_replacements_are_asked_nothing_of_others() -> None:
    simulation = SimulatedFleet(chain("a", replicas=2))
    simulation.run_until_settled()
    simulation.kill("a-1")
    new = simulation.fleet.state.members["a-3"]
    sends = sent_at_hello(simulation, new)
    assert all(order_of(each).get("canary") is None and order_of(each)["do"] != "canary" for each in sends)


def test_a_stage_without_a_canary_asks_no_old_replica() -> None:
    graph = Graph([Stage("a", "app:work", replicas=2, canary=False)])
    simulation = SimulatedFleet(graph)
    simulation.run_until_settled()
    fleet = simulation.fleet
    simulation.do(fleet.update("a", "new.pt", simulation.now))
    new = next(member for member in fleet.state.of_stage("a") if member.version == 2)
    sends = sent_at_hello(simulation, new)
    assert sends
    assert all(order_of(each).get("canary") is None and order_of(each)["do"] != "canary" for each in sends)


@pytest.mark.parametrize("error", [StopIteration(3), SystemExit(3), BaseException("panic")])
async def test_whatever_a_canary_raises_is_said_at_once(error: BaseException) -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        raise error

    with pytest.raises(CanaryFailedError, match=r"3|panic"):
        await asyncio.wait_for(answer_canary(Stage("a", work), work, [ONE]), 10)
