"""A process with one kept member, which is ended when it has been stopped for a tenth of a second. Prints its pids."""

from __future__ import annotations

import signal
import sys

from multiworld.process.spawn.fork_server import ForkServer
from multiworld.serving.hosts.logs.output import Outputs
from multiworld.serving.hosts.members import Members
from multiworld.serving.hosts.order import Order
from multiworld.wire.progress.thread import ProgressThread


def idle(arguments: dict[str, object]) -> None:
    signal.pause()


def show(name: str, pid: int) -> None:
    print(pid, flush=True)


def fail(error: OSError) -> None:
    raise error


def main() -> None:
    loop = ProgressThread("multiworld-host", starts=False)
    outputs = Outputs(loop, None)

    server = ForkServer.start(preload=["multiworld.serving.hosts.member_process"], paths=sys.path)
    server.wait_ready()
    members = Members(
        loop,
        outputs,
        server,
        ForkServer.start,
        on_started=show,
        on_exit=lambda name, pid, ending: None,
        look_s=0.02,
        stopped_limit_s=0.1,
    )
    order = Order(member="kept-1", program="tests.process.stopped_member_host:idle", arguments={}, keep=True)
    members.start(order, lambda pid: show("kept-1", pid), fail)
    loop.run()


if __name__ == "__main__":
    main()
