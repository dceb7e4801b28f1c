"""Tests of what a member has seen of changes, and of what it then expects."""

from __future__ import annotations

import pytest

from multiworld.errors import WorldBrokenError
from multiworld.training.pipeline.experience import BYTES_PER_S, EXPECTED_S, FORM_S, Experience
from multiworld.training.pipeline.remembering import Remembering
from multiworld.training.recovery.records import Generation, Member

ONE = Generation(number=1, members=(Member(id="a", rank=0, host="h"),))


def test_before_anything_was_seen_it_expects_what_is_usual() -> None:
    experience = Experience(now=100.0)
    assert (experience.bytes_per_s, experience.form_s) == (BYTES_PER_S, FORM_S)
    assert experience.expected_s(now=100.0) == EXPECTED_S


def test_many_changes_let_it_expect_the_next_one_soon() -> None:
    experience = Experience(now=0.0)
    for _ in range(99):
        experience.formed(is_change=True)
    assert experience.expected_s(now=1000.0) == pytest.approx((EXPECTED_S + 1000.0) / 100)


def test_a_long_time_without_changes_lets_it_expect_none_for_long() -> None:
    assert Experience(now=0.0).expected_s(now=10 * EXPECTED_S) == 11 * EXPECTED_S


def test_the_fastest_move_counts_as_the_link_s_rate() -> None:
    experience = Experience(now=0.0)
    experience.moved(1000, 2.0)
    assert experience.bytes_per_s == 500.0
    experience.moved(1000, 0.5)  # nobody was waited for
    experience.moved(1000, 100.0)
    assert experience.bytes_per_s == 2000.0


class Shown:
    def __init__(self) -> None:
        self.told: list[str] = []

    def recovery_began(self, step: int, error: WorldBrokenError | None) -> None:
        self.told.append("began")

    def recovery_phase(self, name: str, step: int, took_s: float) -> None:
        self.told.append(name)

    def generation_began(self, before: Generation | None, now: Generation, step: int) -> None:
        self.told.append("generation")

    def state_received(self, step: int, size_bytes: int, sources: int, took_s: float) -> None:
        self.told.append("state")


def test_it_remembers_what_others_are_told_and_no_start() -> None:
    experience, shown = Experience(now=0.0), Shown()
    foreseen: list[Generation] = []
    remembering = Remembering(experience, shown, foreseen.append)
    remembering.recovery_phase("agree", 0, 10.0)  # all are waited for
    remembering.generation_began(None, ONE, 0)
    assert experience.form_s == FORM_S
    assert experience.expected_s(now=0.0) == EXPECTED_S
    remembering.recovery_began(3, None)
    for name, took_s in (("detect", 0.25), ("agree", 0.25), ("plan", 4.0), ("form", 0.5), ("move", 4.0)):
        remembering.recovery_phase(name, 3, took_s)
    remembering.generation_began(ONE, ONE, 3)
    remembering.state_received(3, 4000, 1, 4.0)
    assert experience.form_s == 1.0
    assert experience.expected_s(now=0.0) == EXPECTED_S / 2
    assert experience.bytes_per_s == 1000.0
    assert foreseen == [ONE, ONE]
    assert shown.told == [
        "agree",
        "generation",
        "began",
        "detect",
        "agree",
        "plan",
        "form",
        "move",
        "generation",
        "state",
    ]
