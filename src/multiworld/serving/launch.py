"""What ``multiworld serve`` does: draw a pipeline up in a process of its own, then be the host process that runs it."""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..process.interruption import undoing
from ..process.spawn.forking import die_with_parent, start_forked
from ..store.base import StoreURL
from ..wire.endpoints.addresses import family_of
from ..wire.endpoints.token import TOKEN_VARIABLE, weakness_of
from ..wire.messages import Json, from_json, to_json
from .control.client.deployment_file import DeploymentFile
from .errors import DeploymentError
from .graces import GRACE_S
from .hosts.options import HostOptions
from .hosts.order import Order
from .locked_folder import kept, works_folder

if TYPE_CHECKING:
    from .gateway import GatewayOptions
    from .generation.loop import GenerationOptions
    from .pipeline import Pipeline

SPEC_FILE = "spec.json"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CONTROLLER_PROGRAM = "multiworld.serving.control.controller_program:main"
PRELOAD = ("multiworld.serving.gateway_program", "multiworld.serving.control.controller_program")


@dataclass(frozen=True, kw_only=True)
class DrawnUp:
    """What the process that draws the pipeline up leaves to the one that runs it. ``deployment``: a DeploymentSpec."""

    name: str
    token: str
    http: tuple[str, int]
    deployment: Mapping[str, Json]
    preload: tuple[str, ...]
    paths: tuple[str, ...]


def serve(options: argparse.Namespace) -> int:
    """Serve until stopped; return the exit status: 2 if the target cannot be served."""
    try:
        options.address = _own(_numeric(options.address, "--address"))
    except ValueError as error:
        _say(str(error))
        return 2
    try:
        with undoing(_works()) as folder:
            return _run(options, folder) if _draw_up_beside(options, folder) else 2
    except DeploymentError as error:
        _say(str(error))
        return 1


@contextmanager
def _works() -> Iterator[Path]:
    """Give the folder of the works. Raises DeploymentError if it cannot be made."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(works_folder())
        except OSError as error:
            where = error.filename or tempfile.gettempdir()
            raise DeploymentError(f"no folder can be made, {where}: {error.strerror}. TMPDIR names another.") from None
        yield folder


def _run(options: argparse.Namespace, folder: Path) -> int:
    drawn = from_json(DrawnUp, json.loads((folder / SPEC_FILE).read_text(encoding="utf-8")))
    address = (options.address, _port_at(options.address, options.control_port, "--address and --control-port"))
    fields: dict[str, Json] = {
        **drawn.deployment,
        "store": str(StoreURL("tcp", options.address, _port_at(options.address, 0, "--address"))),
        "address": list(address),
    }
    with (
        undoing(DeploymentFile.claim(drawn.name, address, drawn.token, http=drawn.http, works=folder)) as file,
        kept(file.path.parent),
        kept(file.path.parents[1]),
    ):
        from .hosts.program import run_host

        status = run_host(
            HostOptions(
                address=address,
                token=drawn.token,
                name=socket.gethostname(),
                own_address=options.address,
                preload=(*PRELOAD, *drawn.preload),
                members=(Order(member="controller", program=CONTROLLER_PROGRAM, arguments=fields, keep=True),),
                log_dir=options.log_dir,
                grace_s=GRACE_S,
                paths=drawn.paths,
            )
        )
        _say(f"{drawn.name} has ended")
        return status


# ---- in a child of its own: what the user's module starts, threads say, must not be in a process that forks


def _draw_up_beside(options: argparse.Namespace, folder: Path) -> bool:
    with undoing(_drawing_up(options, folder)) as child:
        code = child.wait()
    if code < 0:
        _say(f"the process that made the pipeline was killed by signal {-code}")
    return code == 0


@contextmanager
def _drawing_up(options: argparse.Namespace, folder: Path) -> Iterator[_Child]:
    """Fork the process that draws up; it has ended when this is left."""
    parent, mask = os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    pid = start_forked(partial(_be_drawing_up, options, folder, parent, mask))
    child = _Child(pid)
    try:
        yield child
    finally:
        child.end()


def _be_drawing_up(options: argparse.Namespace, folder: Path, parent: int, mask: Iterable[int]) -> int:
    """In the child. A signal kills it: whatever the user's module would catch."""
    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        die_with_parent(parent)
    except ProcessLookupError:
        return 1  # nobody waits for it
    return _draw_up(options, folder)


class _Child:
    """A process that was forked. A handler may call ``end`` in the middle of ``wait``."""

    def __init__(self, pid: int) -> None:
        self._pid, self._pidfd = pid, os.pidfd_open(pid)

    def wait(self) -> int:
        """Return its exit status, negative for a signal."""
        result = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        assert result is not None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def end(self) -> None:
        """Kill it unless it has ended, and reap it. Idempotent."""
        if self._pidfd < 0:
            return
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)  # it is there until it is reaped
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        os.close(self._pidfd)
        self._pidfd = -1


def _draw_up(options: argparse.Namespace, folder: Path) -> int:
    from .config import ConfigError, PipelineFile, load_pipeline
    from .gateway.options import DEFAULT_PORT, GatewayOptions
    from .pipeline import Pipeline

    try:
        target = load_pipeline(options.target)
        described = target if isinstance(target, PipelineFile) else None
        if described is not None:
            sys.path.insert(0, described.folder)
            for warning in described.warnings:
                _say(f"{options.target}: {warning}")
            target = Pipeline.from_file(described)
        if not isinstance(target, Pipeline):
            raise ConfigError(
                options.target, [f" is a {type(target).__name__}, expected a multiworld.serving.Pipeline"]
            )
        pipeline = _adapted(target, options)
        http = GatewayOptions(port=DEFAULT_PORT) if described is None else described.gateway
        gateways = 1 if described is None else described.gateways
        _write(options, folder, pipeline, http, gateways)
    except (ConfigError, DeploymentError, ValueError, TypeError) as error:
        _say(str(error))
        return 2
    return 0


