"""What a host process imports for itself, and what its fork server imports for replicas."""

import subprocess
import sys

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
