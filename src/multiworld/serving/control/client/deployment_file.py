"""The file by which a command finds a running deployment, and which keeps its name from being taken twice."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ....errors import MessageError
from ....process.facts import network_space, process_space
from ....wire.endpoints.token import check_token
from ....wire.messages import decode, encode, sparse
from ....world.processes.procfs import EXITED, process_start_time, process_state
from ...errors import DeploymentError
from ...locked_folder import WORKS_PREFIX
from ...whole_file import whole_file

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
LOCK = ".lock"
EVERYWHERE = {"0.0.0.0", "::"}
UNKNOWN = ""
"""The space of those that were written by a version that knew of none: they are of this one."""


@sparse
@dataclass(frozen=True, kw_only=True)
class DeploymentRecord:
    """Where the controller of a deployment listens. ``pid`` and ``start_time`` (ticks since boot) name its owner."""

    name: str
    address: tuple[str, int]
    token: str
    pid: int
    start_time: int
    started: float
    """Seconds since the epoch."""
    http: tuple[str, int] | None = None
    """Where its gateways answer: another deployment of this user could listen there too, and would get requests."""
    works: str = ""
    """The folder of its works, which it removes at its end, unless it is killed."""
    process_space: str = ""
    """Where ``pid`` means something: containers may share folders."""
    network_space: str = ""
    """Where its loopback addresses do."""
    path: str = field(default="", compare=False)
    """Of its file, as it was read: the same folder may be elsewhere in another container."""

    def __post_init__(self) -> None:
        check_token(self.token)
        ipaddress.ip_address(self.address[0])

    @property
    def is_running(self) -> bool:
        if self.is_of_this_space:
            return process_state(self.pid, self.start_time) != EXITED
        path = Path(self.path)
        return bool(self.path) and _read(path) == self and _is_held(path)

    @property
    def is_of_this_space(self) -> bool:
        return self.process_space in (UNKNOWN, process_space())

    @property
    def is_reachable(self) -> bool:
        """Whether its addresses mean something here: one of another container may be out of reach."""
        return self.network_space in (UNKNOWN, network_space()) or not ipaddress.ip_address(self.address[0]).is_loopback


class DeploymentFile:
    """Claimed at the start of a deployment, by the process that lives as long as that, and removed at its end.

    It is locked as long as that process lives, or one that it has forked. Who cannot see the process looks at that.
    """

    def __init__(self, path: Path, record: DeploymentRecord, descriptor: int) -> None:
        self.path, self.record = path, record
        self._descriptor = descriptor

    @classmethod
    def claim(
        cls,
        name: str,
        address: tuple[str, int],
        token: str,
        *,
        http: tuple[str, int] | None = None,
        works: Path | None = None,
        folder: Path | None = None,
    ) -> DeploymentFile:
        """Write the file, for this process. What deployments left behind that were killed is removed.

        Raises DeploymentError if a deployment of that name runs, or one that answers at that address of HTTP, or the
        folder cannot be used or trusted; ValueError for a name that is no file's.
        """
        if not NAME.fullmatch(name):
            raise ValueError(f"a deployment's name has letters, digits, '_', '.' and '-' only, got {name!r}")
        folder = _make_private(folder or deployments_dir())
        pid = os.getpid()
        record = DeploymentRecord(
            name=name,
            address=address,
            token=token,
            pid=pid,
            start_time=process_start_time(pid) or 0,
            started=time.time(),
            http=http,
            works=str(works or ""),
            process_space=process_space(),
            network_space=network_space(),
        )
        path = folder / f"{name}.json"
        with _usable(folder), _locked(folder):
            before = _read(path)
            if before is None and path.exists() and _is_held(path):
                raise DeploymentError(
                    f"a deployment {name!r} of another version of multiworld runs already, and holds {path}. "
                    "Stop it with that version, or give this one another name."
                )
            if before is not None and before.is_running:
                where = "" if before.is_of_this_space else " of another container"
                raise DeploymentError(
                    f"a deployment {name!r} runs already, as process {before.pid}{where}. "
                    "Stop it, or give this one another name."
                )
            if http is not None:
                _check_free(http, [each for each in map(_read, folder.glob("*.json")) if each is not None])
            _clear(folder)
            descriptor = _write(path, record)
        return cls(path, record, descriptor)

    def remove(self) -> None:
        """Idempotent. Another deployment's file, under the same name, is left alone."""
        if self._descriptor < 0:
            return
        try:
            with suppress(FileNotFoundError), _locked(self.path.parent):
                if _read(self.path) == self.record:
                    self.path.unlink()
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> DeploymentFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def deployments_dir() -> Path:
    """Return the folder of this user: under ``$XDG_RUNTIME_DIR`` or, without that, in ``/tmp``."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime, "multiworld", "serve") if runtime else Path(f"/tmp/multiworld-{os.geteuid()}", "serve")


def list_deployments(folder: Path | None = None) -> list[DeploymentRecord]:
    """Return those that run and can be reached from here, by name.

    Raises DeploymentError if the folder cannot be trusted.
    """
    folder = folder or deployments_dir()
    with _usable(folder):
        if not folder.exists():
            return []
        _check_private(folder)
        records = [_read(path) for path in sorted(folder.glob("*.json"))]
    return [record for record in records if record is not None and record.is_reachable and record.is_running]


def find_deployment(name: str | None = None, *, folder: Path | None = None) -> DeploymentRecord:
    """Return the one of that name, or the only one. Raises DeploymentError that says what there is instead."""
    running = list_deployments(folder)
    matching = [record for record in running if name is None or record.name == name]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(record.name for record in running)
    folder = folder or deployments_dir()
    if matching:
        raise DeploymentError(f"several deployments run: {names}. Name one of them.")
    foreign = _foreign(folder, name)
    if not running:
        nowhere = f"no deployment of this user runs on this machine (none is in {folder})"
        raise DeploymentError(f"{nowhere}{foreign}")
    raise DeploymentError(f"no deployment {name!r} runs on this machine; there are: {names}{foreign}")


def _foreign(folder: Path, name: str | None) -> str:
    """Return what to do about files that cannot be read here, behind another sentence; nothing if there are none."""
    paths = [path for path in sorted(folder.glob("*.json")) if name in (None, path.stem) and _read(path) is None]
    if not paths:
        return ""
    shown = ", ".join(map(str, paths))
    return (
        f". What another version of multiworld wrote, or what is damaged, cannot be read: {shown}. Use that version, "
        "or end the processes of the deployment yourself and remove the file"
    )


def _check_free(http: tuple[str, int], others: list[DeploymentRecord]) -> None:
    for other in others:
        if other.http is None or other.http[1] != http[1] or other.network_space != network_space():
            continue
        if not other.is_running:
            continue
        if other.http[0] == http[0] or {other.http[0], http[0]} & EVERYWHERE:
            raise DeploymentError(
                f"the deployment {other.name!r}, process {other.pid}, answers at {http[0]}:{http[1]} already. "
                "Stop it, or choose another --port."
            )


def _make_private(folder: Path) -> Path:
    with _usable(folder):
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_private(folder)
    return folder


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Say so where it is not, as with the XDG_RUNTIME_DIR of another user."""
    try:
        yield
    except OSError as error:
        raise DeploymentError(f"{folder} cannot be used: {error.strerror}. Set XDG_RUNTIME_DIR, or unset it.") from None


