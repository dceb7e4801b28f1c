"""Write the Kubernetes objects that run one agent in each pod. Pure: what is asked for in, objects out.

The objects are printed as JSON, one document each, since JSON is YAML and needs neither a library nor rules of quoting.
"""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass

from ...wire.endpoints.token import TOKEN_VARIABLE
from ...wire.messages import Json

NODES = re.compile(r"(\d+)(?::(\d+))?(?:\+(\d+))?")
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
MAX_NAME = 48  # a label of DNS has 63 characters, and pods' names add to it
CONTAINER = "agent"
AGENTS = "agents"
REPORT_S = 10  # for the last lines of the log and the report, after the workers have had their time
LOSSES_PER_HOST = 3
KILLED, TERMINATED = 137, 143  # how a container ends when its host is lost or cleared: no fault of the program's
AWAIT_NAME = """\
import socket, sys, time
while True:
    try:
        socket.getaddrinfo(sys.argv[1], None)
        break
    except OSError:
        time.sleep(1)
"""


class Controller(enum.Enum):
    """Which kind of object makes the pods."""

    JOB = "job"  # an indexed Job: for what ends
    JOBSET = "jobset"  # the same in a JobSet, which makes the service, too, and starts the whole again
    STATEFULSET = "statefulset"  # for what runs until it is removed


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is asked for. ``program``: the script and its arguments. ``etcd``: endpoints, if agents meet there."""

    name: str
    image: str
    program: tuple[str, ...]
    nnodes: str = "1"
    nproc_per_node: str = "1"
    controller: Controller = Controller.JOB
    port: int = 29400
    etcd: str | None = None
    options: tuple[str, ...] = ()
    """More options of ``multiworld run``."""
    secret: str | None = None
    shutdown_s: int = 30  # as of jobs, whose folder is not below this one; a test compares them
    cpu: str | None = None
    memory: str | None = None
    gpu: int = 0
    readiness: str | None = None
    """``PORT`` or ``PORT/PATH`` of the user's own server in the pod."""

    def __post_init__(self) -> None:
        if LABEL.fullmatch(self.name) is None or len(self.name) > MAX_NAME:
            raise ValueError(
                f"--name {self.name!r}: expected a letter, then at most {MAX_NAME - 1} lower-case letters, digits or -"
            )
        least, most, _ = self._nodes
        if not 0 < least <= most:
            raise ValueError(f"--nnodes {self.nnodes}: expected 0 < MIN <= MAX")
        if not self.program:
            raise ValueError("no program: multiworld manifest k8s ... -- SCRIPT [ARGUMENTS OF SCRIPT]")
        if not 0 < self.port < 65536:
            raise ValueError(f"--port {self.port}: expected 1 to 65535")
        if self.gpu < 0 or self.shutdown_s < 0:
            raise ValueError("--gpu and --shutdown-timeout cannot be negative")
        self._readiness_probe()

    @property
    def num_pods(self) -> int:
        """The hosts, spare ones included."""
        _, most, spare = self._nodes
        return most + spare

    @property
    def secret_name(self) -> str:
        return self.secret or f"{self.name}-token"

    @property
    def first_pod(self) -> str:
        """The name of pod 0 in the cluster's DNS, which stays when the pod is replaced."""
        if self.controller is Controller.JOBSET:
            return f"{self.name}-{AGENTS}-0-0.{self.name}"
        return f"{self.name}-0.{self.name}"

    @property
    def _nodes(self) -> tuple[int, int, int]:
        matched = NODES.fullmatch(self.nnodes)
        if matched is None:
            raise ValueError(f"--nnodes {self.nnodes!r}: expected N, MIN:MAX, or either with +SPARE")
        least, most, spare = matched.groups()
        return int(least), int(most or least), int(spare or 0)

    def _readiness_probe(self) -> dict[str, Json] | None:
        if self.readiness is None:
            return None
        port, slash, path = self.readiness.partition("/")
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"--readiness {self.readiness!r}: expected PORT or PORT/PATH, such as 8080/healthz")
        if slash:
            return {"httpGet": {"path": f"/{path}", "port": int(port)}, "periodSeconds": 5}
        return {"tcpSocket": {"port": int(port)}, "periodSeconds": 5}


def objects(manifest: Manifest) -> list[dict[str, Json]]:
    """Return the objects, in the order in which they are to be made."""
    if manifest.controller is Controller.JOBSET:
        return [_jobset(manifest)]
    controller = _job(manifest) if manifest.controller is Controller.JOB else _statefulset(manifest)
    return [_service(manifest), controller]


def documents(manifest: Manifest) -> str:
    """Return the objects as a stream of YAML documents, and above it what must be there first."""
    made = manifest.secret_name
    head = (
        f"# The secret that all agents share, once: kubectl create secret generic {made} "
        "--from-literal=token=$(openssl rand -hex 32)\n"
    )
    return head + "---\n".join(json.dumps(each, indent=2) + "\n" for each in objects(manifest))


