"""What replicas are given to run: written, read, loaded, and fetched from another host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeVar, cast

import pytest
import torch
from torch import Tensor, nn

from multiworld.serving.blueprint import Blueprint, load_work
from multiworld.serving.control.client.questions import FilePiece, FilesFound, ListFiles, ReadFile
from multiworld.serving.control.weights_store import WeightsStore
from multiworld.serving.errors import DeploymentError
from multiworld.serving.graph import Stage
from multiworld.serving.member import files
from multiworld.serving.member.files import MemberFiles, fetch_file, list_files, read_piece

A = TypeVar("A")


def double(x: Tensor) -> Tensor:
    return x * 2


class Made:
    """Made in the replica, and set up there."""

    def __init__(self) -> None:
        self.is_set_up = False

    async def setup(self) -> None:
        self.is_set_up = True

    def __call__(self, x: Tensor) -> Tensor:
        return x


STAGES = (Stage("function", double), Stage("module", nn.Dropout()), Stage("made", Made), Stage("named", "math:sqrt"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Blueprint.of("test", STAGES, {"policy": "random"}, in_main=False).write(tmp_path)
    return tmp_path


async def test_each_kind_of_work_is_loaded_ready_for_use(folder: Path) -> None:
    blueprint = Blueprint.read(folder)
    assert (blueprint.name, blueprint.options) == ("test", {"policy": "random"})
    works = {stage.name: await load_work(stage, folder) for stage in blueprint.graph}
    assert works["function"](torch.ones(1)).tolist() == [2.0]
    assert not works["module"].training  # type: ignore[attr-defined]
    assert works["made"].is_set_up  # type: ignore[attr-defined]
    assert works["named"](4) == 2


def test_only_the_user_can_read_them(folder: Path) -> None:
    assert {path.stat().st_mode & 0o077 for path in folder.rglob("*.pickle")} == {0}


def test_a_work_that_cannot_cross_says_how_it_could(tmp_path: Path) -> None:
    stage = Stage("local", lambda x: x)
    with pytest.raises(DeploymentError, match=r"stage 'local': its work cannot be sent .* at the top level"):
        Blueprint.of("test", [stage], {}).write(tmp_path)


def test_so_does_a_canary(tmp_path: Path) -> None:
    stage = Stage("named", "operator:neg", canary=lambda: None)
    with pytest.raises(DeploymentError, match=r"stage 'named': its canary cannot be sent"):
        Blueprint.of("test", [stage], {}).write(tmp_path)


@pytest.mark.parametrize(
    "main", [{}, {"init_main_from_path": "/nowhere/<stdin>"}, {"init_main_from_name": "package.__main__"}]
)
def test_a_work_of_a_program_that_cannot_be_imported_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: dict[str, str]
) -> None:
    monkeypatch.setattr("multiprocessing.spawn.get_preparation_data", lambda _: {"dir": "/", **main})
    blueprint = Blueprint.of("test", [Stage("function", double)], {})
    assert blueprint.main == {"dir": "/"}  # what cannot be imported is not tried
    blueprint.write(tmp_path)
    monkeypatch.setattr(double, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "double", double, raising=False)
    with pytest.raises(DeploymentError, match=r"stage 'function': its work .* double is defined in a program that no"):
        blueprint.write(tmp_path)


@pytest.fixture
def asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[str, int], str]:
    """Those of a member's program, on the controller's host; the controller answers at 10.0.0.1:7."""

    def ask(address: object, token: str, question: object, answer: type[object], *, timeout_s: float) -> object:
        assert (address, token) == (("10.0.0.1", 7), "secret")
        if isinstance(question, ReadFile):
            return FilePiece(piece=read_piece(folder, question.name, question.offset))
        return FilesFound(files=list_files(folder))

    monkeypatch.setattr(files, "ask", ask)
    return ("10.0.0.1", 7), "secret"


async def test_a_member_finds_its_work_in_the_folder_of_the_deployment(
    asked: tuple[tuple[str, int], str], folder: Path
) -> None:
    here = MemberFiles(folder, *asked)
    assert not here.is_elsewhere
    with here.place() as place:
        assert place == folder
        here.fetch_work("function", place)
        work = await load_work(here.blueprint().graph.stages["function"], place)
    assert work(torch.ones(1)).tolist() == [2.0]
    assert (folder / "works" / "function.pickle").exists()


async def test_another_host_fetches_what_a_member_needs_and_keeps_none_of_it(
    asked: tuple[tuple[str, int], str], folder: Path
) -> None:
    there = MemberFiles(Path("/nowhere"), *asked)
    assert there.is_elsewhere
    stages = there.blueprint().graph.stages
    assert list(stages) == list(Blueprint.read(folder).graph.stages)
    with there.place() as place:
        assert place != folder
        there.fetch_work("function", place)
        assert [path.name for path in place.rglob("*.pickle")] == ["function.pickle"]
        work = await load_work(stages["function"], place)
    assert work(torch.ones(1)).tolist() == [2.0]
    assert not place.exists()


def test_a_file_that_becomes_shorter_is_not_waited_for(tmp_path: Path) -> None:
    def ask(question: ListFiles | ReadFile, answer: type[A]) -> A:
        found = FilesFound(files={"x": 9}) if isinstance(question, ListFiles) else FilePiece(piece=b"")
        return cast(A, found)

    with pytest.raises(DeploymentError, match="has become shorter"):
        fetch_file(tmp_path, "x", ask)


@pytest.mark.parametrize("name", ["../secret", "controller.json", "/etc/passwd"])
def test_no_other_file_is_given_away(folder: Path, name: str) -> None:
    (folder / "controller.json").write_text("secret")
    with pytest.raises(ValueError, match="no file of this deployment"):
        read_piece(folder, name, 0)


async def test_an_update_of_some_weights_leaves_the_others_as_the_last_update_made_them(tmp_path: Path) -> None:
    store = WeightsStore(tmp_path)
    first = await store.put("a", 2, {"weight": torch.tensor([2.0]), "bias": torch.tensor([2.0])})
    second = await store.put("a", 3, {"bias": torch.tensor([3.0])}, over=first)
    assert {name: value.item() for name, value in (await store.get(second)).items()} == {"weight": 2.0, "bias": 3.0}


async def test_what_is_no_tensor_cannot_be_updated(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match=r"hold what is no tensor, and cannot be updated: fc\._packed"):
        await WeightsStore(tmp_path).put("a", 2, {"fc.scale": torch.ones(1), "fc._packed": (torch.ones(1), None)})
