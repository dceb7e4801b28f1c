"""``multiworld doctor``: what is installed, which channels work here and why the others do not, limits, a verdict."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Protocol

from .. import native
from ..command_parser import CommandParser
from ..extras import install_extra
from ..wire.endpoints.token import TOKEN_VARIABLE, weakness_of
from ..wire.messages import Json
from . import machine

DEFAULT_CHANNEL = "auto"
EXTRAS = {
    "serving": "multiworld serve, multiworld.serving",
    "demo": "multiworld demo",
    "mpi": "the channel mpi",
    "tracing": "traces of requests over OTLP",
    "training": "plans of pipelines: multiworld train plan, job.pipeline",
}
"""What a user of the package may want besides, and for what; ``dev`` and ``docs`` are for those who change it."""
FEW_OPEN_FILES = 4096
NOT_INSTALLED = "not installed"
COMPILE = "have a C compiler and Python's headers (on Debian: apt-get install gcc python3-dev), then install again"


class Support(Protocol):
    """Whether a channel works on this machine; what ``channel.registry.available()`` tells of each."""

    @property
    def works(self) -> bool: ...
    @property
    def reason(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One line of the channel table; ``reason`` says why it does not work, or what it needs besides."""

    name: str
    works: bool
    reason: str
    default: bool


@dataclass(frozen=True, kw_only=True)
class NativePart:
    """Whether what is optional is in use: the C library, the compiled modules. ``reason`` says why it is not."""

    active: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Extra:
    """One extra of the package; ``missing`` names the packages of it that are not installed."""

    name: str
    purpose: str
    missing: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that the command shows. ``healthy`` is false when the default channel cannot work.

    ``verdict`` is one sentence; ``advice`` says what can be better here, and how, the most important first.
    """

    versions: dict[str, str]
    native_core: NativePart
    native_remote: NativePart
    compiled_modules: NativePart
    channels: tuple[Channel, ...]
    interfaces: tuple[machine.Interface, ...]
    limits: machine.Limits
    token_set: bool
    extras: tuple[Extra, ...]
    healthy: bool

    def native_parts(self) -> Iterator[tuple[str, NativePart, str]]:
        """Yield each with its name and what it costs to be without it."""
        yield "native core", self.native_core, "large tensors move more slowly on one host"
        yield "native remote operations", self.native_remote, "each operation of remote tensors takes longer"
        yield "compiled modules", self.compiled_modules, "each message takes longer"

    @property
    def advice(self) -> tuple[str, ...]:
        return tuple(_advice(self))

    @property
    def verdict(self) -> str:
        if not self.healthy:
            return f"NOT READY: the default channel ({DEFAULT_CHANNEL}) cannot work here."
        return "Ready, and it can be better:" if self.advice else "Ready: everything works here."

    def as_json(self) -> Mapping[str, Json]:
        """Return plain dicts and lists, the same as ``--json`` prints."""
        return {**asdict(self), "verdict": self.verdict, "advice": list(self.advice)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the diagnosis and return 0, or 1 when the default channel cannot work here."""
    options = command_parser().parse_args(arguments)
    diagnosis = diagnose(_registered_channels)
    print(json.dumps(diagnosis.as_json(), indent=2) if options.json else render(diagnosis))
    return 0 if diagnosis.healthy else 1


