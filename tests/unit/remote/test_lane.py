"""A lane hands out what came, and ends with the error of its world, also if that was broken before."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from multiworld.errors import WorldBrokenError
from multiworld.remote.lane import Lane
from multiworld.world.world import World

from .fake_node import fake_pair


def test_messages_come_in_their_order() -> None:
    here, there = fake_pair()
    lane = Lane(cast("World", here), 16, 0)
    for number in range(3):
        there.start_send_tensors(torch.tensor([number], dtype=torch.uint8), 1, 16, None)
    assert [bytes(lane.next()) for _ in range(3)] == [b"\0", b"\1", b"\2"]


@pytest.mark.parametrize("is_broken_before", [True, False])
def test_a_lane_of_a_broken_world_ends(is_broken_before: bool) -> None:
    here, _ = fake_pair()
    if is_broken_before:
        here.lose("gone")
    lane = Lane(cast("World", here), 16, 0)
    here.lose("gone")
    with pytest.raises(WorldBrokenError, match="gone"):
        lane.next()
