"""Whatever steps come, late, twice or out of order: no step goes on from tokens that are not those of its sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld.serving.generation.cache import Fate, Plan, SequenceTable, Step

NUM_SEQUENCES = 5


Token = tuple[int, int, int]
"""Sequence, attempt, position: each attempt says other tokens."""


@dataclass
class Store:
    """What a replica holds: the tokens that its states were made of."""

    table: SequenceTable
    held: dict[bytes, list[Token]] = field(default_factory=dict)

    def step(self, sequence: int, attempt: int, back: int, length: int) -> Step:
        """A step that begins ``back`` tokens before the end of what is known."""
        position = max(0, self.table.length(bytes([sequence])) - back)
        return Step(bytes([sequence]), attempt, position, length)

    def carry_out(self, plan: Plan, steps: list[Step], fails_at: int | None) -> None:
        seen = [index for each in plan.rounds for index in each.steps] + list(plan.refused)
        assert sorted(seen) == list(range(len(steps)))
        for number, each in enumerate(plan.rounds):
            for sequence in each.dropped:
                self.held.pop(sequence, None)
            assert len({steps[index].sequence for index in each.steps}) == len(each.steps)
            if fails_at is not None and number >= fails_at:
                for index in each.steps:
                    self.table.undo(steps[index])
                continue
            for index in each.steps:
                self.take(steps[index])
        self.check()

    def take(self, step: Step) -> None:
        held = self.held.setdefault(step.sequence, [])
        assert held[: step.position] == tokens(step, 0, step.position), f"{step} goes on from {held}"
        held[step.position : step.position + step.length] = tokens(step, step.position, step.position + step.length)

    def check(self) -> None:
        assert self.table.num_tokens <= self.table.capacity
        assert self.table.num_tokens == sum(self.table.length(bytes([i])) for i in range(NUM_SEQUENCES))
        for sequence in range(NUM_SEQUENCES):
            assert self.table.length(bytes([sequence])) <= len(self.held.get(bytes([sequence]), []))


def tokens(step: Step, begin: int, end: int) -> list[Token]:
    return [(step.sequence[0], step.attempt, position) for position in range(begin, end)]


numbers = st.integers(0, NUM_SEQUENCES - 1)
step = st.tuples(numbers, st.integers(0, 2), st.sampled_from([0, 0, 0, 1, 2, 3, -1, 99, 99]), st.integers(1, 6))
moves = st.one_of(
    st.tuples(st.just("plan"), st.lists(step, min_size=1, max_size=8), st.sampled_from([None, None, None, 0, 1])),
    st.tuples(st.just("forget"), numbers, st.none()),
    st.tuples(st.just("wait"), st.floats(0, 12), st.none()),
)


@settings(max_examples=300)
@given(st.integers(1, 25), st.lists(moves, min_size=5, max_size=30))
def test_no_step_goes_on_from_a_state_that_is_not_its_own(
    capacity: int, history: list[tuple[str, Any, int | None]]
) -> None:
    store = Store(SequenceTable(capacity, idle_s=10.0))
    now = 0.0
    for move, what, fails_at in history:
        if move == "wait":
            now += what
        elif move == "forget":
            store.table.forget(bytes([what]))
            store.held.pop(bytes([what]), None)
        else:
            steps = [store.step(*fields) for fields in what]
            store.carry_out(store.table.plan(steps, now=now), steps, fails_at)


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 4), st.integers(1, 12)), min_size=1, max_size=12))
def test_a_sequence_that_begins_is_taken_if_it_fits_at_all(capacity: int, begun: list[tuple[int, int]]) -> None:
    table = SequenceTable(capacity)
    steps = [Step(bytes([number]), 0, 0, length) for number, length in begun]
    plan = table.plan(steps, now=0.0)
    assert {index: Fate.TOO_LONG for index, one in enumerate(steps) if one.length > capacity} == plan.refused


@given(st.integers(1, 8), st.integers(1, 20))
def test_what_fits_together_goes_on_together(num_sequences: int, num_tokens: int) -> None:
    table = SequenceTable(num_sequences * num_tokens)
    for position in range(num_tokens):
        steps = [Step(bytes([number]), 0, position, 1) for number in range(num_sequences)]
        (only,) = table.plan(steps, now=0.0).rounds
        assert only.steps == tuple(range(num_sequences))
        assert not only.dropped