def _service(manifest: Manifest) -> dict[str, Json]:
    """Without an address of its own: it only gives the pods their names, which they need before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(manifest),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _labels(manifest),
            "ports": [{"name": "rendezvous", "port": manifest.port}],
        },
    }


def _job(manifest: Manifest) -> dict[str, Json]:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(manifest), "spec": _job_spec(manifest)}


def _job_spec(manifest: Manifest) -> dict[str, Json]:
    """A lost pod is replaced; a job that has failed of itself has used up its restarts, and is not tried again."""
    pods = manifest.num_pods
    return {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": LOSSES_PER_HOST * pods,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": [KILLED, TERMINATED]},
                },
            ]
        },
        "template": _pod_template(manifest, restart="Never"),
    }


def _jobset(manifest: Manifest) -> dict[str, Json]:
    agents: dict[str, Json] = {"name": AGENTS, "replicas": 1, "template": {"spec": _job_spec(manifest)}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(manifest),
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": manifest.name, "publishNotReadyAddresses": True},
            "failurePolicy": {
                "maxRestarts": LOSSES_PER_HOST,
                "rules": [
                    {"name": "failedOfItself", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
                ],
            },
            "replicatedJobs": [agents],
        },
    }


def _statefulset(manifest: Manifest) -> dict[str, Json]:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(manifest),
        "spec": {
            "serviceName": manifest.name,
            "replicas": manifest.num_pods,
            "podManagementPolicy": "Parallel",  # agents wait for each other, so pods must not
            "selector": {"matchLabels": _labels(manifest)},
            "template": _pod_template(manifest, restart="Always"),
        },
    }


def _pod_template(manifest: Manifest, *, restart: str) -> dict[str, Json]:
    spec: dict[str, Json] = {
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": manifest.shutdown_s + REPORT_S,
        "automountServiceAccountToken": False,
        "containers": [_container(manifest)],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    if manifest.controller is Controller.JOB:
        spec["subdomain"] = manifest.name  # StatefulSets and JobSets set it themselves
    if manifest.etcd is None:
        spec["initContainers"] = [
            {
                "name": "await-name",
                "image": manifest.image,
                "command": ["python3", "-c", AWAIT_NAME, manifest.first_pod],
            }
        ]
    return {"metadata": {"labels": _labels(manifest)}, "spec": spec}


def _container(manifest: Manifest) -> dict[str, Json]:
    """No liveness probe: an agent that dies ends its container, and one that hangs is found by the others' leases."""
    container: dict[str, Json] = {
        "name": CONTAINER,
        "image": manifest.image,
        "command": _command(manifest),
        "env": _environment(manifest),
        "ports": [{"name": "rendezvous", "containerPort": manifest.port}],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
        "resources": _resources(manifest),
    }
    probe = manifest._readiness_probe()
    if probe is not None:
        container["readinessProbe"] = probe
    return container


def _command(manifest: Manifest) -> list[str]:
    return [
        "multiworld",
        "run",
        f"--nnodes={manifest.nnodes}",
        f"--nproc-per-node={manifest.nproc_per_node}",
        f"--shutdown-timeout={manifest.shutdown_s}",
        *(_verbatim(word) for word in (*manifest.options, *manifest.program)),
    ]


def _environment(manifest: Manifest) -> list[dict[str, Json]]:
    """Where agents meet, as options of ``multiworld run``: what stands in ``options`` wins."""
    run_id: dict[str, Json] = {"value": manifest.name}
    if manifest.controller is not Controller.STATEFULSET:
        # of the Job's incarnation: one that is made again must not meet pods that are still ending
        label = "metadata.labels['batch.kubernetes.io/controller-uid']"
        run_id = {"valueFrom": {"fieldRef": {"fieldPath": label}}}
    return [
        {"name": "PET_RDZV_BACKEND", "value": "c10d" if manifest.etcd is None else "etcd"},
        {"name": "PET_RDZV_ENDPOINT", "value": manifest.etcd or f"{manifest.first_pod}:{manifest.port}"},
        {"name": "PET_RDZV_ID", **run_id},
        {"name": "PET_LOCAL_ADDR", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": {"name": manifest.secret_name, "key": "token"}}},
    ]


def _resources(manifest: Manifest) -> dict[str, Json]:
    wanted = {"cpu": manifest.cpu, "memory": manifest.memory}
    requests = {name: amount for name, amount in wanted.items() if amount is not None}
    if not manifest.gpu:
        return {"requests": requests} if requests else {}
    gpus = {"nvidia.com/gpu": str(manifest.gpu)}
    return {"requests": {**requests, **gpus}, "limits": gpus}


def _metadata(manifest: Manifest) -> dict[str, Json]:
    return {"name": manifest.name, "labels": _labels(manifest)}


def _labels(manifest: Manifest) -> dict[str, str]:
    return {"app.kubernetes.io/name": manifest.name, "app.kubernetes.io/managed-by": "multiworld"}


def _verbatim(word: str) -> str:
    """Return the word so that Kubernetes does not put a variable into it: ``$(NAME)`` is written ``$$(NAME)``."""
    return word.replace("$", "$$")
