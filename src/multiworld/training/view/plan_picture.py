"""A plan as a picture: who has which layers, when stages compute, and the pipelines for each count of nodes. Pure."""

from __future__ import annotations

from html import escape

from ..planning.operations import Kind
from ..planning.timelines import TemplateTimeline
from .plan_view import PipelinesFor, PlanView
from .svg import LEFT, RIGHT, WIDTH, document, keys, text
from .words import counted, duration, number

MAX_TEMPLATES = 8
"""With a timeline; the others are in the table."""
MAX_STAGES = 16
MAX_COUNTS = 40
STAGE_ROW = 13
BAR = 22
NUM_COLOURS = 6
ROOM = WIDTH - LEFT - RIGHT
STYLE = """
.forward{fill:#2763d0}.backward{fill:#0c8a61}.weight{fill:#7d54c9}.idle{fill:#eceff3}.on{fill:#fff}
.n0{fill:#cfe0ff}.n1{fill:#d3efdf}.n2{fill:#fbe3bd}.n3{fill:#e6dbfa}.n4{fill:#fbd3d4}.n5{fill:#dfe3e9}
@media (prefers-color-scheme:dark){.forward{fill:#6ea1ff}.backward{fill:#3fbf8f}.weight{fill:#b294f0}.idle{fill:#1b2028}
.on{fill:#0f1216}.n0{fill:#24406f}.n1{fill:#1d4f3c}.n2{fill:#5c4217}.n3{fill:#443066}.n4{fill:#65292d}.n5{fill:#343b46}}
"""


def plan_picture(view: PlanView) -> str:
    """Return an SVG document."""
    parts: list[str] = []
    parts.append(text(LEFT, 30, f"{view.profile.model}: templates for {view.num_nodes} nodes", "ink title"))
    told = (
        f"{counted(view.profile.num_layers, 'layer')}, {counted(view.num_micro_batches, 'micro-batch')} a step; "
        f"{counted(view.smallest, 'node')} hold{'s' * (view.smallest == 1)} the model"
    )
    parts.append(text(LEFT, 50, told, "soft"))
    kinds = {each.kind for shown in view.timelines for each in shown.operations}
    labels = [(kind.value, kind.value) for kind in Kind if kind in kinds]
    y = keys(parts, [*labels, ("idle", "bubble: a stage waits")], 74)
    shown = [each for each in view.timelines if each.template.num_stages <= MAX_STAGES][:MAX_TEMPLATES]
    longest_s = max((each.iteration_s for each in shown), default=1.0)
    for each in shown:
        y = _template(parts, each, view.profile.num_layers, longest_s, y + 30)
    if left_out := len(view.timelines) - len(shown):
        y += 22
        parts.append(
            text(LEFT, y, f"{counted(left_out, 'larger template')} not drawn: the table has them", "soft small")
        )
    if view.pipelines:
        y = _pipelines(parts, view, y + 40)
    return document(parts, y + 24, STYLE, f"templates and pipelines of {view.profile.model}")


def _template(parts: list[str], shown: TemplateTimeline, num_layers: int, longest_s: float, top: float) -> float:
    template = shown.template
    told = (
        f"{counted(template.num_nodes, 'node')}: {duration(shown.iteration_s)} for "
        f"{counted(template.num_micro_batches, 'micro-batch')}, {100 * shown.bubbles:.1f} % bubbles"
        f"{', activations computed again' if template.recompute else ''}"
    )
    parts.append(text(LEFT, top, told, "ink head"))
    top += 8
    for stage in template.stages:
        x, width = LEFT + ROOM * stage.first / num_layers, ROOM * stage.num_layers / num_layers
        label = f"{stage.first}" if stage.num_layers == 1 else f"{stage.first}-{stage.end - 1}"
        parts.append(
            f'<rect class="n{stage.node % NUM_COLOURS}" x="{x:.1f}" y="{top:.1f}" width="{max(width - 1, 1):.1f}" '
            f'height="{BAR}" rx="2"><title>{escape(_stage_title(stage.node, label, stage.devices))}</title></rect>'
        )
        if width > 7 * len(label):
            parts.append(text(x + width / 2, top + 15, label, "ink small", anchor="middle"))
    parts.append(text(LEFT - 8, top + 15, "layers", "soft small", anchor="end"))
    top += BAR + 5
    return _timeline(parts, shown, longest_s, top)


