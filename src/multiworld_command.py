"""The command ``multiworld`` from its first step: it takes its signals over before the package is imported.

Importing any part of the package takes 50 ms, in which Ctrl-C would end in a traceback; this module takes none.
"""

import os
import signal
import sys

__all__ = ["main", "main_of_exec", "main_of_oobleck"]


def main() -> int:
    """Run the command line of this process, and return its exit status."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(signum) != signal.SIG_IGN:  # as of what a script starts in the background
            signal.signal(signum, _end)
    from multiworld.cli.main import main as command  # which has its own way to end from here on

    return command()


def main_of_exec() -> int:
    """``pytorch_exec``: ``multiworld exec`` by its name in the original design of ``torch.distributed``."""
    sys.argv.insert(1, "exec")
    return main()


def main_of_oobleck() -> int:
    """``oobleck``: ``multiworld oobleck``, which takes Oobleck's commands for a cluster."""
    sys.argv.insert(1, "oobleck")
    return main()


def _end(signum: int, frame: object) -> None:
    try:
        os.write(2, f"multiworld: ended by {signal.Signals(signum).name}\n".encode())
    finally:
        os._exit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
