"""Oobleck and this project on the inputs that Oobleck published: equal rates and traces, each one's recoveries. Pure.

What is assumed of each stands in ``docs/decisions/041-a-fair-simulation.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .published import MODELS, RESULTS, PublishedModel, PublishedResult
from .published_traces import published_traces
from .replay import Replayed, Standing, replay
from .trace import Trace

CONTROL_S = 1.0
"""From a loss until the survivors compute again, without moving any state: detection, agreement, plan, worlds."""
BYTES_PER_S = 1.25e9
"""Of each node's network: 10 Gb/s."""
BYTES_PER_PARAMETER = 16
"""What moves with a parameter: itself, two moments of Adam, and the sum of its gradients, in fp32."""
NUM_PIPELINES = 2
"""The fewest that survive a loss."""
MICRO_BATCHES_PER_STAGE = 4
"""A pipeline with so many computes for four fifths of a step, and fills and drains in the rest."""


@dataclass(frozen=True, kw_only=True)
class _AtPublishedRates:
    """What both have in common: the published throughput of each number of nodes."""

    model: PublishedModel

    @property
    def samples_per_step(self) -> int:
        return self.model.samples_per_step

    def begun(self, nodes: Sequence[str]) -> Standing:
        return Standing(rate=self.model.rate(len(nodes)))


@dataclass(frozen=True, kw_only=True)
class Oobleck(_AtPublishedRates):
    """Oobleck with its assumed reconfiguration; the step is lost, and new nodes wait for the next loss, as there."""

    name: str = "Oobleck"
    takes_joins: bool = False

    def lost(self, nodes: Sequence[str], gone: Sequence[str]) -> Standing:
        return Standing(rate=self.model.rate(len(nodes)), pause_s=self.model.oobleck_s, kept=0.0)

    def joined(self, nodes: Sequence[str]) -> Standing:
        return Standing(rate=self.model.rate(len(nodes)), pause_s=self.model.oobleck_s)


@dataclass(frozen=True, kw_only=True)
class Ours(_AtPublishedRates):
    """This project at the same rates: what unbroken pipelines have finished of a step is kept, and new nodes are used
    after the current step.

    ``keeps_shares``: False: what if the whole unfinished step was done again.
    """

    keeps_shares: bool = True
    name: str = "multiworld"
    takes_joins: bool = True

    def lost(self, nodes: Sequence[str], gone: Sequence[str]) -> Standing:
        """At worst each lost node was in another pipeline."""
        kept = max(0.0, 1.0 - len(gone) / NUM_PIPELINES) if self.keeps_shares else 0.0
        stages = self._stages(len(nodes) + len(gone))
        fill = (stages - 1) / ((MICRO_BATCHES_PER_STAGE + 1) * stages - 1)
        pause_s = CONTROL_S + self.transfer_s(len(nodes))
        return Standing(rate=self.model.rate(len(nodes)), pause_s=pause_s, kept=kept, fill=fill)

    def joined(self, nodes: Sequence[str]) -> Standing:
        return Standing(rate=self.model.rate(len(nodes)), pause_s=CONTROL_S + self.transfer_s(len(nodes)))

    def transfer_s(self, num_nodes: int) -> float:
        """Return at most how long state moves: each node of a pipeline gets all of its layers anew, at once."""
        return self.model.parameters * BYTES_PER_PARAMETER / self._stages(num_nodes) / BYTES_PER_S

    def _stages(self, num_nodes: int) -> int:
        return max(1, num_nodes // NUM_PIPELINES)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One trace and one model. ``nothing_kept``: ours, if it did the whole unfinished step again.

    ``ours_as_printed``: ours by the rules of the simulator of Oobleck's authors, in which steps go on in a recovery.
    """

    trace: Trace
    model: PublishedModel
    published: PublishedResult
    oobleck: Replayed
    ours: Replayed
    nothing_kept: Replayed
    ours_as_printed: Replayed

    @property
    def over_published(self) -> float:
        """Ours beside what the simulator of Oobleck's authors prints, which goes on with steps in a recovery."""
        return self.ours.samples_per_s / self.published.oobleck

    @property
    def over_as_printed(self) -> float:
        """Both by the rules of that simulator."""
        return self.ours_as_printed.samples_per_s / self.published.oobleck

    @property
    def over_oobleck(self) -> float:
        """Ours beside Oobleck's constants in this simulation."""
        return self.ours.samples_per_s / self.oobleck.samples_per_s


def rows(traces: Sequence[str] = (), models: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the rows of the published table, or those of some traces and models, by name."""
    for trace in published_traces():
        for model in MODELS:
            if (not traces or trace.name in traces) and (not models or model.name in models):
                yield Row(
                    trace=trace,
                    model=model,
                    published=RESULTS[trace.name, model.name],
                    oobleck=replay(trace, Oobleck(model=model)),
                    ours=replay(trace, Ours(model=model)),
                    nothing_kept=replay(trace, Ours(model=model, keeps_shares=False)),
                    ours_as_printed=replay(trace, Ours(model=model), works_in_recoveries=True),
                )
