"""Which checkpoints are whole, and which is the newest."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from multiworld.training.checkpoint import finding
from multiworld.training.checkpoint.finding import Found, agree, candidates, newest, verify
from multiworld.training.errors import CheckpointDamagedError, CheckpointVersionError
from tests.checkpoints import Trained, only, write


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("written")
    for steps in (1, 2):
        write(directory, Trained().train(steps).state)
    return directory


@pytest.fixture
def two(written: Path, tmp_path: Path) -> Path:
    """A directory with checkpoints of steps 1 and 2."""
    return Path(shutil.copytree(written, tmp_path / "two"))


def test_an_empty_or_missing_directory_has_no_newest(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    assert newest(tmp_path / "none") is None


def test_the_newest_whole_one_is_found(two: Path) -> None:
    found = newest(two)
    assert found is not None
    assert (found.step, found.name) == (2, "step-00000002")


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "manifest.json"])
@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_a_damaged_one_is_left_out_with_a_warning_that_names_the_file(
    two: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = two / "step-00000002" / name
    data = bytearray(file.read_bytes())
    if damage == "changed":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif damage == "cut":
        file.write_bytes(data[:-1])
    else:
        file.unlink()
    with caplog.at_level(logging.WARNING):
        found = newest(two)
    assert found is not None
    assert found.step == 1
    (record,) = caplog.records
    assert f"step-00000002 is damaged: {name}: " in record.getMessage()


def test_one_that_is_removed_while_it_is_looked_at_is_no_damaged_one(
    two: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove_first(found: Found, *, hashes: bool = True) -> None:
        if found.step == 1:
            shutil.rmtree(found.path)
        verify(found, hashes=hashes)

    monkeypatch.setattr(finding, "verify", remove_first)
    assert [each.step for each in candidates(two)] == [2]
    assert not caplog.records


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    write(tmp_path, Trained().state)
    found = only(tmp_path)
    file = Path(found.path, "__0_0.distcp")
    data = file.read_bytes()
    file.write_bytes(data + b"x")
    with pytest.raises(CheckpointDamagedError, match=rf"it has {len(data) + 1} bytes, and {len(data)} were written"):
        verify(found, hashes=False)
    file.write_bytes(data[:-1] + b"x")
    verify(found, hashes=False)
    with pytest.raises(CheckpointDamagedError, match="its bytes are not those that were written"):
        verify(found)
    file.unlink()
    with pytest.raises(CheckpointDamagedError, match=r"__0_0\.distcp: No such file or directory"):
        verify(found)


def test_one_of_a_later_release_ends_the_search(two: Path) -> None:
    """Going on from an older one would silently undo what the later release did."""
    manifest = two / "step-00000002" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 2}))
    with pytest.raises(CheckpointVersionError, match="step-00000002 has format 2"):
        newest(two)


def test_members_agree_on_the_newest_that_all_see(two: Path) -> None:
    write(two, Trained().train(3).state)
    all_three = [found.identity for found in candidates(two)]
    assert agree([all_three, all_three[1:], all_three]) == all_three[1]
    assert agree([all_three, []]) is None
    assert agree([all_three[:1], all_three[1:]]) is None
    assert agree([]) is None
