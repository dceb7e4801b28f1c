"""What the documentation says of defaults is what the code has."""

from __future__ import annotations

from pathlib import Path

import pytest

from multiworld import WorldManager
from multiworld.demo.options import Options
from multiworld.elastic.job.options import DEFAULT_SHUTDOWN_S, JobOptions
from multiworld.elastic.job.plan import JobPlan
from multiworld.elastic.schedulers.kubernetes import Manifest
from multiworld.serving.config import pipeline_file
from multiworld.world.liveness import DEFAULT_LEASE_S, MAX_LEASE_S, MIN_LEASE_S, LivenessPolicy

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("README.md", "within the lease ({default:g} s, or {least:g}–{most:g} as you set it)"),
        (
            "docs/fault-model.md",
            "of `WorldManager`: {default:g} s by default, {least:g} to {most:g} s",
        ),
        ("docs/launcher.md", "for longer than `--lease-s` ({default:g} s)"),
        ("docs/migrating.md", "after the lease, {default:g} s by default"),
        ("docs/operations.md", "raise `--lease-s` (up to {most:g})"),
        ("docs/serving.md", "lost after the lease ({default:g} s)"),
    ],
)
def test_pages_tell_the_lease_that_is(page: str, words: str) -> None:
    told = words.format(default=DEFAULT_LEASE_S, least=MIN_LEASE_S, most=MAX_LEASE_S)
    assert told in (ROOT / page).read_text(encoding="utf-8")


def test_docstrings_tell_the_lease_that_is() -> None:
    assert f"``lease_s`` ({MIN_LEASE_S:g} to\n    {MAX_LEASE_S:g})" in (WorldManager.__doc__ or "")
    assert f"counts as lost ({DEFAULT_LEASE_S:g})" in (pipeline_file.__doc__ or "")


def test_everybody_has_the_same_default() -> None:
    assert {LivenessPolicy().lease_s, Options().lease_s} == {DEFAULT_LEASE_S}


def test_workers_of_pods_have_as_long_to_end_as_others() -> None:
    times = {kind.__dataclass_fields__["shutdown_s"].default for kind in (JobOptions, JobPlan, Manifest)}
    assert times == {DEFAULT_SHUTDOWN_S}
