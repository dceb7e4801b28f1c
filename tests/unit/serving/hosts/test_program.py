"""What a host process imports for itself, and what its fork server imports for replicas."""

import subprocess
import sys
from pathlib import Path

import pytest

from multiworld.serving.hosts.program import PRELOADED


def loaded_by(code: str) -> set[str]:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def test_a_host_process_imports_neither_torch_nor_asyncio() -> None:
    loaded = loaded_by("import sys, multiworld.serving.hosts.program; print(*sys.modules)")
    assert "multiworld.serving.hosts.members" in loaded
    assert not {"torch", "asyncio", "ssl", "tempfile"} & loaded


def test_a_main_module_that_deploys_imports_nothing_of_ours_in_a_replica() -> None:
    code = (
        "import importlib, sys\n"
        f"for name in {PRELOADED}: importlib.import_module(name)\n"
        "before = set(sys.modules)\n"
        "from multiworld.serving import Batch, Cluster, Deployment, Pipeline, ScalingPolicy, Stage\n"
        "from multiworld.serving.gateway import Gateway, GatewayOptions\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    assert loaded_by(code) == set()


@pytest.mark.parametrize("program", ["replica_program", "gateway_program"])
def test_a_member_does_not_warn_of_a_weak_token_again_whichever_fork_server_it_has(
    program: str, tmp_path: Path
) -> None:
    arguments = {
        "member": "add-1",
        "folder": str(tmp_path / "missing"),
        "job": "j",
        "token": "weak",
        "store": "tcp://127.0.0.1:1",
        "lease_s": 2.0,
        "controller": ["127.0.0.1", 1],
        "http": {},
    }
    code = (
        "import contextlib\n"
        f"from multiworld.serving.{program} import main\n"
        "from multiworld.wire.endpoints.token import warn_of_weakness\n"
        f"with contextlib.suppress(Exception): main({arguments})\n"
        "warn_of_weakness('another')\n"
        "warn_of_weakness('weak')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "only 7 characters" in ran.stderr
    assert "only 4 characters" not in ran.stderr
