"""The files of weights that updates bring."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from multiworld.serving.control.weights_store import WeightsStore


async def test_files_of_other_versions_and_of_a_killed_writer_go_and_those_of_other_stages_stay(
    tmp_path: Path,
) -> None:
    store = WeightsStore(tmp_path)
    kept = Path(await store.put("add", 2, {"w": torch.ones(1)}))
    await store.put("add", 1, {"w": torch.zeros(1)})
    other = Path(await store.put("add-more", 1, {"w": torch.zeros(1)}))
    (kept.parent / ".add-3.pt.1").write_bytes(b"half")
    others_half, ours = kept.parent / ".add-more-3.pt.1", kept.parent / f".add-3.pt.{os.getpid()}"
    others_half.write_bytes(b"half")
    ours.write_bytes(b"being written")
    store.keep_only("add", 2)
    assert set(kept.parent.iterdir()) == {kept, other, others_half, ours}
