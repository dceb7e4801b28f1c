"""``"remote:N"`` as a device: one program makes all checks, for PyTorch has one such name a process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from multiworld.testing import scaled

from . import remote_device_name_program as program

LIMIT_S = 90.0
NAMES = [check.__name__ for check in (*program.CHECKS, program.without_nodes)]
TAKEN = """
import torch
torch.utils.rename_privateuse1_backend("other")
from multiworld import remote
try:
    remote.use_device_name()
except remote.DeviceNameError as error:
    assert "the backend 'other' has it" in str(error), error
    raise SystemExit(7)
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """Return the error of each check; empty if it has none."""
    command = [sys.executable, "-m", program.__name__]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=scaled(LIMIT_S), check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return dict(json.loads(line) for line in ran.stdout.splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_a_device_of_a_node_is_taken_wherever_pytorch_takes_one(outcomes: dict[str, str], name: str) -> None:
    assert outcomes[name] == ""


def test_a_backend_that_has_the_name_already_is_an_error_that_names_it() -> None:
    ran = subprocess.run([sys.executable, "-c", TAKEN], capture_output=True, timeout=scaled(LIMIT_S), check=False)
    assert ran.returncode == 7, ran.stderr[-2000:]
