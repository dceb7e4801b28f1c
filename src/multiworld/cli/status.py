"""``multiworld status``: how a running job is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from ..command_parser import CommandParser
from ..elastic.control.messages import StatusOf
from ..elastic.job.status import JobStatus, NodeStatus, WorkerStatus
from .agents import agents_table
from .cluster import cluster_parser, conversation, table, told

MAX_WORLDS = 3  # in a row


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the status: 0, or 1 if the job cannot be asked."""
    parser = command_parser()
    options = parser.parse_args(arguments)

    def work() -> None:
        with conversation(options) as talk:
            status = talk.ask(StatusOf(), JobStatus)
        print(json.dumps(asdict(status), indent=2) if options.json else render(status, workers=options.workers))

    return told("status", work)


def command_parser() -> CommandParser:
    parser = cluster_parser("status", "Show how a running job is: its hosts, workers, worlds and restarts.")
    parser.add_argument("--workers", action="store_true", help="show each worker, too")
    return parser


def render(status: JobStatus, *, workers: bool) -> str:
    blocks = ["\n".join(_summary(status)), agents_table(status)]
    if workers:
        header = ("RANK", "AGENT", "HOST", "PID", "STATE", "RESTARTS", "WORLDS")
        blocks.append(table(header, [_row(worker) for worker in status.workers]))
    return "\n\n".join(blocks)


def _summary(status: JobStatus) -> list[str]:
    nodes, workers = status.nodes, status.workers
    num_running = sum(each.state == "running" for each in workers)
    counts = [
        f"hosts with ranks: {nodes.active} (--nnodes {nodes.min}:{nodes.max}{_wanted(nodes)})",
        f"workers running: {num_running} of {len(workers)}",
        f"worlds: {len(status.worlds)}",
        f"restarts: {status.restarts}",
    ]
    lines = [
        f"job {status.job}: {status.phase}, generation {status.generation}, restart policy {status.policy}",
        ", ".join(counts),
    ]
    if status.page is not None:
        lines.append(f"page: {status.page}")
    return lines


def _wanted(nodes: NodeStatus) -> str:
    return "" if nodes.wanted == nodes.max else f", scaled to {nodes.wanted}"


def _row(worker: WorkerStatus) -> tuple[object, ...]:
    worlds = worker.worlds
    more = f" and {len(worlds) - MAX_WORLDS} more" if len(worlds) > MAX_WORLDS else ""
    return (
        "-" if worker.rank is None else worker.rank,
        "-" if worker.index is None else worker.index,
        worker.host or "-",
        "-" if worker.pid is None else worker.pid,
        worker.state,
        worker.restarts,
        ", ".join(worlds[:MAX_WORLDS]) + more or "-",
    )
