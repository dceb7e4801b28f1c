"""How many processors a process may use, by its affinity and by the quotas of the groups that it is in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from multiworld.wire.progress import processors
from multiworld.wire.progress.processors import usable_processors


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(processors, "CGROUPS", tmp_path)
    monkeypatch.setattr(processors, "MEMBERSHIPS", tmp_path / "cgroup")
    return tmp_path


def group(root: Path, path: str, **files: str) -> None:
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_max", ".max").replace("cpu_cfs", "cpu.cfs")).write_text(text)


def test_without_quotas_it_is_the_affinity(root: Path) -> None:
    assert usable_processors() == 8
    (root / "cgroup").write_text("0::/a/b\n")
    group(root, "a/b", cpu_max="max 100000\n")
    assert usable_processors() == 8


def test_the_least_quota_of_all_groups_around_it_counts(root: Path) -> None:
    (root / "cgroup").write_text("0::/a/b\n")
    group(root, "a/b", cpu_max="400000 100000\n")
    group(root, "a", cpu_max="150000 100000\n")
    assert usable_processors() == 1.5


def test_in_a_container_the_root_is_its_own_group(root: Path) -> None:
    (root / "cgroup").write_text("0::/docker/0123\n")
    group(root, "", cpu_max="50000 100000\n")
    assert usable_processors() == 0.5


def test_quotas_of_the_first_version(root: Path) -> None:
    (root / "cgroup").write_text("3:cpu,cpuacct:/a\n2:memory:/a\n")
    group(root, "cpu/a", cpu_cfs_quota_us="-1\n", cpu_cfs_period_us="100000\n")
    assert usable_processors() == 8
    group(root, "cpu/a", cpu_cfs_quota_us="250000\n")
    assert usable_processors() == 2.5


@pytest.mark.parametrize("text", ["", "nonsense", "0::/a\n"])
def test_what_cannot_be_read_sets_no_quota(root: Path, text: str) -> None:
    (root / "cgroup").write_text(text)
    group(root, "a", cpu_max="many\n")
    assert usable_processors() == 8