def command_parser() -> CommandParser:
    parser = CommandParser(
        prog="multiworld doctor",
        description="Show versions, which channels work here (and why the others do not), extras, limits, a verdict.",
        epilog=f"Exit status: 0, or 1 when the default channel ({DEFAULT_CHANNEL}) cannot work on this machine.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser


def diagnose(registered: Callable[[], Mapping[str, Support]]) -> Diagnosis:
    """Look at this machine. ``registered`` tells of the channels; if it fails, that is part of the diagnosis."""
    channels = _channels(registered)
    return Diagnosis(
        versions=_versions(),
        native_core=NativePart(active=native.core is not None, reason=native.why_not),
        native_remote=NativePart(active=native.for_remote is not None, reason=native.why_not_for_remote),
        compiled_modules=NativePart(active=not native.not_compiled, reason=native.not_compiled),
        channels=channels,
        interfaces=machine.interfaces(),
        limits=machine.limits(),
        token_set=bool(os.environ.get(TOKEN_VARIABLE)),
        extras=_extras(_requirements()),
        healthy=any(channel.default and channel.works for channel in channels),
    )


def render(diagnosis: Diagnosis) -> str:
    sections = {
        "versions": [
            *diagnosis.versions.items(),
            *((name, _native_row(part, without)) for name, part, without in diagnosis.native_parts()),
        ],
        "channels": [(channel.name, _verdict(channel)) for channel in diagnosis.channels],
        "extras": [(each.name, _extra_row(each)) for each in diagnosis.extras],
        "interfaces": [(each.name, _addresses(each)) for each in diagnosis.interfaces] or [("none", "")],
        "limits": _limit_rows(diagnosis.limits),
        "security": [("MULTIWORLD_TOKEN", _token_row(os.environ.get(TOKEN_VARIABLE, "")))],
    }
    width = max(len(name) for rows in sections.values() for name, _ in rows)
    blocks = [
        "\n".join([title, *(f"  {name:<{width}}  {value}".rstrip() for name, value in rows)])
        for title, rows in sections.items()
    ]
    verdict = "\n".join([diagnosis.verdict, *(f"  - {each}" for each in diagnosis.advice)])
    return "\n\n".join([*blocks, verdict])


def _advice(diagnosis: Diagnosis) -> Iterator[str]:
    for channel in diagnosis.channels:
        if channel.default and not channel.works:
            yield f"{channel.name}: {channel.reason}"
    yield from _native_advice(diagnosis)
    hard = diagnosis.limits.open_files_hard
    if hard is not None and hard < FEW_OPEN_FILES:
        yield (
            f"only {hard} files may be open in a process: each world and each client takes some; "
            "raise the hard limit (ulimit -Hn, or LimitNOFILE= of the service)"
        )
    for extra in diagnosis.extras:
        if extra.missing and extra.name == "serving":
            yield f"{extra.purpose} need {', '.join(extra.missing)}: {install_extra(extra.name)}"
    if not diagnosis.token_set:
        yield "before several hosts work together, set MULTIWORLD_TOKEN on each (openssl rand -hex 32)"


def _native_advice(diagnosis: Diagnosis) -> Iterator[str]:
    for name, part, without in diagnosis.native_parts():
        if part.active:
            continue
        switched_off = part.reason.startswith(f"{native.VARIABLE}=")
        mend = f"unset {native.VARIABLE}" if switched_off else COMPILE
        yield f"{without}, without the {name}: {mend}"


def _requirements() -> list[str]:
    try:
        return metadata.requires("multiworld") or []
    except metadata.PackageNotFoundError:
        return []


def _extras(requirements: Sequence[str]) -> tuple[Extra, ...]:
    """Return which packages of each extra are missing. An extra may name another one, as ``multiworld[serving]``."""
    named: dict[str, list[str]] = {name: [] for name in EXTRAS}
    for line in requirements:
        extra = re.search(r"""extra\s*==\s*['"]([\w-]+)['"]""", line)
        name = re.match(r"[\w.-]+(\[[\w-]+\])?", line)
        if extra is not None and name is not None and extra[1] in named:
            named[extra[1]].append(name[0])
    return tuple(
        Extra(name=name, purpose=purpose, missing=tuple(_missing(name, named))) for name, purpose in EXTRAS.items()
    )


def _missing(extra: str, named: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for package in named.get(extra, ()):
        other = re.fullmatch(r"multiworld\[(.+)\]", package)
        if other is not None:
            yield from _missing(other[1], named)
        elif _installed(package) == NOT_INSTALLED:
            yield package


def _registered_channels() -> Mapping[str, Support]:
    from ..channel.registry import available  # imports torch, which may be what is broken

    return available()


def _channels(registered: Callable[[], Mapping[str, Support]]) -> tuple[Channel, ...]:
    try:
        supports = registered()
    except (ImportError, OSError, RuntimeError) as error:  # what a broken installation of torch raises
        reason = f"no channel can be loaded: {type(error).__name__}: {error}"
        return (Channel(name=DEFAULT_CHANNEL, works=False, reason=reason, default=True),)
    return tuple(
        Channel(name=name, works=support.works, reason=support.reason, default=name == DEFAULT_CHANNEL)
        for name, support in supports.items()
    )


def _versions() -> dict[str, str]:
    return {
        "multiworld": _installed("multiworld"),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "torch": _installed("torch"),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def _native_row(part: NativePart, without: str) -> str:
    return "active" if part.active else f"not active: {part.reason}; {without}"


def _verdict(channel: Channel) -> str:
    default = " (default)" if channel.default else ""
    if channel.works:
        return f"works{default}" + (f", {channel.reason}" if channel.reason else "")
    return f"does not work{default}: {channel.reason}"


def _extra_row(extra: Extra) -> str:
    if not extra.missing:
        return f"installed: {extra.purpose}"
    return f"not installed ({', '.join(extra.missing)} missing): {extra.purpose}; {install_extra(extra.name)}"


def _addresses(interface: machine.Interface) -> str:
    return "  ".join(interface.addresses) + ("" if interface.up else "  (down)")


def _limit_rows(limits: machine.Limits) -> list[tuple[str, str]]:
    shm = f"{_size(limits.shm_free_bytes)} free of {_size(limits.shm_total_bytes)}"
    threads = {"kernel": limits.kernel_threads, "user": limits.user_processes, "container": limits.cgroup_threads}
    return [
        ("cores", str(limits.cores)),
        ("open files", f"{_count(limits.open_files_soft)}, can be raised to {_count(limits.open_files_hard)}"),
        ("threads", ", ".join(f"{scope} {_count(number)}" for scope, number in threads.items())),
        ("listen backlog", _count(limits.listen_backlog)),
        ("/dev/shm", "not there" if limits.shm_total_bytes is None else shm),
        ("pidfd", _feature(limits.pidfd, "the death of a process here is seen by its closed sockets only")),
        ("/proc/PID/stat", _feature(limits.proc_stat, "a stopped process here is reported as silent")),
        ("TCP_USER_TIMEOUT", _feature(limits.tcp_user_timeout, "a cut network is seen only when the lease runs out")),
    ]


def _token_row(token: str) -> str:
    if not token:
        return "not set: any process that reaches a port of ours may join; use trusted networks only"
    weakness = weakness_of(token)
    return f"set: {weakness}" if weakness else "set"


def _feature(there: bool, consequence: str) -> str:
    return "yes" if there else f"no: {consequence}"


def _count(number: int | None) -> str:
    return "unlimited" if number is None else str(number)


def _size(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / 2**20:,.0f} MiB"
