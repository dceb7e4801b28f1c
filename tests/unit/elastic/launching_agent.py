"""An agent's port for the workers of a test, all of which live in this process, with what was heard there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

import multiworld as mw
from multiworld.elastic.agent.worker_port import WorkerPort
from multiworld.testing import wait_until
from multiworld.wire.progress.operation import Operation
from multiworld.wire.progress.thread import ProgressThread
from multiworld.wire.progress.waiting import wait_blocking
from multiworld.world.launcher.launched import Launch, Place
from multiworld.world.launcher.news import WORKER_NEWS
from multiworld.world.launcher.process_link import close_links

T = TypeVar("T")
TOKEN = "secret"


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what comes from another thread."""
    assert wait_until(condition, timeout_s=10, poll_s=0.002)


class Agent:
    """The real port on a progress thread of its own."""

    def __init__(self, job: str = "job") -> None:
        self.job = job
        self.loop = ProgressThread("agent")
        self.hellos: list[str] = []
        self.news: list[tuple[str, dict[str, Any]]] = []
        self.gone: list[str] = []
        self.port = self.on_loop(
            lambda: WorkerPort(
                self.loop,
                TOKEN.encode(),
                on_hello=self.hellos.append,
                on_news=lambda worker, news: self.news.append((worker, WORKER_NEWS.to_json(news))),
                on_gone=self.gone.append,
            )
        )

    def on_loop(self, call: Callable[[], T]) -> T:
        """Make a call on the agent's own thread."""
        called: Operation[T] = Operation()

        def run() -> None:
            try:
                called.succeed(call())
            except BaseException as error:  # it belongs to the test
                called.fail(error)

        self.loop.call_soon(run)
        return wait_blocking(called)

    def place(self, worker: str, rank: int, world_size: int, store: str = "", **fields: Any) -> Place:
        """Give a worker its place."""
        values = {"job": self.job, "local_rank": rank, "generation": 1, **fields}
        place = Place(rank=rank, world_size=world_size, store=store, **values)
        self.on_loop(lambda: self.port.publish(worker, place))
        return place

    def launch_of(self, worker: str) -> Launch:
        return Launch(agent=self.port.address, worker=worker, job=self.job, generation=1, token=TOKEN)

    @contextmanager
    def as_worker(self, worker: str, **others: str) -> Iterator[None]:
        """What is done here finds the variables that the worker has, but for some others."""
        with mock.patch.dict(os.environ, {**self.launch_of(worker).to_environment(), **others}):
            yield

    def manager(self, worker: str, **options: Any) -> mw.WorldManager:
        """Return a manager that believes to be in the process of that worker."""
        with self.as_worker(worker):
            return mw.WorldManager(**options)

    def heard(self, worker: str, kind: str) -> dict[str, Any]:
        """Wait for news of a kind, and return the first."""

        def found() -> list[dict[str, Any]]:
            return [news for who, news in list(self.news) if who == worker and news["news"] == kind]

        eventually(lambda: bool(found()))
        return found()[0]

    def close(self) -> None:
        if self.loop.running:
            self.on_loop(self.port.close)
            self.loop.stop()


@contextmanager
def agent_of(job: str = "job") -> Iterator[Agent]:
    """Run one, and close it and what the test has opened for good in this process."""
    agent = Agent(job)
    try:
        yield agent
    finally:
        close_links()
        agent.close()
