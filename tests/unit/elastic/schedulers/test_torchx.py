"""The TorchX component: what each replica is told to run. Needs torchx."""

from __future__ import annotations

import shlex
import string
from pathlib import Path
from typing import Any

import pytest

from multiworld.elastic.launch.parser import run_parser
from multiworld.elastic.schedulers import torchx as ours
from multiworld.elastic.schedulers.torchx import dist

pytest.importorskip("torchx", reason="needs torchx: pip install torchx")


def started(role: Any, **variables: str) -> list[str]:
    """Return the words that a replica's shell makes of its command line, with TorchX's macros and the host put in."""
    (_, text) = role.args
    text = string.Template(text).safe_substitute(rank0_env="TORCHX_RANK0_HOST", app_id="app-1")
    for name, value in variables.items():
        text = text.replace(f"${{{name}:=localhost}}", value)
    return shlex.split(text)


def test_replicas_meet_at_the_first_ones_host() -> None:
    app = dist("--out", "a b", script="train.py", j="2:4x8", options="--restart worker", gpu=8, image="i", h="")
    (role,) = app.roles
    assert (app.name, role.name, role.image, role.min_replicas, role.num_replicas) == ("train", "train", "i", 2, 4)
    assert role.resource.gpu == 8
    words = started(role, TORCHX_RANK0_HOST="host0")
    assert words[:3] == ["exec", "multiworld", "run"]
    parsed = run_parser().parse_args(words[3:])
    assert (parsed.nnodes, parsed.nproc_per_node, parsed.restart.value) == ("2:4", "8", "worker")
    assert (parsed.rdzv_backend, parsed.rdzv_endpoint, parsed.rdzv_id) == ("c10d", "host0:29400", "app-1")
    assert [parsed.training_script, *parsed.training_script_args] == ["train.py", "--out", "a b"]


def test_a_single_replica_meets_nobody() -> None:
    (role,) = dist(m="app.serve", j="4", name="serve").roles
    parsed = run_parser().parse_args(started(role)[3:])
    assert (parsed.standalone, parsed.nnodes, parsed.nproc_per_node, parsed.module) == (True, "1:1", "4", True)


@pytest.mark.parametrize("j", ["", "2x", "x4", "a", "1:2"])
def test_a_layout_that_means_nothing_is_refused(j: str) -> None:
    with pytest.raises(ValueError, match="expected NPROC_PER_NODE"):
        dist(script="a.py", j=j)


def test_there_is_one_program() -> None:
    with pytest.raises(ValueError, match="one of --script and -m"):
        dist()
    with pytest.raises(ValueError, match="one of --script and -m"):
        dist(script="a.py", m="a")


def test_torchx_takes_the_component() -> None:
    from torchx.specs.file_linter import validate

    assert not validate(str(Path(ours.__file__)), "dist")
