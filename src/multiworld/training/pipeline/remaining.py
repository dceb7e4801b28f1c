"""Decide what survives of a step when members are lost, who has it from then on, and who computes the rest. Pure.

Each micro-batch has to be in exactly one sum of each layer. A sum survives with its member; if that does not hold the
layer any more, a new owner gets the sum. A micro-batch is computed again if no sum of some layer has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .assignment import Assignment
from .partial_step import HandedSums, PartialStep, Remaining, Span, numbers_of, read, spans_of, written
from .work import StepWork, Work


@dataclass(frozen=True)
class _Sum:
    """What ``member`` has of ``layers``, which cannot be separated: one sum of a parameter that they share."""

    member: str
    layers: tuple[int, ...]
    micro_batches: frozenset[int]


def remaining_of(
    assignment: Assignment,
    has: Mapping[str, PartialStep],
    *,
    of_lost: Collection[int] = (),
    together: Sequence[Sequence[int]] = (),
) -> Remaining | None:
    """Return what is left to do of a step with this assignment; None if nobody had begun it.

    ``has``: by member of the assignment. ``of_lost``: the micro-batches that lost members had to compute.
    ``together``: disjoint groups of layers whose gradients one member can only add up together.
    """
    begun = {number for each in has.values() for number in numbers_of(each.begun)}
    sums = [each for member, said in has.items() for each in _sums_of(member, said, together)]
    if not begun and not sums:
        return None
    places = {each: owner for each in _without_overlaps(sums) if (owner := _new_owner(each, assignment)) is not None}
    _remove_torn(places, assignment, together)
    present = _by_layer(places)
    numbers = range(sum(each.num_micro_batches for each in assignment.pipelines))
    missing = [
        each for each in numbers if any(each not in present.get(layer, ()) for layer in range(assignment.num_layers))
    ]
    kept: dict[str, dict[int, frozenset[int]]] = {}
    handed: dict[tuple[str, str], dict[int, frozenset[int]]] = {}
    for each, owner in places.items():
        of_layers = dict.fromkeys(each.layers, each.micro_batches)
        if owner == each.member:
            kept.setdefault(owner, {}).update(of_layers)
        else:
            handed.setdefault((each.member, owner), {}).update(of_layers)
    return Remaining(
        kept={member: written(each) for member, each in kept.items()},
        handed=tuple(
            HandedSums(source=source, destination=destination, sums=written(each))
            for (source, destination), each in handed.items()
        ),
        computed=tuple(map(spans_of, divide(missing, [each.num_micro_batches for each in assignment.pipelines]))),
        num_redone=len((begun | set(of_lost)).intersection(missing)),
    )


def divide(micro_batches: Sequence[int], usual: Sequence[int]) -> list[tuple[int, ...]]:
    """Return a share for each pipeline, in proportion to what it usually gets; some may get none."""
    counts = [0] * len(usual)
    for _ in micro_batches:
        least = min(range(len(usual)), key=lambda number: (counts[number] + 1) / usual[number])
        counts[least] += 1
    shares, begin = [], 0
    for count in counts:
        shares.append(tuple(micro_batches[begin : begin + count]))
        begin += count
    return shares


class StepShares:
    """Who computes which micro-batches in a step, and whose sums have which of them in the end, by layer.

    ``remaining``: of the step with which a generation begins, if it had been begun before; None of all others.
    """

    def __init__(self, assignment: Assignment, remaining: Remaining | None) -> None:
        self._assignment, self._remaining = assignment, remaining
        self._work = StepWork(assignment, None if remaining is None else list(map(numbers_of, remaining.computed)))
        self._computed: dict[str, frozenset[int]] = {}
        self._begun_with: dict[str, dict[int, frozenset[int]]] = {}
        """By member and layer: what its sums hold before it computes anything."""
        self._parts: dict[int, list[tuple[str, str, tuple[Span, ...]]]] = {}
        """By layer: of which member's sums each sum is made, with the micro-batches of each part."""
        if remaining is not None:
            given = [(member, member, sums) for member, sums in remaining.kept.items()]
            given += [(each.destination, each.source, each.sums) for each in remaining.handed]
            for member, source, sums in sorted(given, key=lambda each: each[:2]):
                own = self._begun_with.setdefault(member, {})
                for layer, numbers in read(sums).items():
                    own[layer] = own.get(layer, frozenset()) | numbers
                    self._parts.setdefault(layer, []).append((member, source, spans_of(numbers)))
        self._present: dict[int, frozenset[int]] = {}
        for each in self._begun_with.values():
            for layer, numbers in each.items():
                self._present[layer] = self._present.get(layer, frozenset()) | numbers

    def work_of(self, member: str) -> Work:
        return self._work.of(member)

    def computed_by(self, member: str) -> frozenset[int]:
        """Return the micro-batches that it computes."""
        if member not in self._computed:
            self._computed[member] = frozenset(self._work.micro_batches_of(member))
        return self._computed[member]

    @property
    def keeps_any(self) -> bool:
        """Whether anything is in any member's sums before it is computed: the same on all members."""
        return bool(self._parts)

    def kept_by(self, member: str) -> tuple[int, ...]:
        """Return the layers of which it keeps its own sums."""
        return () if self._remaining is None else tuple(read(self._remaining.kept.get(member, ())))

    def begun_with(self, member: str) -> Mapping[int, frozenset[int]]:
        """Return by layer what its sums hold before it computes anything."""
        return self._begun_with.get(member, {})

    def present(self, layer: int) -> frozenset[int]:
        """Return what is in some member's sum of this layer before anything is computed: it is not added again."""
        return self._present.get(layer, frozenset())

    def of(self, member: str, layers: Iterable[int]) -> frozenset[int]:
        """Return what the member's sums of these layers, those of them that it has, hold at the end of the step."""
        own, numbers = self._assignment.layers_of(member), self.computed_by(member)
        held = [layer for layer in layers if layer in own]
        of_layers = [(numbers - self.present(each)) | self.begun_with(member).get(each, frozenset()) for each in held]
        return frozenset().union(*of_layers)

    def kind(self, layers: Iterable[int]) -> tuple[object, ...]:
        """Return what is equal, and can be compared, for layers whose sums are made of the same parts everywhere."""
        return tuple(tuple(self._parts.get(layer, ())) for layer in layers)


