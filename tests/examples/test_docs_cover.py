"""Every block of code on every page is run by a test, or says why it cannot be; a new block has to say it too."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.examples.test_docs import PAGES, ROOT, Block, all_blocks

pytestmark = pytest.mark.usefixtures("no_leaks")

DOCS, FRAGMENTS, SERVING = (f"tests/examples/test_docs{name}.py" for name in ("", "_fragments", "_serving"))
TRAINING = "tests/examples/test_docs_training.py"
PIPELINES = "tests/examples/test_docs_pipelines.py"
PIPELINED = (
    "tests/process/test_launched_training.py::test_pipelines_of_a_model_that_nobody_cut_train_on_when_a_stage_is_killed"
)
SHOWN = "test_a_command_prints_and_draws_what_the_page_shows"
CLUSTER = "tests/examples/test_docs_cluster.py"
LAUNCHER, KIT = "tests/examples/test_docs_launcher.py", "tests/examples/test_docs_testing.py"
LINES = "tests/examples/test_docs_commands.py::test_the_parsers_take_every_line_of_a_page"
TARGETS = "tests/examples/test_docs_cover.py::test_make_has_every_target_that_a_page_names"
COMMANDS = f"{SERVING}::test_commands_of_the_page_print_what_it_shows"
PROGRAMS = f"{SERVING}::test_the_programs_of_the_page_run"
FILES = f"{FRAGMENTS}::test_the_files_of_the_page_about_serving"
DECLARED = f"{FRAGMENTS}::test_the_stages_that_the_page_about_serving_declares"
EXAMPLE = "tests/examples/test_examples.py::test_the_example_for_the_launcher_loses_no_step_when_a_worker_is_killed"
WORKER = f"{LAUNCHER}::test_a_worker_that_is_killed_gets_its_rank_and_world_back"
CHANNEL = "tests/process/test_channel_conformance.py::install_documented_channel"
EXEC = "tests/process/test_exec.py"
REMOTE = "tests/examples/test_docs_remote.py"
SLURM = "tests/process/test_elastic_slurm.py"

COVER: dict[tuple[str, str], tuple[str, ...]] = {
    ("README.md", "make demo"): (TARGETS, "tests/process/test_demo.py"),
    ("README.md", "WorldManager() as manager"): (
        f"{DOCS}::test_the_twenty_lines_of_the_readme_go_on_with_a_replacement",
    ),
    ("README.md", "multiworld run --nproc"): (LINES, EXAMPLE),
    ("README.md", "multiworld demo training"): (LINES, "tests/process/test_demo_training.py"),
    ("README.md", 'title="square.py"'): (f"{REMOTE}::test_the_lines_of_the_readme",),
    ("README.md", "serve_rhombus.py:pipeline"): (LINES, "tests/process/test_serve_command.py"),
    ("CONTRIBUTING.md", "git clone"): (TARGETS,),
    ("docs/channels.md", "mpiexec -n 4"): ("tests/process/test_mpi_jobs.py",),
    ("docs/channels.md", 'title="unix_channel.py"'): (CHANNEL,),
    ("docs/channels.md", "[project.entry-points"): (
        f"{FRAGMENTS}::test_the_entry_point_names_the_channel_of_the_page",
    ),
    ("docs/channels.md", 'title="test_unix_channel.py"'): (
        "tests/examples/test_docs_testing.py::test_the_conformance_test_of_a_channel_of_ones_own",
    ),
    ("docs/cluster.md", 'title="hosts"'): (f"{CLUSTER}::test_the_hostfile_of_the_page_is_one",),
    ("docs/cluster.md", "multiworld train --hostfile"): (LINES, "tests/process/test_train_hosts.py"),
    ("docs/cluster.md", "[node1] multiworld train"): (f"{CLUSTER}::test_the_line_of_the_page_is_the_coordinators",),
    ("docs/cluster.md", "--nnodes 1:8 --nproc-per-node"): (LINES, "tests/process/test_elastic_launch.py"),
    ("docs/cluster.md", "get_agent_list"): (f"{CLUSTER}::test_the_list_of_the_page_is_what_is_printed",),
    ("docs/index.md", "pip install"): ("tests/unit/test_extras.py", LINES),
    ("docs/index.md", "cli          the commands"): (
        f"{FRAGMENTS}::test_the_layers_of_the_overview_are_those_that_are_checked",
    ),
    ("docs/launcher.md", "multiworld run --nproc"): (LINES, EXAMPLE),
    ("docs/launcher.md", "shows how it is"): (WORKER,),
    ("docs/launcher.md", 'manager.join("trainers")'): (WORKER,),
    ("docs/launcher.md", "FileTimerClient"): (WORKER,),
    ("docs/launcher.md", "export MULTIWORLD_TOKEN"): (LINES, "tests/process/test_elastic_launch.py"),
    ("docs/migrating-from-torchrun.md", "torchrun       --nnodes"): (LINES, "tests/process/test_run_as_torchrun.py"),
    ("docs/migrating-from-torchrun.md", 'title="functions.py"'): (
        f"{DOCS}::test_a_function_is_launched_as_the_page_on_torchrun_says",
    ),
    ("docs/migrating-from-torchrun.md", "--rdzv-backend multiworld "): ("tests/process/test_torchrun_handlers.py",),
    ("docs/migrating-from-torchrun.md", "pip install expecttest"): (),
    ("docs/migrating.md", "initialize_world"): (f"{DOCS}::test_the_program_for_multiworld_0_2_in_the_migration_guide",),
    ("docs/process-group-mode.md", 'title="ring.py"'): (f"{DOCS}::test_the_ring_of_process_group_mode",),
    ("docs/process-group-mode.md", "while not finished"): (f"{FRAGMENTS}::test_the_loop_of_process_group_mode",),
    ("docs/pipelines.md", 'title="A plan"'): (LINES, f"{PIPELINES}::{SHOWN}"),
    ("docs/pipelines.md", 'title="A profile of two layers"'): (f"{PIPELINES}::test_the_profile_of_the_page_is_one",),
    ("docs/pipelines.md", 'title="Too few nodes"'): (
        f"{PIPELINES}::test_what_cannot_be_planned_is_told_as_on_the_page",
    ),
    ("docs/pipelines.md", 'title="A loss every hour, for two days"'): (LINES, f"{PIPELINES}::{SHOWN}"),
    ("docs/pipelines.md", 'title="trace.csv"'): (f"{PIPELINES}::test_the_trace_of_the_page_is_one",),
    ("docs/pipelines.md", "spot instances of GCP"): (LINES, f"{PIPELINES}::{SHOWN}"),
    ("docs/process-groups.md", "manager.blocking.join"): (f"{FRAGMENTS}::test_the_training_loop_of_process_groups",),
    ("docs/process-groups.md", "HashStore()"): (f"{FRAGMENTS}::test_the_default_group_of_one_process",),
    ("docs/remote.md", 'title="remote_session.py"'): (f"{REMOTE}::test_a_model_trains_on_a_node_and_one_line_waits",),
    ("docs/remote.md", 'title="remote_device.py"'): (f"{REMOTE}::test_a_student_learns_on_the_device_of_a_node",),
    ("docs/remote.md", 'title="remote_gpu.py"'): (f"{REMOTE}::test_a_model_is_on_the_gpu_of_a_node",),
    ("docs/remote.md", 'title="remote_call.py"'): (
        f"{REMOTE}::test_a_node_calls_what_it_declared_and_keeps_what_comes_out",
    ),
    ("docs/remote.md", 'title="remote_between.py"'): (f"{REMOTE}::test_nodes_reduce_and_train_together",),
    ("docs/remote.md", "multiworld nodes serve"): (LINES, "tests/process/test_remote_served.py"),
    ("docs/remote.md", "python train.py"): (LINES, "tests/process/test_remote_served.py"),
    ("docs/remote.md", 'title="remote_profile.py"'): (f"{REMOTE}::test_a_profile_names_the_line_that_waits",),
    ("docs/remote.md", 'title="remote_capture.py"'): (f"{REMOTE}::test_a_captured_step_trains",),
    ("docs/remote.md", 'title="remote_compile.py"'): (f"{REMOTE}::test_a_compiled_model_trains",),
    ("docs/remote.md", 'title="remote_streams.py"'): (f"{REMOTE}::test_a_node_computes_while_batches_come",),
    ("docs/remote.md", 'title="remote_recovery.py"'): (f"{REMOTE}::test_a_training_survives_its_node",),
    ("docs/remote.md", 'title="remote_errors.py"'): (
        f"{REMOTE}::test_what_needs_a_failed_operation_says_where_that_was_issued",
    ),
    ("docs/schedulers.md", "SBATCH --nodes=4"): (LINES, SLURM),
    ("docs/schedulers.md", "SBATCH --signal"): (LINES, SLURM),
    ("docs/schedulers.md", "kubectl create secret"): (LINES, "tests/unit/elastic/schedulers/test_kubernetes.py"),
    ("docs/schedulers.md", "torchx run"): ("tests/unit/elastic/schedulers/test_torchx.py",),
    ("docs/schedulers.md", "multiworld exec -n 4"): (LINES, EXEC),
    ("docs/seeing-a-training.md", "multiworld train status"): (LINES, "tests/process/test_training_view.py"),
    ("docs/seeing-a-training.md", 'title="training.yaml"'): (
        "tests/unit/test_cli_train.py::test_the_file_of_the_page_is_one",
    ),
    ("docs/serving.md", "python3 -m venv"): (),
    ("docs/serving.md", 'name="calc"'): (COMMANDS, PROGRAMS),
    ("docs/serving.md", "answers at http"): (COMMANDS,),
    ("docs/serving.md", "curl -s"): (COMMANDS,),
    ("docs/serving.md", "multiworld serve status"): (COMMANDS,),
    ("docs/serving.md", "multiworld serve drain"): (COMMANDS,),
    ("docs/serving.md", "from app import pipeline"): (PROGRAMS,),
    ("docs/serving.md", "was rolled back: "): (COMMANDS,),
    ("docs/serving.md", "signature=Signature("): (DECLARED,),
    ("docs/serving.md", "--trace-ratio"): (LINES, "tests/unit/serving/tracing/test_tracing.py"),
    ("docs/serving.md", "Generator(served)"): (PROGRAMS,),
    ("docs/serving.md", "class Blocks"): (DECLARED,),
    ("docs/serving.md", "multiworld serve join"): (LINES, "tests/process/test_serving_hosts.py"),
    ("docs/serving.md", "name: calc"): (FILES,),
    ("docs/serving.md", "name: job"): (FILES,),
    ("docs/testing.md", 'title="adder.py"'): (f"{KIT}::test_a_worker_and_its_test",),
    ("docs/testing.md", 'title="break_it.py"'): (f"{KIT}::test_a_worker_and_its_test",),
    ("docs/testing.md", 'title="crew.py"'): (f"{KIT}::test_members_without_a_program",),
    ("docs/tutorial.md", 'title="pair.py"'): (f"{DOCS}::test_the_first_program_of_the_tutorial",),
    ("docs/tutorial.md", "send_tensors"): (f"{FRAGMENTS}::test_a_payload_of_the_tutorial",),
    ("docs/tutorial.md", "world.barrier()"): (f"{FRAGMENTS}::test_the_collectives_of_the_tutorial",),
    ("docs/tutorial.md", 'title="leader.py"'): (
        f"{DOCS}::test_the_leader_of_the_tutorial_ends_when_a_worker_is_killed",
    ),
    ("docs/tutorial.md", "multiworld.errors.PeerDiedError"): (
        f"{DOCS}::test_the_leader_of_the_tutorial_ends_when_a_worker_is_killed",
    ),
    ("docs/tutorial.md", 'hl_lines="8 9 10"'): (
        f"{DOCS}::test_the_leader_of_the_tutorial_goes_on_in_the_next_generation",
    ),
    ("docs/training-in-pipelines.md", "multiworld train --nproc"): (LINES, PIPELINED),
    ("docs/training-in-pipelines.md", "gpt: lost rank 3"): (PIPELINED,),
    ("docs/training-in-pipelines.md", "job = training.join"): (PIPELINED, "tests/process/test_training_pipelines.py"),
    ("docs/training.md", 'title="train.py"'): (f"{TRAINING}::test_the_first_training_survives_a_kill_of_any_rank",),
    ("docs/training.md", "multiworld train --nproc"): (
        f"{TRAINING}::test_the_first_training_survives_a_kill_of_any_rank",
    ),
    ("docs/training.md", "multiworld train --nnodes"): ("tests/hosts/test_training_cut.py",),
    ("docs/training.md", "every_steps=100, keep=3"): ("tests/process/test_training_checkpoint.py",),
    ("docs/training.md", "copies=1, copy_every_steps=50"): ("tests/process/test_training_copies.py",),
    ("docs/training.md", "-    dist.init_process_group"): (
        f"{TRAINING}::test_the_lines_that_change_in_a_loop_with_fsdp2_are_those_of_the_examples",
        "tests/process/test_training_example_programs.py",
    ),
    ("docs/training.md", "ResilientArguments("): ("tests/process/test_training_integrations.py",),
    ("docs/training.md", "ResilientStrategy("): ("tests/process/test_training_integrations.py",),
    ("docs/tutorial.md", "timeout_s=5)\nexcept"): (
        f"{FRAGMENTS}::test_a_deadline_of_the_tutorial_leaves_the_world_standing",
    ),
    ("docs/tutorial.md", "async def watch"): (f"{FRAGMENTS}::test_the_watcher_of_the_tutorial",),
    ("docs/tutorial.md", "manager.blocking.join"): (f"{FRAGMENTS}::test_the_blocking_twins_of_the_tutorial",),
    ("docs/tutorial.md", "WorldManager(host="): (f"{FRAGMENTS}::test_the_token_of_the_tutorial",),
}
"""What runs a block that has that text: tests that run it as it stands, or, for command lines that need other hosts,
a cluster or minutes, the test of their options and the file that tests the same command.
"""
NOT_RUN = {
    ("docs/migrating-from-torchrun.md", "pip install expecttest"): "it needs a checkout of PyTorch and takes minutes",
    ("docs/serving.md", "python3 -m venv"): "it downloads PyTorch once more",
}


@cache
def names_in(path: str) -> frozenset[str]:
    """Return what a file of tests defines at its top level."""
    tree = ast.parse((ROOT / path).read_text())
    defined = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in defined)


@pytest.mark.parametrize("block", all_blocks(), ids=lambda block: f"{block.page}:{block.first_line[:40]}")
def test_each_block_has_one_cover(block: Block) -> None:
    found = [key for key in COVER if key[0] == block.page and block.has(key[1])]
    assert len(found) == 1, f"{block.page}:{block.line}: name in COVER what runs this block; it has {found}"


@pytest.mark.parametrize("key", COVER, ids=": ".join)
def test_each_cover_stands_for_one_block_and_exists(key: tuple[str, str]) -> None:
    page, text = key
    assert len([block for block in all_blocks() if block.page == page and block.has(text)]) == 1
    assert COVER[key] or NOT_RUN[key]
    for test in COVER[key]:
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file(), f"no {path}"
        assert not name or name in names_in(path), f"{path} has no {name}"


def test_make_has_every_target_that_a_page_names() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for named in re.findall(r"(?:`|^\$ )make ([^`#\n]*)", page.read_text(), re.MULTILINE):
            assert {word for word in named.split() if "=" not in word} <= targets, named
