"""Trainings whose model is on a CUDA device, and whose worlds move tensors through the CPU or over NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest

from multiworld.testing import scaled
from tests.gpu.test_nccl import NUM_DEVICES
from tests.process.test_training_on_a_device import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(scaled(180.0)),
    pytest.mark.skipif(NUM_DEVICES == 0, reason="needs a CUDA device"),
]


@pytest.mark.parametrize(("kind", "num_processes"), [("replicas", 2), ("exact", 2), ("pipelines", 4), ("placed", 4)])
def test_a_training_on_a_gpu_goes_on_after_a_kill_as_one_on_the_cpu(
    tmp_path: Path, kind: str, num_processes: int
) -> None:
    there = train(tmp_path / "cuda", kind, "cuda", num_processes)
    on_cpu = train(tmp_path / "cpu", kind, "cpu", num_processes)[0]
    assert there == [pytest.approx(on_cpu, rel=1e-3)] * num_processes


def test_replicas_on_a_gpu_exchange_outer_steps(tmp_path: Path) -> None:
    assert len(train(tmp_path / "cuda", "diloco", "cuda", 2)) == 2


@pytest.mark.skipif(NUM_DEVICES < 2, reason="NCCL needs a device for each rank of a world")
@pytest.mark.parametrize("kind", ["replicas", "exact"])
def test_replicas_reduce_over_nccl(tmp_path: Path, kind: str) -> None:
    there = train(tmp_path / "cuda", kind, "cuda", 2, backend="nccl")
    assert there == [pytest.approx(train(tmp_path / "cpu", kind, "cpu", 2)[0], rel=1e-3)] * 2