def _stage_title(node: int, layers: str, devices: int) -> str:
    return f"node {node}: layers {layers}" + (f" on {devices} devices" if devices > 1 else "")


def _timeline(parts: list[str], shown: TemplateTimeline, longest_s: float, top: float) -> float:
    """A row for each stage; all templates have the same scale of time."""
    scale = ROOM / longest_s
    for stage in range(shown.template.num_stages):
        y = top + STAGE_ROW * stage
        parts.append(
            f'<rect class="idle" x="{LEFT}" y="{y:.1f}" width="{scale * shown.iteration_s:.1f}" '
            f'height="{STAGE_ROW - 2}"/>'
        )
        node = shown.template.stages[stage].node
        parts.append(text(LEFT - 8, y + 10, f"node {node}", "soft small", anchor="end"))
    for each in shown.operations:
        x, width = LEFT + scale * each.begin_s, scale * (each.end_s - each.begin_s)
        y = top + STAGE_ROW * each.stage
        told = f"stage {each.stage}: {each.kind.value} of micro-batch {each.micro_batch}"
        parts.append(
            f'<rect class="{each.kind.value}" x="{x:.2f}" y="{y:.1f}" width="{max(0.92 * width, width - 0.8):.2f}" '
            f'height="{STAGE_ROW - 2}"><title>{told}</title></rect>'
        )
        if width > 6 * len(str(each.micro_batch)) + 3:
            parts.append(text(x + width / 2, y + 9, str(each.micro_batch), "on small", anchor="middle"))
    return top + STAGE_ROW * shown.template.num_stages


def _pipelines(parts: list[str], view: PlanView, top: float) -> float:
    parts.append(text(LEFT, top, "pipelines for each number of nodes, with their micro-batches", "ink head"))
    y = top + 12
    shown = view.pipelines[-MAX_COUNTS:]
    cell = min(34.0, (ROOM - 190) / max(each.num_nodes for each in shown))
    for each in shown:
        _count(parts, view, each, cell, y)
        y += 21
    if left_out := len(view.pipelines) - len(shown):
        parts.append(text(LEFT, y + 12, f"and {left_out} smaller counts", "soft small"))
        y += 20
    return y


def _count(parts: list[str], view: PlanView, found: PipelinesFor, cell: float, y: float) -> None:
    """One number of nodes: a bar for each pipeline, as long as its nodes."""
    parts.append(text(LEFT - 8, y + 13, f"{found.num_nodes}", "soft small", anchor="end"))
    x: float = LEFT
    for at, (nodes, batches) in enumerate(found.pipelines):
        width = cell * nodes
        told = f"{counted(nodes, 'node')}, {counted(batches, 'micro-batch')}"
        parts.append(
            f'<rect class="n{at % NUM_COLOURS}" x="{x:.1f}" y="{y:.1f}" width="{width - 2:.1f}" height="18" rx="3">'
            f"<title>{told}</title></rect>"
        )
        if width > 8 * len(str(batches)):
            parts.append(text(x + width / 2 - 1, y + 13, str(batches), "ink small", anchor="middle"))
        x += width
    rate = (
        f"{number(found.samples_per_s(view.global_batch))} samples/s, {100 * view.proportional(found):.0f} %"
        + (f", {found.idle} idle" if found.idle else "")
        if found.pipelines
        else found.note
    )
    parts.append(text(x + 8, y + 13, rate, "soft small"))
