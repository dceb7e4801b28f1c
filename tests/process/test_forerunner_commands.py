"""The commands of the forerunners: ``python -m multiworld``, ``m8d-post-setup``, ``pytorch_exec``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=50, check=False)


def test_the_package_itself_is_the_command() -> None:
    done = run(sys.executable, "-m", "multiworld", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("multiworld 0.")


@pytest.mark.parametrize("arguments", [[], ["patch/pytorch-v2.2.1.patch"]])
def test_the_set_up_of_the_forerunner_says_that_no_patch_is_needed(arguments: list[str]) -> None:
    done = run(BIN / "m8d-post-setup", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "needs no patch to PyTorch: nothing was changed" in done.stdout


def test_pytorch_exec_starts_ranks_as_multiworld_exec_does() -> None:
    program = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
    done = run(BIN / "pytorch_exec", "-n", "2", sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2" in done.stdout
    assert "rank 1 of 2" in done.stdout


def test_a_rendezvous_called_standalone_is_one_of_this_host_alone(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    options = ["--rdzv_backend", "standalone", "--nproc_per_node", "2", "--no-page", "--no-warm"]
    done = run(sys.executable, "-m", "multiworld.run", *options, program)
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 2" in done.stdout
    refused = run(sys.executable, "-m", "multiworld.run", *options, "--nnodes", "2", program)
    assert refused.returncode == 2
    assert "--rdzv-backend standalone is for one host, but --nnodes is 2" in refused.stderr


IN_TORCH = """
import torch.distributed as dist
import multiworld

assert not hasattr(dist, "WorldManager"), "not before the user's call"
multiworld.install_in_torch()
multiworld.install_in_torch()
from torch.distributed.world_communicator import BrokenWorldException, WorldCommunicator
from torch.distributed.world_manager import WorldManager

assert dist.WorldManager is WorldManager is multiworld.WorldManager
assert BrokenWorldException is multiworld.BrokenWorldException
assert WorldCommunicator is multiworld.WorldCommunicator
dist.WorldManager = object
try:
    multiworld.install_in_torch()
except RuntimeError as error:
    print(error)
"""


def test_the_names_in_torch_are_there_after_the_users_call_alone() -> None:
    done = run(sys.executable, "-c", IN_TORCH)
    assert (done.returncode, done.stderr) == (0, "")
    assert "it carries the patch of multiworld 0.x. Install PyTorch afresh" in done.stdout
