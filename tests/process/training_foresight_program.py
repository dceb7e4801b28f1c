"""Like ``training_pipeline_program``, of a job for which plans are made in advance, though it is small.

The first member waits in step ``KILLED_IN`` for its plans. It prints which plan it then takes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from multiworld.training.pipeline import foresight
from multiworld.training.pipeline.planner import Planner
from multiworld.training.pipeline.stage import StageRun
from tests.process.training_pipeline_program import Options, main

KILLED_IN = 4
FIRST = 0


def wait_for_plans() -> None:
    """Let no stage of the first member begin the step before all its plans are there."""
    begin, run = foresight.Foresight.begin, StageRun.run
    begun: list[tuple[foresight.Foresight, foresight.Order]] = []

    def begin_and_remember(self: foresight.Foresight, order: foresight.Order) -> None:
        begin(self, order)
        begun.append((self, order))

    def run_with_plans(self: StageRun, step: int, *args: Any) -> None:
        if step == KILLED_IN and len(begun) == 1:
            plans, order = begun[0]
            while any(plans.outcome(order.generation, each) is None for each in order.lost):
                time.sleep(0.01)
        run(self, step, *args)

    for owner, name, method in (
        (foresight.Foresight, "begin", begin_and_remember),
        (StageRun, "run", run_with_plans),
    ):
        setattr(owner, name, method)


def tell_plans() -> None:
    name = "_foreseen"
    foreseen = getattr(Planner, name)

    def told(self: Planner, *args: Any) -> Any:
        found = foreseen(self, *args)
        print("planned in advance:", None if found is None else found.policy.value, flush=True)
        return found

    setattr(Planner, name, told)


if __name__ == "__main__":
    foresight.WORTH_IT = 1
    if int(os.environ["RANK"]) == FIRST:
        wait_for_plans()
        tell_plans()
    given = json.loads(sys.argv[2])
    main(Path(sys.argv[1]), Options(**{**given, "kills": tuple(map(tuple, given["kills"]))}))
