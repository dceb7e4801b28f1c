"""A replay commits what arithmetic by hand gives, and its times add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from multiworld.training.simulating.replay import Replayed, Standing, replay
from multiworld.training.simulating.trace import JOIN, LOSS, Event, Trace, trace_of


@dataclass(frozen=True)
class Fake:
    """A step has 10 samples; each node computes one sample a second."""

    pause_s: float = 2.0
    kept: float = 0.0
    fill: float = 0.0
    fewest: int = 1
    takes_joins: bool = True
    name: str = "fake"
    samples_per_step: int = 10

    def rate(self, nodes: Sequence[str]) -> float:
        return float(len(nodes)) if len(nodes) >= self.fewest else 0.0

    def begun(self, nodes: Sequence[str]) -> Standing:
        return Standing(rate=self.rate(nodes))

    def lost(self, nodes: Sequence[str], gone: Sequence[str]) -> Standing:
        return Standing(rate=self.rate(nodes), pause_s=self.pause_s, kept=self.kept, fill=self.fill)

    def joined(self, nodes: Sequence[str]) -> Standing:
        return Standing(rate=self.rate(nodes), pause_s=0.5)


def trace(*later: tuple[float, str, str], nodes: str = "ab", end_s: float = 20.0) -> Trace:
    events = [Event(at_s=0.0, kind=JOIN, node=node) for node in nodes]
    return trace_of("t", events + [Event(at_s=at, kind=kind, node=node) for at, kind, node in later], end_s=end_s)


def told(found: Replayed) -> tuple[int, float, float, float, float, float]:
    return (found.num_steps, found.wall_s, found.good_s, found.redone_s, found.paused_s, found.stopped_s)


def test_without_changes_all_steps_are_good() -> None:
    found = replay(trace(end_s=22.0), Fake())
    assert told(found) == (4, 20.0, 20.0, 0.0, 0.0, 0.0)  # the fifth is unfinished at the end
    assert (found.samples_per_s, found.effective) == (2.0, 1.0)


def test_a_loss_costs_its_pause_and_what_is_redone() -> None:
    found = replay(trace((7.0, LOSS, "b"), end_s=20.0), Fake())
    # one step until 5 s, 2 s of the next are lost, 2 s of pause, then a step of 10 s until 19 s
    assert told(found) == (2, 19.0, 15.0, 2.0, 2.0, 0.0)
    assert [(each.begins_s, each.ends_s, each.rate, each.nodes) for each in found.spans] == [
        (0.0, 7.0, 2.0, 2),
        (7.0, 9.0, 0.0, 1),
        (9.0, 20.0, 1.0, 1),
    ]


def test_work_of_the_time_in_which_pipelines_fill_is_lost_besides() -> None:
    found = replay(trace((7.0, LOSS, "b"), end_s=20.0), Fake(kept=0.5, fill=0.2))
    # 4 of 10 samples were done, 2 of them while pipelines filled: 1 is kept
    assert found.redone_s == pytest.approx(1.5)
    early = replay(trace((5.5, LOSS, "b"), end_s=20.0), Fake(kept=0.5, fill=0.2))
    assert early.redone_s == pytest.approx(0.5)


def test_kept_work_is_not_done_again() -> None:
    found = replay(trace((7.0, LOSS, "b"), end_s=20.0), Fake(kept=0.5))
    # 4 of 10 samples were done, 2 are kept: 8 s after the pause
    assert told(found) == pytest.approx((2, 17.0, 14.0, 1.0, 2.0, 0.0))


def test_a_node_that_joins_is_used_after_the_step() -> None:
    found = replay(trace((6.0, JOIN, "c"), (6.0, JOIN, "d"), (6.0, JOIN, "e"), end_s=20.0), Fake())
    # the second step ends at 10 s, the pause at 10.5 s, and from then on a step takes 2 s
    assert told(found) == (6, 18.5, 18.0, 0.0, 0.5, 0.0)


def test_a_node_that_joins_may_have_to_wait_for_the_next_loss() -> None:
    later = ((6.0, JOIN, "c"), (11.0, LOSS, "a"))
    found = replay(trace(*later, end_s=30.0), Fake(takes_joins=False))
    assert told(found) == (5, 28.0, 25.0, 1.0, 2.0, 0.0)  # two of three nodes from 13 s on


def test_a_waiting_node_may_be_lost_without_a_recovery() -> None:
    found = replay(trace((6.0, JOIN, "c"), (7.0, LOSS, "c"), end_s=20.0), Fake())
    assert told(found) == (4, 20.0, 20.0, 0.0, 0.0, 0.0)


def test_too_few_nodes_wait_for_others() -> None:
    found = replay(trace((5.0, LOSS, "b"), (12.0, JOIN, "c"), end_s=22.5), Fake(fewest=2))
    assert told(found) == (3, 17.5 + 5.0, 15.0, 0.0, 2.0 + 0.5, 5.0)


def test_a_training_that_stands_at_the_end_counts_until_the_end() -> None:
    found = replay(trace((5.0, LOSS, "b"), end_s=15.0), Fake(fewest=2))
    assert told(found) == (1, 15.0, 5.0, 0.0, 2.0, 8.0)


def test_a_loss_in_a_recovery_begins_it_anew() -> None:
    found = replay(trace((5.0, LOSS, "c"), (6.0, LOSS, "b"), nodes="abc", end_s=30.0), Fake())
    # steps end at 3.33 s, then 1.67 s are lost; the pause lasts from 5 s to 8 s
    assert told(found) == pytest.approx((3, 28.0, 10 / 3 + 20, 5 / 3, 3.0, 0.0))


def test_all_nodes_lost_is_a_stop_and_new_ones_begin() -> None:
    found = replay(trace((5.0, LOSS, "a"), (5.0, LOSS, "b"), (9.0, JOIN, "c"), end_s=20.0), Fake())
    assert told(found) == (2, 19.0, 15.0, 0.0, 2.0, 2.0)


def test_a_curve_holds_what_counted_in_the_end() -> None:
    found = replay(trace((7.0, LOSS, "b"), end_s=20.0), Fake())
    assert len(found.setbacks) == 1
    assert found.setbacks[0] == pytest.approx((7.0, 4.0))
    curve = found.curve(10)
    assert [at_s for at_s, _ in curve] == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0, 17.0, 19.0]
    assert [rate for _, rate in curve] == pytest.approx([2.0, 2.0, 1.0, 0.0, 0.5] + [1.0] * 5)
    assert found.curve(1)[0] == pytest.approx((10.0, (14.0 - 4.0 + 11.0) / 20.0))


@dataclass(frozen=True)
class Checkpointed(Fake):
    """Each loss takes it back to its last checkpoint."""

    def lost(self, nodes: Sequence[str], gone: Sequence[str]) -> Standing:
        return Standing(rate=self.rate(nodes), pause_s=self.pause_s, kept=0.0, from_checkpoint=True)


def test_what_was_committed_since_the_last_checkpoint_is_done_again() -> None:
    lost = trace((27.0, LOSS, "b"), end_s=60.0)
    found = replay(lost, Checkpointed(), checkpoint_every=2)
    # 5 steps until 25 s, of which 4 are saved; one more step of 5 s and 2 s of work are lost
    assert told(found) == (4 + 3, 59.0, 20.0 + 30.0, 7.0, 2.0, 0.0)
    assert [lost for _, lost in found.setbacks] == pytest.approx([4.0, 10.0])
    assert [rate for _, rate in found.curve(6)] == pytest.approx([2.0, 2.0, 0.1, 1.0, 1.0, 1.0])
    assert replay(lost, Checkpointed(), checkpoint_every=5).num_steps == 5 + 3
