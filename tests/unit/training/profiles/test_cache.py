"""Tests of the cache of profiles: what is found there, and what is measured anew."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from multiworld.model.layers import LayeredModel, layers_by_hand
from multiworld.training.planning.profile import Profile
from multiworld.training.planning.profile_file import read_profile
from multiworld.training.profiles import cached_profile, default_folder, key_of

BATCH = torch.ones(8, 4)


def layered(width: int = 4) -> LayeredModel:
    return layers_by_hand([nn.Linear(4, width), nn.Linear(width, 2)], BATCH)


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_a_second_look_finds_what_the_first_measured(tmp_path: Path) -> None:
    first = cached_profile(layered(), BATCH, folder=tmp_path / "deep" / "er")
    assert cached_profile(layered(), BATCH, folder=tmp_path / "deep" / "er") == first
    [file] = files(tmp_path / "deep" / "er")
    assert read_profile(str(file), file.read_text()).profile == first


def test_other_models_shapes_and_optimizers_have_files_of_their_own(tmp_path: Path) -> None:
    cached_profile(layered(), BATCH, folder=tmp_path)
    cached_profile(layered(8), BATCH, folder=tmp_path)
    cached_profile(layered(), torch.ones(6, 4), folder=tmp_path)
    cached_profile(layered(), BATCH, folder=tmp_path, optimizer_states=1)
    cached_profile(layered(), BATCH, folder=tmp_path, loss=lambda output, _: output.sum())
    assert len(files(tmp_path)) == 5


def test_other_numbers_of_threads_are_measured_apart() -> None:
    before = torch.get_num_threads()
    first = key_of(layered(), (BATCH,), optimizer_states=2)
    torch.set_num_threads(before + 1)
    try:
        second = key_of(layered(), (BATCH,), optimizer_states=2)
    finally:
        torch.set_num_threads(before)
    assert first.device != second.device
    assert first.shapes == "float32 [8, 4]"


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, Profile]:
    profile = cached_profile(layered(), BATCH, folder=tmp_path)
    [file] = files(tmp_path)
    return file, profile


@pytest.mark.parametrize("damage", ["cut off", "bytes", "empty", "another's", "a folder"])
def test_a_damaged_file_is_measured_anew_with_a_warning(
    kept: tuple[Path, Profile], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    file, _ = kept
    text = file.read_text()
    if damage == "a folder":
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(
            {
                "cut off": text[: len(text) // 2].encode(),
                "bytes": b"\xff\xfe\x00",
                "empty": b"",
                "another's": text.replace("float32 [8, 4]", "float32 [9, 4]").encode(),
            }[damage]
        )
    found = cached_profile(layered(), BATCH, folder=file.parent)
    assert len(found.layers) == 2
    assert "measured anew" in caplog.text
    if damage != "a folder":
        assert read_profile(str(file), file.read_text()).profile == found


def test_several_that_measure_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        profiles = list(pool.map(lambda _: cached_profile(layered(), BATCH, folder=tmp_path), range(8)))
    [file] = files(tmp_path)
    assert read_profile(str(file), file.read_text()).profile in profiles


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert len(cached_profile(layered(), BATCH, folder=tmp_path / "file").layers) == 2
    assert "is not kept" in caplog.text


def test_the_folder_is_that_of_the_users_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "multiworld" / "profiles"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_folder() == tmp_path / "home" / ".cache" / "multiworld" / "profiles"
