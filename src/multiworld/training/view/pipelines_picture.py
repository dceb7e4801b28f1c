"""The pipelines of a training over its steps, as a part of a picture: which rank had which layers when. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from ...world.launcher.pipelines import LOST_RANK, PipelineRanks
from ..events import PipelinesChanged
from .svg import LEFT, RIGHT, WIDTH, text
from .words import counted

MAX_RANKS = 32
ROW = 18
NUM_COLOURS = 6
STYLE = """
.p0{fill:#cfe0ff}.p1{fill:#d3efdf}.p2{fill:#fbe3bd}.p3{fill:#e6dbfa}.p4{fill:#fbd3d4}.p5{fill:#dfe3e9}
@media (prefers-color-scheme:dark){.p0{fill:#24406f}.p1{fill:#1d4f3c}.p2{fill:#5c4217}.p3{fill:#443066}.p4{fill:#65292d}
.p5{fill:#343b46}}
"""


def add_pipelines(
    parts: list[str], changes: Sequence[PipelinesChanged], last: int, x_of: Callable[[float], float], top: float
) -> float:
    """Add a row for each rank, with its layers over the steps; return the end. ``last``: the last step.

    All ranks of a pipeline have its colour, and its micro-batches stand in the row of its first stage; those that a
    rank computes stand in its row if some are of other pipelines.
    """
    ranks = sorted({rank for change in changes for each in change.pipelines for rank in each.ranks} - {LOST_RANK})
    row_of = {rank: row for row, rank in enumerate(ranks[:MAX_RANKS])}
    parts.append(text(LEFT, top, "pipelines: a colour for each, with the layers of its ranks", "ink head"))
    top += 8
    for rank, row in row_of.items():
        parts.append(text(LEFT - 8, top + ROW * row + 12, f"rank {rank}", "soft small", anchor="end"))
    for number, change in enumerate(changes):
        end = changes[number + 1].step if number + 1 < len(changes) else last + 1
        left, right = x_of(change.step), x_of(end) if number + 1 < len(changes) else WIDTH - RIGHT
        if end <= change.step:  # none of its steps was committed
            continue
        for at, pipeline in enumerate(change.pipelines):
            for stage, rank in enumerate(pipeline.ranks):
                if rank in row_of:
                    box = _Box(left, right, top + ROW * row_of[rank], at)
                    parts += _stage(box, pipeline, stage, change.num_layers)
    top += ROW * len(row_of)
    if len(ranks) > len(row_of):
        top += 14
        parts.append(text(LEFT, top, f"and {len(ranks) - len(row_of)} more ranks", "soft small"))
    return top


class _Box:
    def __init__(self, left: float, right: float, top: float, pipeline: int) -> None:
        self.left, self.top, self.pipeline = left, top, pipeline
        self.width = max(1.0, right - left - 2)


def _stage(box: _Box, pipeline: PipelineRanks, stage: int, num_layers: int) -> list[str]:
    layers = pipeline.layers_of(stage, num_layers)
    told = f"{layers[0]}" if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"
    batches = counted(pipeline.num_computed(stage), "micro-batch")
    title = escape(f"rank {pipeline.ranks[stage]}: stage {stage} of pipeline {box.pipeline}, layers {told}, {batches}")
    drawn = [_rect(box, title)]
    label = f"layers {told}"
    label = (
        f"{label}, {batches}"
        if (pipeline.computed or not stage) and box.width > 6.6 * len(f"{label}, {batches}")
        else label
    )
    if box.width > 6.6 * len(label):
        drawn.append(text(box.left + 5, box.top + 12, label, "ink small"))
    return drawn


def _rect(box: _Box, title: str) -> str:
    return (
        f'<rect class="p{box.pipeline % NUM_COLOURS}" x="{box.left:.1f}" y="{box.top + 1:.1f}" '
        f'width="{box.width:.1f}" height="{ROW - 3}" rx="2"><title>{title}</title></rect>'
    )
