"""The report of a training as text for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...world.launcher.pipelines import LOST_RANK, PipelineRanks, pipelines_text, sizes_of
from ..events import PipelinesChanged
from .progress import weakness
from .recoveries import Recovery
from .report import MemberReport, Note, TrainingReport, lossy_causes
from .words import counted, duration, number, size

MAX_RECOVERIES = 50
MAX_MEMBERS = 40
MAX_PIPELINES = 16
CAUSE_WIDTH = 14


def report_text(report: TrainingReport, clock: Callable[[float], str]) -> str:
    """Return the report in some lines. ``clock``: shows a moment in Unix time."""
    blocks = [_summary(report), _time(report)]
    if report.pipelines:
        blocks.append(_pipelines(report.pipelines))
    if report.recoveries:
        blocks.append(_recoveries(report, clock))
    if report.slow_ranks:
        blocks.append(["slow ranks", *(f"  {each}" for each in _slow(report))])
    if report.notes:
        blocks.append(_notes(report, clock))
    blocks.append(_members(report.members))
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _summary(report: TrainingReport) -> list[str]:
    account = report.account
    if report.last_step is None:
        steps = "no step was committed"
    else:
        of = "" if report.total is None else f" of {report.total:,}"
        steps = f"{account.num_steps:,}{of} steps committed (the last one has index {report.last_step})"
    members = "processes" if report.pipelines else "replicas"
    figures = (
        f"goodput {100 * account.goodput:.1f} %, {number(account.samples_per_s)} samples/s, "
        f"{account.mean_replicas:.3g} {members} on average of at most {report.max_replicas}, "
        f"{counted(len(report.failures), 'failure')}, {_micro_batches(account.num_redone)} computed again"
    )
    lines = [f"training {report.job}: {steps} in {duration(account.wall_s)}", figures]
    if report.last_values:
        shown = ", ".join(f"{name} {number(value)}" for name, value in report.last_values.items())
        first = f" ({report.value_name} began at {number(report.curve[0][1])})" if report.curve else ""
        lines.append(f"last values: {shown}{first}")
    if report.num_thinned:
        lines.append(
            f"the record was thinned: of {counted(report.num_thinned, 'step')} far from any failure it has only means "
            f"and sums, over up to {report.max_per_line:,} steps each"
        )
    return lines


def _time(report: TrainingReport) -> list[str]:
    account = report.account
    rows = [("good", account.good_s), *lossy_causes(account)]
    return ["where the time went", *(f"  {_row(cause, took_s, account.wall_s)}" for cause, took_s in rows)]


def _row(cause: str, took_s: float, wall_s: float) -> str:
    share = 100 * took_s / wall_s if wall_s > 0 else 0.0
    return f"{cause:<{CAUSE_WIDTH}} {duration(took_s):>8}  {share:5.1f} %"


def _pipelines(changes: Sequence[PipelinesChanged]) -> list[str]:
    lines = ["pipelines"]
    for each in changes[:MAX_RECOVERIES]:
        told = [f"generation {each.generation}: {pipelines_text(sizes_of(each.pipelines))}"]
        told += [each.policy] if each.policy else []
        told += [f"{duration(each.iteration_s)} a step predicted"] if each.iteration_s else []
        told += [f"{counted(each.num_moved, 'layer')} moved"] if each.num_moved else []
        told += [weak] if (weak := weakness(each)) else []
        lines.append(f"  from step {each.step}, {', '.join(told)}")
        lines += [f"    {_pipeline(one, each.num_layers)}" for one in each.pipelines[:MAX_PIPELINES]]
        if len(each.pipelines) > MAX_PIPELINES:
            lines.append(f"    and {len(each.pipelines) - MAX_PIPELINES} more")
    if len(changes) > MAX_RECOVERIES:
        lines.append(f"  and {len(changes) - MAX_RECOVERIES} more (see --json)")
    return lines


def _pipeline(pipeline: PipelineRanks, num_layers: int) -> str:
    stages = [_stage(pipeline, stage, num_layers) for stage in range(len(pipeline.ranks))]
    bubbles = "" if pipeline.idle is None else f", {100 * pipeline.idle:.0f} % bubbles"
    return f"{', '.join(stages)}: {counted(pipeline.num_micro_batches, 'micro-batch')}{bubbles}"


def _stage(pipeline: PipelineRanks, stage: int, num_layers: int) -> str:
    rank, layers = pipeline.ranks[stage], _range(pipeline.layers_of(stage, num_layers))
    if rank == LOST_RANK:
        return f"others {layers}"
    num = pipeline.num_computed(stage)
    return f"rank {rank} {layers}" + ("" if num == pipeline.num_micro_batches else f" (computes {num})")


def _range(layers: range) -> str:
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"


def _recoveries(report: TrainingReport, clock: Callable[[float], str]) -> list[str]:
    lines, recoveries = ["failures, joins and leaves"], report.recoveries
    for count, each in enumerate(recoveries[:MAX_RECOVERIES], 1):
        lines.append(f"  {count}. {clock(each.began_at)}  step {each.step}, {headline(each)}")
        lines += [f"     rank {lost.rank}: {lost.cause}: {lost.detail}" for lost in each.lost]
        lines.append(f"     {story(each, report.members_noun)}")
    if len(recoveries) > MAX_RECOVERIES:
        lines.append(f"  and {len(recoveries) - MAX_RECOVERIES} more (see --json)")
    return lines


def headline(recovery: Recovery) -> str:
    """Return what happened: ``rank 2 was lost, rank 5 came``."""
    lost = [each.rank for each in recovery.lost if each.rank >= 0]
    parts = [_verb(lost, "was lost", "were lost")] if lost else []
    if recovery.lost and not lost:
        parts.append("a member was lost")
    gone = [rank for rank in recovery.gone if rank not in lost]
    parts += [_verb(gone, "left", "left")] if gone else []
    parts += [_verb(recovery.came, "came", "came")] if recovery.came else []
    return ", ".join(parts) or "the membership was formed again"


def story(recovery: Recovery, noun: str = "replica") -> str:
    """Return how it went on: the phases, what was done again, and who goes on. ``noun``: of what goes on."""
    if recovery.committed_at is None:
        told = f"no step was committed after it ({duration(recovery.took_s)} are recorded)"
    else:
        told = f"the next step was committed after {duration(recovery.took_s)}"
    phases = ", ".join(f"{each.name} {duration(each.took_s)}" for each in recovery.phases)
    parts = [f"{told}: {phases}" if phases else told]
    if recovery.redone:
        parts.append(f"{_micro_batches(recovery.redone)} computed again")
    parts += [
        f"rank {each.rank} took {size(each.size_bytes)} of state from {counted(each.sources, 'peer')} "
        f"in {duration(each.took_s)}"
        for each in recovery.transfers
    ]
    if recovery.ranks:
        parts.append(f"generation {recovery.generation}: {counted(len(recovery.ranks), noun)}")
    return "; ".join(parts)


def _micro_batches(how_many: int) -> str:
    return f"{how_many:,} micro-batch{'es' * (how_many != 1)}"


def _verb(ranks: Sequence[int], one: str, many: str) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} {one}"
    return f"ranks {', '.join(map(str, ranks))} {many}"


def _slow(report: TrainingReport) -> list[str]:
    return [
        f"rank {each.rank} was {each.factor:.2g}x slower than the middle rank in {each.part}, "
        f"in {counted(each.num_steps, 'step')} from {each.first_step} to {each.last_step}"
        for each in report.slow_ranks
    ]


def _notes(report: TrainingReport, clock: Callable[[float], str]) -> list[str]:
    def line(note: Note) -> str:
        return f"  {clock(note.at)}  rank {note.rank}  {note.kind}: {note.text}"

    left_out = report.num_notes - len(report.notes)
    return ["other events", *map(line, report.notes), *([f"  and {left_out} more"] if left_out else [])]


def _members(members: Sequence[MemberReport]) -> list[str]:
    def line(each: MemberReport) -> str:
        steps = "no steps" if each.first_step is None else f"steps {each.first_step} to {each.last_step}"
        return f"  rank {each.rank:<4} {each.member[:12]:<12} pid {each.pid:<8} {steps:<22} {each.end}"

    more = [f"  and {len(members) - MAX_MEMBERS} more"] if len(members) > MAX_MEMBERS else []
    return ["members", *map(line, members[:MAX_MEMBERS]), *more]
