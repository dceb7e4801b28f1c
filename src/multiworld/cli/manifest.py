"""``multiworld manifest``: print what a scheduler needs to run a job. Nothing is sent anywhere."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from ..command_parser import CommandParser
from ..elastic.job.options import DEFAULT_SHUTDOWN_S
from ..elastic.schedulers.kubernetes import Controller, Manifest, documents

EPILOG = """\
examples:
  multiworld manifest k8s --name train --image registry/train:7 --nnodes 4 --nproc-per-node 8 --gpu 8 \\
      -- train.py --epochs 3 | kubectl apply -f -
  multiworld manifest k8s --name serve --image registry/serve:2 --nnodes 1:8 --statefulset --readiness 8080/healthz \\
      --options '--restart worker --max-restarts 3/10m' -- -m app.serve

Without --jobset and --statefulset it is an indexed Job, which ends when the program does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a manifest: 0, or 2 for a line that makes no sense."""
    given = list(sys.argv[2:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)  # argparse takes what follows it for its own here
    options = vars(command_parser().parse_args(given[:end]))
    del options["scheduler"]  # there is one
    try:
        manifest = Manifest(
            **{**options, "options": tuple(shlex.split(options["options"])), "program": tuple(given[end + 1 :])}
        )
    except ValueError as error:
        print(f"multiworld manifest: {error}", file=sys.stderr)
        return 2
    print(documents(manifest), end="")
    return 0


def command_parser() -> CommandParser:
    parser = CommandParser(
        prog="multiworld manifest",
        description="Print the objects that run a job on Kubernetes, one agent in each pod: for kubectl apply -f -.",
        epilog=EPILOG,
        usage="multiworld manifest k8s --name NAME --image IMAGE [OPTIONS] -- SCRIPT [ARGUMENTS OF SCRIPT]",
    )
    parser.add_argument("scheduler", choices=["k8s"], help="Kubernetes")
    parser.add_argument("--name", required=True, help="of the objects, and of the hosts in the cluster's DNS")
    parser.add_argument("--image", required=True, help="with python3, multiworld and the program in it")
    parser.add_argument("--nnodes", default="1", metavar="N | MIN:MAX | ...+SPARE", help="how many pods (default: 1)")
    parser.add_argument("--nproc-per-node", default="1", metavar="N", help="workers in each pod (default: 1)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--jobset",
        action="store_const",
        dest="controller",
        const=Controller.JOBSET,
        default=Controller.JOB,
        help="a JobSet: the cluster needs its controller",
    )
    kind.add_argument(
        "--statefulset",
        action="store_const",
        dest="controller",
        const=Controller.STATEFULSET,
        help="a StatefulSet, for what runs until it is removed: its pods are started again whenever they end",
    )
    parser.add_argument("--port", type=int, default=29400, help="where pod 0 is met (default: 29400)")
    parser.add_argument("--etcd", metavar="HOST:PORT[,...]", help="let the agents meet at an etcd instead of pod 0")
    parser.add_argument(
        "--secret", metavar="NAME", help="the Secret whose key 'token' they share (default: NAME-token)"
    )
    parser.add_argument(
        "--shutdown-timeout",
        type=int,
        dest="shutdown_s",
        default=DEFAULT_SHUTDOWN_S,
        metavar="SECONDS",
        help="for workers to end in",
    )
    parser.add_argument("--cpu", help="asked for each pod, such as 8 or 500m")
    parser.add_argument("--memory", help="asked for each pod, such as 64Gi")
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="NVIDIA GPUs for each pod")
    parser.add_argument("--readiness", metavar="PORT[/PATH]", help="ask a server of your own whether the pod is ready")
    parser.add_argument(
        "--options", default="", metavar="'OPTIONS'", help="more options of multiworld run, in one word"
    )
    return parser
