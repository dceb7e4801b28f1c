"""Random pipelines, and losses at any moment: in the end each micro-batch is in exactly one sum of each layer."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld.training.pipeline.assignment import AssignedPipeline, Assignment
from multiworld.training.pipeline.partial_step import PartialStep, numbers_of, read, spans_of, written
from multiworld.training.pipeline.remaining import StepShares, remaining_of

NUM_LAYERS, MOST_MICRO_BATCHES, MOST_MEMBERS = 6, 9, 8
Pair = tuple[int, int]  # a layer and a micro-batch


class Members:
    """Those of one step: what is in their sums, and which losses they know."""

    def __init__(self, draw: random.Random, together: Sequence[Sequence[int]]) -> None:
        self._draw, self._together = draw, together
        self._num_micro_batches = draw.randint(2, MOST_MICRO_BATCHES)
        self.sums: dict[str, dict[int, set[int]]] = {}
        self.losses: dict[str, set[int]] = {}
        self._begun: dict[str, set[int]] = {}
        self._num_named = 0
        self._come(draw.randint(1, MOST_MEMBERS))
        self._assignment = self._drawn()
        self._shares = StepShares(self._assignment, None)

    def _come(self, how_many: int) -> None:
        for _ in range(how_many):
            self._num_named += 1
            name = f"m{self._num_named}"
            self.sums[name], self.losses[name], self._begun[name] = {}, set(), set()

    def _drawn(self) -> Assignment:
        """Return any division of the members. Some of them may have nothing to do."""
        draw, left, pipelines = self._draw, list(self.sums), []
        draw.shuffle(left)
        counts = self._divided(draw.randint(1, min(len(left), self._num_micro_batches, 3)))
        for number, count in enumerate(counts):
            size = draw.randint(1, max(1, min(NUM_LAYERS, len(left) - (len(counts) - number - 1))))
            members, left = left[:size], left[size:]
            starts = (0, *sorted(draw.sample(range(1, NUM_LAYERS), size - 1)))
            pipelines.append(
                AssignedPipeline(
                    members=tuple(members), starts=starts, num_micro_batches=count, max_in_flight=(1,) * size
                )
            )
        return Assignment(num_layers=NUM_LAYERS, pipelines=tuple(pipelines))

    def _divided(self, how_many: int) -> list[int]:
        cuts = sorted(self._draw.sample(range(1, self._num_micro_batches), how_many - 1))
        return [end - begin for begin, end in zip([0, *cuts], [*cuts, self._num_micro_batches], strict=True)]

    def compute(self, members: Collection[str], *, to_the_end: bool) -> None:
        """Each stage finishes no more backwards than the one after it. Only these members do anything."""
        for pipeline in self._assignment.pipelines:
            done = None
            for member in reversed(pipeline.members):
                numbers = sorted(self._shares.computed_by(member))
                most = len(numbers) if done is None else done
                done = most if to_the_end else self._draw.randint(0, most)
                if member not in members:
                    done = 0
                    continue
                self._begun[member].update(numbers[: done + 1])
                for number in numbers[:done]:
                    self._add(member, number)

    def _add(self, member: str, number: int) -> None:
        layers = self._assignment.layers_of(member)
        for layer in layers:
            if number not in self._shares.present(layer):
                self.sums[member].setdefault(layer, set()).add(number)
        if NUM_LAYERS - 1 in layers and number not in self._shares.present(NUM_LAYERS - 1):
            self.losses[member].add(number)
        for group in self._together:
            mine = [layer for layer in group if layer in layers]
            assert len({number in self._shares.present(layer) for layer in mine}) <= 1, "one gradient of all of them"

    def lose(self, *, in_a_move: bool) -> list[str]:
        """Some are lost, some come; return who begins with the next assignment: all, if it is not ``in_a_move``."""
        for name in self._draw.sample(sorted(self.sums), self._draw.randint(0, len(self.sums) - 1)):
            del self.sums[name], self.losses[name], self._begun[name]
        self._come(self._draw.choice([0, 0, 0, 1, 2]))
        self._assignment = self._drawn()
        has = {
            name: PartialStep(sums=written(sums), begun=spans_of(self._begun[name])) for name, sums in self.sums.items()
        }
        before = {(layer, number) for sums in self.sums.values() for layer, each in sums.items() for number in each}
        remaining = remaining_of(self._assignment, has, together=self._together)
        self._shares = shares = StepShares(self._assignment, remaining)
        every = range(self._num_micro_batches)
        if remaining is None:
            assert not before
        else:
            computed = [number for spans in remaining.computed for number in numbers_of(spans)]
            assert len(computed) == len(set(computed))
            missing = {number for number in every for layer in range(NUM_LAYERS) if (layer, number) not in before}
            assert missing <= set(computed)
            assert remaining.num_redone <= len(computed)
            for spans, pipeline in zip(remaining.computed, self._assignment.pipelines, strict=True):
                assert len(numbers_of(spans)) <= pipeline.num_micro_batches
            if not self._together and not self._has_duplicates():
                assert set(computed) == missing  # nothing is computed again that survives
        begin = [name for name in self.sums if not in_a_move or self._draw.random() < 0.5]
        handed = [] if remaining is None else list(remaining.handed)
        losses = {name: set(each) for name, each in self.losses.items()}
        for name in begin:
            assert all(set(self._assignment.layers_of(name)) >= {layer} for layer in shares.begun_with(name)), (
                "a sum of a layer that it does not have"
            )
            kept = {} if remaining is None else read(remaining.kept.get(name, ()))
            assert all(numbers == self.sums[name][layer] for layer, numbers in kept.items())
            self.losses[name] = losses[name] & kept.get(NUM_LAYERS - 1, frozenset())
            for each in handed:
                if each.destination == name:
                    self.losses[name] |= losses[each.source] & read(each.sums).get(NUM_LAYERS - 1, frozenset())
        for name in begin:
            self.sums[name] = {layer: set(numbers) for layer, numbers in shares.begun_with(name).items()}
            self._begun[name] = set()
        return begin

    def _has_duplicates(self) -> bool:
        pairs = [(layer, number) for sums in self.sums.values() for layer, each in sums.items() for number in each]
        return len(pairs) != len(set(pairs))

    def check_complete(self) -> None:
        """Each micro-batch is in one sum of each layer, where all members expect it, and its loss is known once."""
        pairs: dict[Pair, list[str]] = {}
        for name, sums in self.sums.items():
            for layer, numbers in sums.items():
                assert numbers == self._shares.of(name, [layer])
                for number in numbers:
                    pairs.setdefault((layer, number), []).append(name)
        every = range(self._num_micro_batches)
        assert sorted(pairs) == [(layer, number) for layer in range(NUM_LAYERS) for number in every]
        assert all(len(names) == 1 for names in pairs.values())
        assert sorted(number for each in self.losses.values() for number in each) == list(every)


@settings(max_examples=500)
@given(draw=st.randoms(use_true_random=False), tied=st.sampled_from([(), ((0, 5),), ((0, 2, 5),), ((0, 5), (1, 2))]))
def test_each_micro_batch_is_in_one_sum_of_each_layer_after_any_losses(
    draw: random.Random, tied: Sequence[Sequence[int]]
) -> None:
    members = Members(draw, tied)
    able = list(members.sums)
    for _ in range(draw.randint(0, 4)):
        members.compute(able, to_the_end=draw.random() < 0.2)
        able = members.lose(in_a_move=draw.random() < 0.4)
    if set(able) != set(members.sums):
        able = members.lose(in_a_move=False)
    members.compute(able, to_the_end=True)
    members.check_complete()
