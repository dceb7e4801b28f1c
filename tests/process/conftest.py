"""Fixtures of the tests with processes: most of their workers are forked, not started one by one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from multiworld.process.spawn import interpreter
from multiworld.testing import hosts, worker_group
from tests import warm_programs
from tests.warm_workers import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    warm_programs.fork_by(nursery.fork_program)
    yield nursery
    warm_programs.fork_by(None)
    nursery.close()


@pytest.fixture(scope="module", autouse=True)
def warm_workers(nursery: Nursery, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork the workers of ``WorkerGroup``, the hosts of deployments and what is started on simulated hosts, except in
    modules marked ``cold``.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("cold") is None:
            patch.setattr(worker_group, "ChildProcess", nursery.start)
            patch.setattr(interpreter, "subprocess", warm_programs)
            patch.setattr(hosts, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": warm_programs.Popen}))
        yield


@pytest.fixture(scope="module")
def torch_features(nursery: Nursery) -> None:
    """Fork workers that have PyTorch's own distributed features imported, which takes as long as PyTorch itself."""
    nursery.preload("tests.process.process_group_programs")
