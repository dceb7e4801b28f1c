"""The programs of the page about the launcher run as they stand, in one job, and survive the loss of a worker."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from multiworld.testing import WorkerGroup, wait_until
from tests.examples.test_docs import ROOT, code_block
from tests.process.test_cluster_commands import multiworld

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("no_leaks")]

PAGE = "docs/launcher.md"
FORM_S = 25.0


def test_a_worker_that_is_killed_gets_its_rank_and_world_back(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    timer, trainer = code_block(PAGE, "FileTimerClient"), code_block(PAGE, 'manager.join("trainers")')
    path.write_text(f"def step() -> None:\n    print('timed', os.getpid(), flush=True)\n\n\n{timer}\n{trainer}")

    def workers_of(job: str) -> list[dict[str, Any]]:
        told = multiworld("status", "--job", job, "--json")
        workers: list[dict[str, Any]] = json.loads(told.out)["workers"] if told.status == 0 else []
        return workers if all(each["worlds"] == ["trainers"] for each in workers) else []

    with WorkerGroup() as workers:
        arguments = ("run", "--nproc-per-node", "2", str(path))
        environment = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
        launcher = workers.start(ROOT / "src/multiworld/__main__.py", *arguments, name="run", env=environment)
        assert wait_until(lambda: "--job " in launcher.stderr, FORM_S), launcher.describe()
        shown = (
            re.escape(code_block(PAGE, "shows how it is").strip())
            .replace("3f0c…", r"([0-9a-f-]+)")
            .replace("39079", r"\d+")
            .replace("41739", r"\d+")
        )
        (job,) = {*re.search(shown, launcher.stderr).groups()}  # type: ignore[union-attr]
        assert wait_until(lambda: len(workers_of(job)) == 2, FORM_S, poll_s=0.05), launcher.describe()
        first = re.findall(r"timed (\d+)", launcher.stdout)
        assert multiworld("kill", "1", "--job", job).status == 0
        restarted = wait_until(lambda: [each["restarts"] for each in workers_of(job)] == [0, 1], FORM_S, poll_s=0.05)
        assert restarted, launcher.describe()
        launcher.signal(signal.SIGTERM)
        launcher.wait(FORM_S)
        assert len({*first, *re.findall(r"timed (\d+)", launcher.stdout)}) == 3, "the other process stays what it is"
