"""What replayed failures came to, as tables and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..simulating.compared import BYTES_PER_S, CONTROL_S, NUM_PIPELINES, Row
from ..simulating.replay import Replayed
from ..simulating.trace import Trace
from .words import columns, counted, duration, number


def published_text(rows: Sequence[Row]) -> str:
    """Return the table of the published setting, and what is assumed."""
    header = (
        "losses",
        "model",
        "Varuna",
        "Bamboo",
        "Oobleck",
        "Oobleck here",
        "multiworld",
        "over",
        "both",
        "effective",
    )
    table = [
        (
            row.trace.name,
            row.model.name,
            _rate(row.published.varuna),
            _rate(row.published.bamboo),
            _rate(row.published.oobleck),
            _rate(row.oobleck.samples_per_s),
            _rate(row.ours.samples_per_s),
            f"{100 * (row.over_published - 1):+.3f} %",
            f"{100 * (row.over_oobleck - 1):+.3f} %",
            f"{100 * row.oobleck.effective:.1f}, {100 * row.ours.effective:.1f} %",
        )
        for row in rows
    ]
    return "\n".join(
        [
            "Samples a second, and how far multiworld is above both columns of Oobleck.",
            "Effective: which part of the time made work that was committed; the last two systems.",
            "",
            columns([header, *table], left=2),
            "",
            *_assumptions(),
            "",
            *_summary(rows),
        ]
    )


def _assumptions() -> list[str]:
    speed = f"{8 * BYTES_PER_S / 1e9:g} Gb/s"
    return [
        "Varuna, Bamboo, Oobleck: what the simulator of Oobleck's authors prints (branch sosp23-artifact).",
        "  It counts steps that end within Oobleck's recoveries, and stands still after two losses at one moment.",
        "Oobleck here, multiworld: the same traces, and the rates that its authors published for each count of nodes;",
        "  nobody computes in a recovery.",
        "  Oobleck here: its assumed reconfiguration of 2, 2, 3, 6, 10 s; the unfinished step is done again, and new",
        "  nodes wait for the next loss.",
        f"  multiworld: {CONTROL_S:g} s for a recovery, and the state of one of {NUM_PIPELINES} pipelines moves over",
        f"  {speed}; what the other one had finished of the step is kept; new nodes are used after the current step.",
        "Decision 041 (docs/decisions/) says what is measured and what is assumed, and why this is fair.",
    ]


def _summary(rows: Sequence[Row]) -> list[str]:
    def least(name: str, over: Sequence[float]) -> str:
        behind = sum(each < 1.0 for each in over)
        return (
            f"{name}: {counted(len(over), 'row')}, behind in {behind or 'none'}, least {100 * (min(over) - 1):+.3f} %"
        )

    nothing_kept = [row.nothing_kept.samples_per_s / row.published.oobleck for row in rows]
    return [
        least("multiworld beside Oobleck here", [row.over_oobleck for row in rows]),
        least("multiworld beside Oobleck as printed, both by those rules", [row.over_as_printed for row in rows]),
        least("multiworld beside Oobleck as printed, each by its own rules", [row.over_published for row in rows]),
        least("the same, if the whole unfinished step was done again", nothing_kept),
    ]


def published_json(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Return an object for each row; times in seconds, rates in samples a second."""
    return [
        {
            "trace": row.trace.name,
            "model": row.model.name,
            "published": {
                "oobleck": row.published.oobleck,
                "varuna": row.published.varuna,
                "bamboo": row.published.bamboo,
            },
            "oobleck": replayed_json(row.oobleck),
            "multiworld": replayed_json(row.ours),
            "multiworld_as_printed": replayed_json(row.ours_as_printed),
            "multiworld_nothing_kept": replayed_json(row.nothing_kept),
        }
        for row in rows
    ]


def replayed_json(found: Replayed) -> dict[str, object]:
    return {
        "system": found.system,
        "samples_per_s": found.samples_per_s,
        "effective": found.effective,
        "num_steps": found.num_steps,
        "num_samples": found.num_samples,
        "wall_s": found.wall_s,
        "good_s": found.good_s,
        "redone_s": found.redone_s,
        "paused_s": found.paused_s,
        "stopped_s": found.stopped_s,
    }


def replayed_text(trace: Trace, found: Sequence[Replayed]) -> str:
    """Return a table with a row for each system on one trace."""
    best = max((each.samples_per_s for each in found), default=0.0)
    header = ("", "samples/s", "of the best", "effective", "redone", "paused", "stopped", "steps")
    rows = [
        (
            each.system,
            number(each.samples_per_s),
            f"{100 * each.samples_per_s / best:.1f} %" if best else "-",
            f"{100 * each.effective:.1f} %",
            duration(each.redone_s),
            duration(each.paused_s),
            duration(each.stopped_s),
            f"{each.num_steps:,}",
        )
        for each in found
    ]
    told = (
        f"{trace.name}: {counted(trace.nodes_at_start, 'node')}, {counted(trace.num_losses, 'loss')}, "
        f"{counted(trace.num_joins, 'join')} in {duration(trace.end_s)}"
    )
    return f"{told}\n\n{columns([header, *rows], left=1)}"


def _rate(value: float) -> str:
    return f"{value:.3f}" if value else "-"
