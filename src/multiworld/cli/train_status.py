"""``multiworld train status``: how the trainings of a running job stand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from ..command_parser import CommandParser
from ..elastic.control.client import ControlError
from ..elastic.control.messages import StatusOf
from ..elastic.job.status import JobStatus
from ..elastic.job.trainings import FaultStatus, TrainingStatus
from ..training.view.progress import members_text
from ..training.view.words import counted, duration, number
from ..world.launcher.pipelines import sizes_of
from .cluster import clock, cluster_parser, conversation, told

NUM_FAULTS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how the trainings stand: 0, or 1 if the job cannot be asked, or has none."""
    options = command_parser().parse_args(arguments)

    def work() -> None:
        with conversation(options) as talk:
            status = talk.ask(StatusOf(), JobStatus)
        if options.json:
            print(json.dumps([asdict(each) for each in status.trainings], indent=2))
        elif status.trainings:
            print(render(status))
        else:
            raise ControlError(
                f"no training of the job {status.job} has committed a step yet. One that uses multiworld.training "
                "tells it here; see 'multiworld status' for the workers"
            )

    return told("train status", work)


def command_parser() -> CommandParser:
    return cluster_parser(
        "train status", "Show how the trainings of a running job stand: steps, loss, replicas, goodput, recoveries."
    )


def render(status: JobStatus) -> str:
    page = [] if status.page is None else [f"page: {status.page}"]
    return "\n\n".join("\n".join(block) for block in [*map(_block, status.trainings), page] if block)


def _block(training: TrainingStatus) -> list[str]:
    of = "" if training.total is None else f" of {training.total:,}"
    state = (
        f"ended{f': {training.reason}' if training.reason else ''}" if training.ended else f"at {clock(training.at)}"
    )
    sizes = () if training.pipelines is None else sizes_of(training.pipelines.pipelines)
    figures = [members_text(training.replicas, sizes), f"generation {training.generation}"]
    if training.value_name:
        value = "is not finite" if training.value is None else number(training.value)
        figures.insert(0, f"{training.value_name} {value}")
    if training.samples_per_s is not None:
        figures.append(f"{number(training.samples_per_s)} samples/s")
    figures.append(f"goodput {100 * training.goodput:.1f} %")
    if training.left_s is not None and not training.ended:
        figures.append(f"{duration(round(training.left_s))} left")
    counts = ", ".join(f"{counted(count, kind)}" for kind, count in training.num_faults.items())
    return [
        f"training {training.name}: step {training.step + 1:,}{of}, {state}",
        f"  {', '.join(figures)}",
        *([f"  {counts}; the last ones:"] if training.faults else ["  no failures, joins or leaves"]),
        *(f"    {_fault(each)}" for each in training.faults[-NUM_FAULTS:]),
    ]


def _fault(fault: FaultStatus) -> str:
    told = f"{clock(fault.at)}  step {fault.step}: {fault.text}"
    if fault.took_s is None:
        return f"{told}; no step was committed since"
    phases = ", ".join(f"{name} {duration(took_s)}" for name, took_s in fault.phases.items())
    return f"{told}; {duration(fault.took_s)} until the next commit{f' ({phases})' if phases else ''}"
