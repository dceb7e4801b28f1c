"""Which programs have their slow imports done once, before their workers are forked."""

from __future__ import annotations

from pathlib import Path

import pytest

from multiworld.elastic.launch.program_needs import PIPELINE_MODULE, TRAINING_MODULES, modules_needed
from multiworld.process.spawn.entrypoint import Entrypoint, EntrypointKind


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nfrom multiworld import training\n",
        "import multiworld.training\n",
        "from multiworld.training import join\n",
        "def main():\n    from multiworld import elastic, training\n",
    ],
)
def test_a_program_that_trains_needs_what_optimizers_import(tmp_path: Path, text: str) -> None:
    program = tmp_path / "train.py"
    program.write_text(text)
    assert modules_needed(Entrypoint(kind=EntrypointKind.SCRIPT, target=str(program))) == TRAINING_MODULES


@pytest.mark.parametrize(
    ("line", "more"),
    [
        ("    pipe = job.pipeline(model, example=batch, loss=loss)\n", (PIPELINE_MODULE,)),
        ("# job.pipeline(model)\n", ()),
        ("pipeline(model)\n", ()),
    ],
)
def test_a_program_that_cuts_a_model_needs_what_cutting_imports(
    tmp_path: Path, line: str, more: tuple[str, ...]
) -> None:
    program = tmp_path / "train.py"
    program.write_text(f"from multiworld import training\n{line}")
    assert modules_needed(Entrypoint(kind=EntrypointKind.SCRIPT, target=str(program))) == (*TRAINING_MODULES, *more)


@pytest.mark.parametrize(
    "text", ["import multiworld\n", "# from multiworld import training\n", "x = 'multiworld.training'\n"]
)
def test_other_programs_need_nothing(tmp_path: Path, text: str) -> None:
    program = tmp_path / "serve.py"
    program.write_text(text)
    assert modules_needed(Entrypoint(kind=EntrypointKind.SCRIPT, target=str(program))) == ()


def test_a_program_that_is_not_there_and_a_command_need_nothing(tmp_path: Path) -> None:
    assert modules_needed(Entrypoint(kind=EntrypointKind.SCRIPT, target=str(tmp_path / "none.py"))) == ()
    assert modules_needed(Entrypoint(kind=EntrypointKind.COMMAND, target="/bin/true")) == ()
