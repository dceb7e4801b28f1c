"""``srun multiworld run`` on a real Slurm of two nodes: the hosts find each other, and ``scancel`` ends them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from multiworld.testing import wait_until
from tests.process.slurm_cluster import slurm_cluster, why_no_slurm

pytestmark = pytest.mark.skipif(why_no_slurm() is not None, reason=why_no_slurm() or "")

RUN = ["srun", "--job-name=python-step", "--nodes=2", "--ntasks-per-node=1", sys.executable, "-m", "multiworld.run"]
PROGRAM = """\
import os, signal, sys
from pathlib import Path
import torch
import torch.distributed as dist

def end(*_):
    (folder / ("ended" + rank)).touch()
    os._exit(0)  # Slurm signals every process of the step, and so does our agent: a second one must find nobody

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
signal.signal(signal.SIGTERM, end)
dist.init_process_group("gloo")
total = torch.tensor([float(rank)])
dist.all_reduce(total)
names = ("GROUP_RANK", "LOCAL_RANK", "SLURM_NODEID", "TORCHELASTIC_RUN_ID")
(folder / "new").with_suffix("." + rank).write_text(f"{total.item():g} " + " ".join(os.environ[name] for name in names))
(folder / ("new." + rank)).rename(folder / ("told" + rank))
signal.pause()
"""


def test_the_hosts_of_a_step_find_each_other_without_an_option_and_scancel_ends_them(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with slurm_cluster(tmp_path) as environment:
        step = subprocess.Popen(
            [*RUN, "--nproc-per-node=2", program, tmp_path], env=environment, stderr=subprocess.PIPE, text=True
        )
        try:
            told = [tmp_path / f"told{rank}" for rank in range(4)]
            begun = wait_until(lambda: all(each.exists() for each in told) or step.poll() is not None, 40)
            subprocess.run(["scancel", "--name=python-step"], env=environment, check=True)
            _, errors = step.communicate(timeout=20)
        finally:
            step.kill()
            step.wait()
    assert begun, f"the workers do not begin: {errors}"
    places = [each.read_text().split() for each in told]
    assert [each[:4] for each in places] == [
        ["6", "0", "0", "0"],
        ["6", "0", "1", "0"],
        ["6", "1", "0", "1"],
        ["6", "1", "1", "1"],
    ]
    assert {each[4] for each in places} == {"slurm-1.0"}
    assert all((tmp_path / f"ended{rank}").exists() for rank in range(4)), errors
