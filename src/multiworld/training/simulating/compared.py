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
BYTES_PER_PARAMETER = 12
"""What moves with a parameter: itself and two moments of Adam, in fp32."""
NUM_PIPELINES = 2
"""The fewest that survive a loss."""


@dataclass(frozen=True, kw_only=True)
class Oobleck:
    """Oobleck with its assumed reconfiguration; the step is lost, and new nodes wait for the next loss, as there."""

    model: PublishedModel
    name: str = "Oobleck"
    takes_joins: bool = False

    @property
    def samples_per_step(self) -> int:
        return self.model.samples_per_step

    def begun(self, nodes: Sequence[str]) -> Standing:
        return Standing(rate=self.model.rate(len(nodes)))

    def lost(self, nodes: Sequence[str], gone: Sequence[str]) -> Standing:
        return Standing(rate=self.model.rate(len(nodes)), pause_s=self.model.oobleck_s, kept=0.0)

    def joined(self, nodes: Sequence[str]) -> Standing:
        return Standing(rate=self.model.rate(len(nodes)), pause_s=self.model.oobleck_s)


@dataclass(frozen=True, kw_only=True)
class Ours:
    """This project at the same rates: the unfinished step is done again, and new nodes are used after the current step.

    ``keeps_shares``: what if only those pipelines redid their share of the step that lost a node.
    """

    model: PublishedModel
    keeps_shares: bool = False
    name: str = "multiworld"
    takes_joins: bool = True

    @property
    def samples_per_step(self) -> int:
        return self.model.samples_per_step

    def begun(self, nodes: Sequence[str]) -> Standing:
        return Standing(rate=self.model.rate(len(nodes)))

    def lost(self, nodes: Sequence[str], gone: Sequence[str]) -> Standing:
        """At worst each lost node was in another pipeline."""
        kept = max(0.0, 1.0 - len(gone) / NUM_PIPELINES) if self.keeps_shares else 0.0
        return Standing(rate=self.model.rate(len(nodes)), pause_s=CONTROL_S + self.transfer_s(len(nodes)), kept=kept)

    def joined(self, nodes: Sequence[str]) -> Standing:
        return Standing(rate=self.model.rate(len(nodes)), pause_s=CONTROL_S + self.transfer_s(len(nodes)))

    def transfer_s(self, num_nodes: int) -> float:
        """Return at most how long state moves: each node of a pipeline gets all of its layers anew, at once."""
        stages = max(1, num_nodes // NUM_PIPELINES)
        return self.model.parameters * BYTES_PER_PARAMETER / stages / BYTES_PER_S


@dataclass(frozen=True, kw_only=True)
class Row:
    """One trace and one model. ``shares_kept``: ours, if it redid no more than the share of the pipeline that broke."""

    trace: Trace
    model: PublishedModel
    published: PublishedResult
    oobleck: Replayed
    ours: Replayed
    shares_kept: Replayed

    @property
    def over_published(self) -> float:
        """Ours beside what the simulator of Oobleck's authors prints, which goes on with steps in a recovery."""
        return self.ours.samples_per_s / self.published.oobleck

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
                    shares_kept=replay(trace, Ours(model=model, keeps_shares=True)),
                )
