"""Nodes of the launcher: the example of the original design, and a node and a master that are started again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from multiworld.testing import scaled
from tests import warm_programs

EXAMPLE = Path(__file__).parents[2] / "examples" / "remote_rfc.py"
EXEC = [sys.executable, "-m", "multiworld", "exec"]
RUN = [sys.executable, "-m", "multiworld.run", "--no-page", "--max-restarts", "2"]

pytestmark = pytest.mark.process


LIMIT_S = 50.0  # sooner than pytest's, which would not show what was said


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Fails with what it has said if that takes too long."""
    command = [*map(str, words)]
    pipe = subprocess.PIPE
    with warm_programs.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            output, errors = process.communicate(timeout=scaled(LIMIT_S))
        except subprocess.TimeoutExpired as late:
            process.kill()
            said = "\n".join(each.decode() for each in (late.stdout, late.stderr) if isinstance(each, bytes))
            pytest.fail(f"not over after {late.timeout:g} s; until then it said:\n{said}")
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def test_every_comment_of_the_original_example_holds() -> None:
    done = run(*EXEC, "-n", 3, sys.executable, EXAMPLE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the sum is right" in done.stdout
    if not torch.cuda.is_available():
        for name, operation, node in (("cuda_x", "_to_copy", 0), ("cuda_y", "_to_copy", 0), ("a", "empty", 1)):
            assert any(
                line.startswith(f"{name}: aten.{operation}") and line.endswith(f"failed on node {node}")
                for line in done.stdout.splitlines()
            ), done.stdout


SEEN = """
import json, os, subprocess, sys
from multiworld import remote
from multiworld.testing import wait_until

def shout(word):
    return word.upper()

def listed():
    command = [sys.executable, "-m", "multiworld", "nodes", "--json", "--job", os.environ["TORCHELASTIC_RUN_ID"]]
    done = subprocess.run(command, capture_output=True, text=True)
    found = json.loads(done.stdout) if done.returncode == 0 else {"nodes": [], "lines": []}
    return found if len(found["nodes"]) == 1 and found["lines"] else None

with remote.connect(calls=["__main__:shout"]) as nodes:
    print(nodes[1].call("__main__:shout", "called"), flush=True)
    kept = nodes[1].ones(3)
    wait_until(listed, 30)
    node, line = listed()["nodes"][0], listed()["lines"][0]
    print(node["number"], node["pid"] == nodes[1].pid, node["lost"] == "", line["operations"], flush=True)
"""


def test_a_job_is_asked_for_its_nodes_and_a_rank_calls_what_its_program_declared(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SEEN)
    done = run(*RUN, "--nproc-per-node", 2, program)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CALLED" in done.stdout
    assert "1 True True __main__:shout" in done.stdout, done.stdout + done.stderr


RESTARTS = """
import os, signal, sys
from multiworld import remote

with remote.connect() as nodes:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        x = nodes[1].ones(3)
        os.kill(nodes[1].pid, signal.SIGKILL)
        try:
            x.fetch()
        except remote.NodeDeadError as error:
            print("lost node", error.node, flush=True)
        print("node 2 goes on:", float(nodes[2].ones(3).sum()), flush=True)
        nodes[1].wait_alive(30)
        print("again:", float(nodes[1].ones(4).sum()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)  # the master itself
    copied = nodes[2].ones(6).to_node(1)
    print("second master:", float(nodes[1].ones(5).sum()), float(copied.sum()), flush=True)
"""


def test_a_node_and_then_the_master_are_started_again_by_the_launcher(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(RESTARTS)
    done = run(*RUN, "--nproc-per-node", 3, program)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.split("]: ")[-1] for line in done.stdout.splitlines()]
    for line in ("lost node 1", "node 2 goes on: 3.0", "again: 4.0", "second master: 5.0 6.0"):
        assert any(each.endswith(line) for each in said), done.stdout + done.stderr


FAILS = """
import os, sys, time
from multiworld import remote

attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
began = time.monotonic()
with remote.connect() as nodes:
    waited = time.monotonic() - began
    print(f"master {attempt}:", float(nodes[1].ones(5).sum()), waited < float(sys.argv[1]), flush=True)
    if attempt == "0":
        raise ValueError("in the block")
if attempt == "1":
    sys.exit(3)  # the nodes were told that all is done
"""


def test_a_master_that_ends_with_an_error_finds_its_nodes_again(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(FAILS)
    done = run(*RUN, "--nproc-per-node", 2, program, scaled(20))
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.split("]: ")[-1] for line in done.stdout.splitlines()]
    for attempt in range(3):
        assert any(each.endswith(f"master {attempt}: 5.0 True") for each in said), done.stdout + done.stderr


TWICE = """
from multiworld import remote

for attempt in range(2):
    with remote.connect(calls=["os:_exit"]) as nodes:
        print(f"connection {attempt}:", float(nodes[1].ones(5).sum()), flush=True)
with remote.connect(calls=["os:_exit"]) as nodes:
    try:
        nodes[1].call("os:_exit", 0)
    except remote.NodeDeadError:
        nodes[1].wait_alive(30)
        print("after an end that nobody asked for:", float(nodes[1].ones(6).sum()), flush=True)
"""


def test_a_node_that_has_ended_well_is_started_again_when_its_master_needs_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TWICE)
    done = run(*RUN, "--nproc-per-node", 2, program)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in ("connection 0: 5.0", "connection 1: 5.0", "after an end that nobody asked for: 6.0"):
        assert line in done.stdout, done.stdout + done.stderr
    assert "rank 1 failed: its process ended, with exit status 0, while its master needs it" in done.stderr
