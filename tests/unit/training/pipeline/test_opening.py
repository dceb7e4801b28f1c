"""A model for which too few processes are there waits for those that the launcher may start, or says what it needs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from multiworld.training.errors import ModelTooLargeError
from multiworld.training.pipeline.opening import layered, templates_for
from multiworld.training.planning.templates import Templates

WIDTH = 64
LAYER_BYTES = 4 * (WIDTH * WIDTH + WIDTH)
STATES = 4  # a parameter, its gradient, and what an optimizer keeps of it


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def templates(*, num_nodes: int, most_nodes: int) -> Templates:
    """Of a model of four layers, two of which fit into a node."""
    example = torch.zeros(2, WIDTH), torch.zeros(2, WIDTH)
    return templates_for(
        layered(None, [nn.Linear(WIDTH, WIDTH) for _ in range(4)], example),
        example,
        functional.mse_loss,
        num_nodes=num_nodes,
        most_nodes=most_nodes,
        tolerate=0,
        memory_bytes=STATES * LAYER_BYTES * 3 - 1,
        device=torch.device("cpu"),
    )


def test_a_model_that_needs_more_processes_than_there_are_waits_for_those_that_may_come(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert templates(num_nodes=1, most_nodes=2).smallest == 2
    assert "needs 2 processes, and the launcher has started 1 so far: it waits for more" in caplog.text


def test_a_model_that_is_too_large_for_all_that_may_come_is_refused() -> None:
    with pytest.raises(ModelTooLargeError) as raised:
        templates(num_nodes=1, most_nodes=1)
    assert (raised.value.num_nodes, raised.value.smallest) == (1, 2)