def _adapted(pipeline: Pipeline, options: argparse.Namespace) -> Pipeline:
    """Return the pipeline with what the command line says otherwise."""
    replicas = dict(options.replicas)
    unknown = sorted(set(replicas) - set(pipeline.graph.stages))
    if unknown:
        raise ValueError(
            f"--replicas {unknown[0]}: there is no such stage; there are {', '.join(pipeline.graph.order)}"
        )
    stages = [
        replace(stage, replicas=replicas.get(stage.name, stage.replicas)) if stage.name in replicas else stage
        for stage in pipeline.stages
    ]
    return pipeline.altered(stages=stages, name=options.name, lease_s=options.lease_s)


def _write(options: argparse.Namespace, folder: Path, pipeline: Pipeline, http: GatewayOptions, gateways: int) -> None:
    from .control.spec import DeploymentSpec

    http = replace(
        http,
        host=http.host if options.host is None else options.host,
        port=http.port if options.port is None else options.port,
        cors_origins=http.cors_origins if options.cors_origin is None else tuple(options.cors_origin),
        allowed_hosts=http.allowed_hosts if options.allow_host is None else tuple(options.allow_host),
    )
    host = _numeric(http.host)
    port = _port_at(host, http.port, "--host and --port")
    _port_at(options.address, options.control_port, "--address and --control-port")
    gateways = gateways if options.gateways is None else options.gateways
    if gateways < 1:
        raise ValueError(f"--gateways must be at least 1, got {gateways}")
    if warning := weakness_of(os.environ.get(TOKEN_VARIABLE, "")):
        _say(warning)
    if pipeline.generation is not None:
        _check_generation(pipeline.generation)
    http = replace(http, host=host, port=port, reuse_port=True)
    blueprint = pipeline.blueprint(in_main=False)
    spec = DeploymentSpec(
        name=pipeline.name,
        job=f"serving-{os.getpid()}-{secrets.token_hex(4)}",
        token=os.environ.get(TOKEN_VARIABLE) or secrets.token_hex(16),
        folder=folder,
        graph=pipeline.graph,
        lease_s=pipeline.lease_s,
        gateways=gateways,
        hosts=options.hosts,
        gateway={"http": asdict(http), **_tracing(options)},
        scaling=pipeline.autoscaling,
        backend=pipeline.backend,
    )
    paths = [entry for entry in sys.path if isinstance(entry, str)]  # Python looks at no others
    drawn = DrawnUp(
        name=spec.name,
        token=spec.token,
        http=(host, port),
        deployment=spec.to_json(),
        preload=pipeline.preload,
        paths=tuple(paths),
    )
    try:
        blueprint.write(folder)
        (folder / SPEC_FILE).write_text(json.dumps(to_json(drawn)), encoding="utf-8")
    except OSError as error:
        raise DeploymentError(
            f"{folder} cannot take the pipeline: {error.strerror}. TMPDIR names another folder."
        ) from None


def _tracing(options: argparse.Namespace) -> Mapping[str, Json]:
    """Say at once what is wrong with it, and not in a gateway that cannot start.

    What only the environment says, which may be meant for others, keeps nobody from serving.
    """
    from .tracing.choice import ENDPOINT_VARIABLE, chosen_tracing
    from .tracing.exporter import check_installed

    endpoint = os.environ.get(ENDPOINT_VARIABLE, "")
    try:
        tracing = chosen_tracing(options.trace, options.trace_ratio, endpoint)
        if tracing is None:
            return {}
        check_installed()
    except (DeploymentError, ValueError) as error:
        if options.trace is not None or options.trace_ratio is not None:
            raise
        _say(f"{ENDPOINT_VARIABLE} is set, but no request is traced: {error}")
        return {}
    return {"tracing": {"url": tracing.url, "ratio": tracing.ratio}}


def _numeric(host: str, name: str = "host") -> str:
    """Return a numeric address; the page must know who can reach it, and members listen there."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        ipaddress.ip_address(host)
    except ValueError:
        everywhere = ", 0.0.0.0: every network" if name == "host" else ""
        raise ValueError(
            f"{name} must be a numeric address (127.0.0.1: this host alone{everywhere}), got {host!r}"
        ) from None
    return host


def _own(address: str) -> str:
    """Return an address at which other processes can reach this host."""
    if ipaddress.ip_address(address).is_unspecified:
        raise ValueError(f"--address must be one of this host's own, at which the others reach it, got {address!r}")
    return address


def _check_generation(arguments: GenerationOptions) -> None:
    from .generation import Generator

    try:
        Generator(Unasked(), **arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"generation={dict(arguments)!r} of the pipeline: {error}") from None


class Unasked:
    """Stands for the pipeline where nobody asks it anything."""

    async def infer(self, payload: Any, **asked: Any) -> Any:
        raise NotImplementedError


def _port_at(host: str, port: int, chosen_by: str) -> int:
    """Return the port, or a free one for 0. Says at once that it is taken, and not in a process that is started again
    and again. Raises DeploymentError."""
    try:
        with socket.socket(family_of(host)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            found: int = sock.getsockname()[1]
    except OSError as error:
        reason = error.strerror or str(error)
        raise DeploymentError(f"cannot listen at {host}:{port}: {reason}. Choose others by {chosen_by}.") from None
    return found


def _say(text: str) -> None:
    sys.stderr.write(f"multiworld serve: {text}\n")
