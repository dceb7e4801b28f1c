"""Over which channel replicas hand weights and canaries to each other."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, cast

import pytest

from multiworld.errors import JoinRefusedError
from multiworld.serving import Pipeline, Stage
from multiworld.serving.control.spec import DeploymentSpec
from multiworld.serving.member.hand_over import donate_weights, take_weights
from multiworld.serving.replica.canary import give_canary, take_canary
from multiworld.world.manager import WorldManager


class Joins:
    """Records how worlds are asked for, and forms none."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def join(self, name: str, **options: Any) -> None:
        self.asked.append({"name": name, **options})
        raise JoinRefusedError(name, "nobody joins here")


@pytest.mark.parametrize(
    ("backend", "expected"), [("authenticated", "authenticated"), ("auto", "auto"), ("gloo", "auto"), ("mpi", "auto")]
)
async def test_both_ends_authenticate_what_is_handed_over_where_requests_are(backend: str, expected: str) -> None:
    joins = Joins()
    manager, store = cast("WorldManager", joins), "tcp://127.0.0.1:1"
    for calling in (
        donate_weights(manager, "a", "b", {}, store, backend),
        take_weights(manager, "a", "b", store, backend),
        give_canary(manager, "a", "b", None, store, backend),
        take_canary(manager, "a", "b", store, backend),
    ):
        with pytest.raises(JoinRefusedError):
            await calling
    assert [asked["backend"] for asked in joins.asked] == [expected] * 4
    assert [asked["rank"] for asked in joins.asked] in ([0, 1, 0, 1], [1, 0, 1, 0])
    assert len({asked["name"] for asked in joins.asked}) == 2


def double(x: Any) -> Any:
    return x * 2


def test_the_controller_knows_the_channel_of_the_requests(tmp_path: Path) -> None:
    pipeline = Pipeline([Stage("double", double)], name="p", backend="authenticated")
    spec = DeploymentSpec(name="p", job="j", token="t", folder=tmp_path, graph=pipeline.graph, backend=pipeline.backend)
    again = DeploymentSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again.backend == "authenticated"
    assert dataclasses.replace(again, graph=spec.graph) == spec
