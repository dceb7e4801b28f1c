"""Tests of the cache of profiles: what is found there, and what is measured anew."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from multiworld.model.layers import LayeredModel, layers_by_hand
from multiworld.training.planning.profile import Profile
from multiworld.training.planning.profile_file import profile_text, read_profile
from multiworld.training.profiles import cached_profile, default_folder, key_of
from multiworld.training.profiles.turns import one_at_a_time

BATCH = torch.ones(8, 4)


def layered(width: int = 4) -> LayeredModel:
    return layers_by_hand([nn.Linear(4, width), nn.Linear(width, 2)], BATCH)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


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


def rewritten(file: Path, factor: float, *, age_s: float = 3600.0) -> Profile:
    """Multiply all times of a profile in a file, and let the file be so old."""
    stored = read_profile(str(file), file.read_text())
    layers = tuple(
        replace(
            each,
            forward_s=each.forward_s * factor,
            backward_s=each.backward_s * factor,
            weight_backward_s=each.weight_backward_s * factor,
        )
        for each in stored.profile.layers
    )
    profile = replace(stored.profile, layers=layers)
    file.write_text(profile_text(profile, stored.key))
    os.utime(file, (time.time() - age_s,) * 2)
    return profile


def test_times_that_were_too_long_are_mended_when_the_profile_is_used_again(kept: tuple[Path, Profile]) -> None:
    file, _ = kept
    slow = rewritten(file, 1000.0)
    found = cached_profile(layered(), BATCH, folder=file.parent)
    for was, now in zip(slow.layers, found.layers, strict=True):
        assert now.forward_s < was.forward_s / 2
        assert now.backward_s < was.backward_s / 2
    assert read_profile(str(file), file.read_text()).profile == found


def test_times_that_are_longer_than_before_are_not_kept(kept: tuple[Path, Profile]) -> None:
    file, _ = kept
    fast = rewritten(file, 1e-6)
    found = cached_profile(layered(), BATCH, folder=file.parent)
    for was, now in zip(fast.layers, found.layers, strict=True):
        assert (now.forward_s, now.backward_s) == (was.forward_s, was.backward_s)
        assert now.weight_backward_s == pytest.approx(was.weight_backward_s)


@pytest.mark.parametrize(
    ("factor", "age_s", "again"), [(1000.0, 1.0, True), (1000.0, 3600.0, False), (1e6, 3600.0, True)]
)
def test_a_fresh_profile_one_of_a_slow_model_or_that_of_a_replacement_is_taken_as_it_is(
    kept: tuple[Path, Profile], factor: float, age_s: float, again: bool
) -> None:
    file, _ = kept
    slow = rewritten(file, factor, age_s=age_s)
    assert cached_profile(layered(), BATCH, folder=file.parent, again=again) == slow


def test_a_process_waits_for_another_one_that_measures(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with one_at_a_time(tmp_path):
            other = pool.submit(cached_profile, layered(), BATCH, folder=tmp_path)
            with pytest.raises(TimeoutError):
                other.result(timeout=0.2)
            assert not files(tmp_path)
        assert len(other.result(timeout=30).layers) == 2


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
