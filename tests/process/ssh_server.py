"""An sshd of a test's own on loopback addresses, with keys and configuration of its own; and what stands for ssh."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from multiworld.testing import wait_until

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
PRIVILEGES = Path("/run/sshd")  # where sshd shuts itself in, if root runs it; Debian makes it when its service starts
CONFIGURATION = "sshd_config"
STAND_IN = """\
#!/bin/sh
# Stands for ssh: takes its options, then runs the command line here, from the home directory, as a child of its own.
while [ "${1#-}" != "$1" ]; do shift 2; done
host=$1
shift
if [ "$host" = nosuch ]; then
    echo "ssh: Could not resolve hostname nosuch: Name or service not known" >&2
    exit 255
fi
echo "Welcome to $host"
exec 3<&0  # a command in the background has no input of its own
cd / && env -i PATH="$PATH" HOME=/ ${MULTIWORLD_NATIVE+MULTIWORLD_NATIVE="$MULTIWORLD_NATIVE"} sh -c "$*" <&3 3<&- &
exec 3<&- <&-
wait $!
"""
"""Killing it leaves what it runs, as killing ssh does; it goes on when its input ends."""


def why_not() -> str | None:
    """Return why no sshd can be started here, for a skip; None if it can."""
    missing = [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]
    if SSHD is None or missing:
        return "needs sshd and ssh (Debian: apt-get install openssh-server)"
    if os.geteuid() == 0 and not PRIVILEGES.exists() and not os.access(PRIVILEGES.parent, os.W_OK):
        return f"sshd needs the folder {PRIVILEGES}"
    return None


def stand_in(folder: Path) -> str:
    """Return the command of a stand-in for ssh in this folder."""
    path = folder / "ssh"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return str(path)


def foreground(folder: Path) -> list[str]:
    """Return the command of an sshd that was configured there."""
    assert SSHD is not None
    return [SSHD, "-D", "-e", "-f", str(folder / CONFIGURATION)]


def configure(folder: Path, port: int, *addresses: str) -> str:
    """Write keys and configuration of an sshd; returns the ssh command that reaches it. Nobody's ~/.ssh is touched.

    Without addresses it listens at all that it has.
    """
    if os.geteuid() == 0:
        PRIVILEGES.mkdir(mode=0o755, exist_ok=True)
    for name in ("host_key", "own_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "authorized").write_bytes((folder / "own_key.pub").read_bytes())
    (folder / CONFIGURATION).write_text(
        "".join(f"ListenAddress {address}:{port}\n" for address in addresses)
        + f"Port {port}\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/authorized\nPidFile none\n"
        "UsePAM no\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\nMaxStartups 100\n"
    )
    (folder / "ssh_config").write_text(
        f"Port {port}\nIdentityFile {folder}/own_key\nIdentitiesOnly yes\nIdentityAgent none\n"
        f"UserKnownHostsFile {folder}/known\nGlobalKnownHostsFile none\nStrictHostKeyChecking accept-new\n"
    )
    return f"ssh -F {folder}/ssh_config"


@contextmanager
def ssh_server(folder: Path, *addresses: str) -> Iterator[str]:
    """Yield the ssh command that reaches these loopback addresses, through one sshd."""
    port = _free_port(addresses[0])
    command = configure(folder, port, *addresses)
    log = (folder / "sshd.log").open("wb")
    server = subprocess.Popen(foreground(folder), stderr=log, start_new_session=True)
    try:
        assert wait_until(lambda: server.poll() is not None or _answers(addresses, port), 10), "sshd does not answer"
        assert server.poll() is None, (folder / "sshd.log").read_text()
        yield command
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
        log.close()


def _free_port(address: str) -> int:
    with socket.socket() as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])


def _answers(addresses: tuple[str, ...], port: int) -> bool:
    for address in addresses:
        with socket.socket() as sock:
            if sock.connect_ex((address, port)):
                return False
    return True