def _sums_of(member: str, said: PartialStep, together: Sequence[Sequence[int]]) -> list[_Sum]:
    sums = read(said.sums)
    found, grouped = [], set[int]()
    for group in together:
        layers = tuple(layer for layer in group if layer in sums)
        if len(layers) > 1:
            grouped.update(layers)
            if len({sums[layer] for layer in layers}) == 1:  # else nobody can tell what belongs to which layer
                found.append(_Sum(member, layers, sums[layers[0]]))
    found.extend(_Sum(member, (layer,), each) for layer, each in sums.items() if layer not in grouped)
    return found


def _without_overlaps(sums: Sequence[_Sum]) -> list[_Sum]:
    """Return the sums but those with a micro-batch that a larger sum of the same layer has, too.

    There are some where a loss came in the middle of a change: one member had begun it, another one had not.
    """
    taken: set[tuple[int, int]] = set()
    found = []
    for each in sorted(sums, key=lambda each: -len(each.micro_batches)):  # stable
        pairs = {(layer, number) for layer in each.layers for number in each.micro_batches}
        if not taken & pairs:
            taken |= pairs
            found.append(each)
    return found


def _new_owner(own: _Sum, assignment: Assignment) -> str | None:
    """Return who has the sum from now on: the same member, the one that gets the layer from it, or any owner."""
    owners = [assignment.owners(layer) for layer in own.layers]
    able = [member for member in owners[0] if all(member in others for others in owners)]
    if own.member in able or not able:
        return own.member if able else None
    for move in assignment.moves:
        if move.source == own.member and move.first <= own.layers[0] < move.end and move.destination in able:
            return move.destination
    return able[own.layers[0] % len(able)]


def _remove_torn(places: dict[_Sum, str], assignment: Assignment, together: Sequence[Sequence[int]]) -> None:
    """Where a stage adds up several layers of a group at once, a micro-batch is in the sums of all of them, or of none.

    Remove the sums that have others.
    """
    for group in together:
        owners = [member for layer in group for member in assignment.owners(layer)]
        if len(owners) == len(set(owners)):
            continue
        while True:
            present = _by_layer({each: owner for each, owner in places.items() if each.layers[0] in group})
            everywhere = frozenset.intersection(*(present.get(layer, frozenset()) for layer in group))
            torn = [each for each in places if each.layers[0] in group and not each.micro_batches <= everywhere]
            if not torn:
                break
            for each in torn:
                del places[each]


def _by_layer(places: Mapping[_Sum, str]) -> dict[int, frozenset[int]]:
    present: dict[int, frozenset[int]] = {}
    for each in places:
        for layer in each.layers:
            present[layer] = present.get(layer, frozenset()) | each.micro_batches
    return present
