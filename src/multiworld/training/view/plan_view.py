"""What a plan shows: the templates with their timelines, and the pipelines for each number of nodes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ..planning.nodes import Node
from ..planning.profile import Profile
from ..planning.timelines import TemplateTimeline
from .words import columns, counted, duration, number, size


@dataclass(frozen=True, kw_only=True)
class PipelinesFor:
    """The pipelines of ``num_nodes`` nodes, as pairs of nodes and micro-batches. ``note``: why there are none.

    ``idle``: nodes in no pipeline.
    """

    num_nodes: int
    pipelines: tuple[tuple[int, int], ...] = ()
    iteration_s: float = 0.0
    idle: int = 0
    note: str = ""

    def samples_per_s(self, global_batch: int) -> float:
        return global_batch / self.iteration_s if self.iteration_s > 0 else 0.0

    @property
    def survives(self) -> int:
        """How many nodes may be lost at once, whichever they are, while each layer is left on one."""
        return max(0, len(self.pipelines) - 1)


@dataclass(frozen=True, kw_only=True)
class PlanView:
    """``smallest``: how many nodes hold the model. ``pipelines``: from so many nodes to all that there are."""

    profile: Profile
    node: Node
    num_nodes: int
    tolerate: int
    num_micro_batches: int
    smallest: int
    timelines: Sequence[TemplateTimeline]
    pipelines: Sequence[PipelinesFor]

    @property
    def global_batch(self) -> int:
        return self.num_micro_batches * self.profile.micro_batch

    def proportional(self, found: PipelinesFor) -> float:
        """Return the rate beside that part of the rate of all nodes which these nodes are."""
        whole = self.pipelines[-1].iteration_s * self.pipelines[-1].num_nodes
        return whole / (found.iteration_s * found.num_nodes) if found.iteration_s > 0 else 0.0


def plan_text(view: PlanView) -> str:
    """Return both tables."""
    tables = [f"templates\n{_templates(view)}"]
    if view.pipelines:
        tables.append(f"pipelines\n{_pipelines(view)}")
    return "\n\n".join([_head(view), *tables])


def _head(view: PlanView) -> str:
    profile, node = view.profile, view.node
    state = sum(each.state_bytes for each in profile.layers)
    memory = "" if node.memory_bytes is None else f" of {node.memory_bytes / (1 << 30):.4g} GiB"
    step_s = sum(each.work_s for each in profile.layers) * view.num_micro_batches
    needed = (view.tolerate + 1) * view.smallest
    layers = counted(
        profile.num_layers, "equal layer" if len({each.work_s for each in profile.layers}) == 1 else "layer"
    )
    model = (
        f"{profile.model}: {layers}, {size(state)} of state, {duration(step_s)} of work "
        f"in a step of {counted(view.global_batch, 'sample')} ({counted(view.num_micro_batches, 'micro-batch')} of "
        f"{profile.micro_batch})"
    )
    nodes = (
        f"{counted(view.num_nodes, 'node')}, each {counted(node.devices, 'device')}{memory}: "
        f"{counted(view.smallest, 'node')} hold{'s' * (view.smallest == 1)} the model"
    )
    if view.tolerate:
        nodes += f"; {needed} nodes survive the loss of any {view.tolerate}"
        if needed > view.num_nodes:
            nodes += f", these {view.num_nodes} do not"
    return f"{model}\n{nodes}"


def _templates(view: PlanView) -> str:
    header = ("nodes", "micro-batches", "step", "bubbles", "schedule", "in flight", "layers of each stage")
    rows = [
        (
            str(each.template.num_nodes),
            str(each.template.num_micro_batches),
            duration(each.iteration_s),
            f"{100 * each.bubbles:.1f} %",
            each.template.schedule.value,
            str(max(each.template.max_in_flight)) + (", recomputed" if each.template.recompute else ""),
            runs([stage.num_layers for stage in each.template.stages]),
        )
        for each in view.timelines
    ]
    widths = columns([tuple(row[:6]) for row in (header, *rows)], left=0).splitlines()
    return "\n".join(f"{start}  {row[6]}" for start, row in zip(widths, (header, *rows), strict=True))


def _pipelines(view: PlanView) -> str:
    header = ("nodes", "step", "samples/s", "of proportional", "survives", "pipelines: nodes (micro-batches)")
    rows = [
        (
            str(each.num_nodes),
            duration(each.iteration_s) if each.pipelines else "-",
            number(each.samples_per_s(view.global_batch)) if each.pipelines else "-",
            f"{100 * view.proportional(each):.1f} %" if each.pipelines else "-",
            counted(each.survives, "loss") if each.pipelines else "-",
            _shown(each) or each.note,
        )
        for each in view.pipelines
    ]
    starts = columns([tuple(row[:5]) for row in (header, *rows)], left=0).splitlines()
    return "\n".join(f"{start}  {row[5]}" for start, row in zip(starts, (header, *rows), strict=True))


def _shown(found: PipelinesFor) -> str:
    """Return ``2 x 3 (16), 4 (21)``."""
    grouped = [(pair, len(list(same))) for pair, same in groupby(sorted(found.pipelines))]
    parts = [f"{f'{many} x ' * (many > 1)}{nodes} ({batches})" for (nodes, batches), many in grouped]
    return ", ".join([*parts, *([f"{found.idle} idle"] if found.idle else [])])


def runs(counts: Sequence[int]) -> str:
    """Return ``4x13 2x12`` for 13, 13, 13, 13, 12, 12, and single counts as they are."""
    return " ".join(
        f"{many}x{count}" if many > 2 else " ".join([str(count)] * many)
        for count, many in ((count, len(list(same))) for count, same in groupby(counts))
    )


def plan_json(view: PlanView) -> dict[str, object]:
    """Return all of it for programs; times in seconds, sizes in bytes."""
    return {
        "model": view.profile.model,
        "num_layers": view.profile.num_layers,
        "num_nodes": view.num_nodes,
        "tolerate": view.tolerate,
        "smallest": view.smallest,
        "micro_batch": view.profile.micro_batch,
        "num_micro_batches": view.num_micro_batches,
        "templates": [
            {
                "num_nodes": each.template.num_nodes,
                "num_micro_batches": each.template.num_micro_batches,
                "iteration_s": each.iteration_s,
                "bubbles": each.bubbles,
                "schedule": each.template.schedule.value,
                "recompute": each.template.recompute,
                "max_in_flight": list(each.template.max_in_flight),
                "stages": [
                    {"first": stage.first, "end": stage.end, "node": stage.node, "devices": stage.devices}
                    for stage in each.template.stages
                ],
            }
            for each in view.timelines
        ],
        "pipelines": [
            {
                "num_nodes": each.num_nodes,
                "pipelines": [{"num_nodes": nodes, "num_micro_batches": count} for nodes, count in each.pipelines],
                "iteration_s": each.iteration_s or None,
                "samples_per_s": each.samples_per_s(view.global_batch),
                "survives": each.survives,
                "idle": each.idle,
                "note": each.note or None,
            }
            for each in view.pipelines
        ],
    }
