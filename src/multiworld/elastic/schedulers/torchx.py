"""A TorchX component that runs a job as ``multiworld run``, one agent in each replica; needs torchx only when called.

TorchX reads the annotations of ``dist`` from its source, and knows no newer forms than these.
"""

import re
import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING, Dict, List, Optional  # noqa: UP035 - see above

if TYPE_CHECKING:
    from torchx.specs import AppDef

LAYOUT = re.compile(r"(?:(?:(\d+):)?(\d+)x)?(\d+)")


def dist(
    *script_args: str,
    script: str = "",
    m: str = "",
    image: str = "",
    name: str = "",
    h: str = "",
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,  # noqa: N803 - as TorchX's own components spell it
    j: str = "1x2",
    env: Optional[Dict[str, str]] = None,  # noqa: UP006, UP045
    max_retries: int = 0,
    rdzv_port: int = 29400,
    options: str = "",
    mounts: Optional[List[str]] = None,  # noqa: UP006, UP045
) -> "AppDef":
    """A distributed job under the elastic launcher of multiworld: what failed is started again, the rest goes on.

    Args:
        script_args: arguments of the program
        script: the script to run
        m: the module to run instead
        image: the image, with multiworld and the program in it
        name: of the job; by default that of the script or module
        h: a named resource, in place of cpu, gpu and memMB
        cpu: processors for each replica
        gpu: GPUs for each replica
        memMB: memory for each replica, in MB
        j: [[MIN:]NNODES x]NPROC_PER_NODE, such as 4, 2x4 or 1:8x4
        env: variables for each replica
        max_retries: how often the scheduler may start the job again
        rdzv_port: where the agents meet, on the host of replica 0
        options: more options of multiworld run, in one word, such as "--restart worker --spares 1"
        mounts: as TorchX's dist.ddp takes them

    """
    import torchx
    from torchx import specs

    least, most, num_workers = _layout(j)
    if bool(script) == bool(m):
        raise ValueError("give one of --script and -m")
    options_of_job = [f"--nnodes={least}:{most}", f"--nproc-per-node={num_workers}", *shlex.split(options)]
    program = [*([script] if script else ["-m", m]), *script_args]
    command = f"exec multiworld run {_place(most, rdzv_port)} {shlex.join([*options_of_job, *program])}"
    title = PurePath(script).stem if script else m.rpartition(".")[2]
    role = specs.Role(
        name=title,
        image=image or torchx.IMAGE,
        min_replicas=least,
        num_replicas=most,
        entrypoint="bash",
        args=["-c", command],
        env=dict(env or {}),
        resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h or None),
        port_map={"rendezvous": rdzv_port},
        max_retries=max_retries,
        mounts=specs.parse_mounts(mounts) if mounts else [],
    )
    return specs.AppDef(name=name or title, roles=[role])


def _place(num_hosts: int, port: int) -> str:
    """Return where the agents meet, as options for a shell."""
    from torchx import specs

    if num_hosts == 1:
        return "--standalone"
    # The shell puts the host in: each scheduler has a variable of its own for it, which may be unset on that host.
    host = f"$${{{specs.macros.rank0_env}:=localhost}}"
    return f"--rdzv-backend=c10d --rdzv-endpoint={host}:{port} --rdzv-id={specs.macros.app_id}"


def _layout(text: str) -> tuple[int, int, int]:
    matched = LAYOUT.fullmatch(text)
    if matched is None:
        raise ValueError(f"-j {text!r}: expected NPROC_PER_NODE, NNODESxNPROC_PER_NODE or MIN:MAXxNPROC_PER_NODE")
    least, most, num_workers = matched.groups()
    return int(least or most or 1), int(most or 1), int(num_workers)