def _clear(folder: Path) -> None:
    """Remove the files of deployments that were killed, and the works that they left."""
    for path in folder.glob("*.json"):
        record = _read(path)
        if record is None or record.is_running:
            continue
        works = Path(record.works)  # in another container, that may be another place
        if record.is_of_this_space and works.name.startswith(WORKS_PREFIX) and not works.is_symlink():
            shutil.rmtree(works, ignore_errors=True)
        path.unlink(missing_ok=True)


def _check_private(folder: Path) -> None:
    """In ``/tmp`` anybody may have made a folder of that name, to read tokens or to hand out their own."""
    for place in (folder.parent, folder):
        status = place.lstat()
        if status.st_uid != os.geteuid() or not place.is_dir() or place.is_symlink() or status.st_mode & 0o022:
            raise DeploymentError(
                f"{place} cannot be trusted: it must be a folder of this user into which nobody else writes. "
                "Remove it, or set XDG_RUNTIME_DIR."
            )
    if folder.lstat().st_mode & 0o077:
        raise DeploymentError(f"{folder} can be read by others; take that from them: chmod 700 {folder}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _read(path: Path) -> DeploymentRecord | None:
    """Return None for what is not there, or was not written here."""
    try:
        return replace(decode(DeploymentRecord, path.read_bytes()), path=str(path))
    except (OSError, MessageError):
        return None


def _write(path: Path, record: DeploymentRecord) -> int:
    """Return the descriptor that holds its lock."""
    with ExitStack() as failing:
        with whole_file(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # it is nobody else's yet
            file.write(encode(record))
            file.flush()
            held = os.dup(file.fileno())
            failing.callback(os.close, held)
        failing.pop_all()
    return held


def _is_held(path: Path) -> bool:
    """Whether the process that wrote it lives, in whichever container."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may be looking, too
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
