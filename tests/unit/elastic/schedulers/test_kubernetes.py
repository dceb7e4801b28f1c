"""The objects for Kubernetes: what stands in them, that Kubernetes takes them, and that the command prints them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from multiworld.cli.main import main
from multiworld.elastic.launch.parser import run_parser
from multiworld.elastic.schedulers.kubernetes import Controller, Manifest, documents, objects

TRAIN = Manifest(
    name="train",
    image="registry/train:7",
    program=("train.py", "--out", "a b", "--where=${local_rank}", "$(HOSTNAME)"),
    nnodes="2:4+1",
    nproc_per_node="8",
    options=("--restart", "worker"),
    cpu="16",
    memory="64Gi",
    gpu=8,
    readiness="8080/healthz",
    shutdown_s=50,
)
EVERY_KIND = [replace(TRAIN, controller=controller) for controller in Controller]
JOBSET: dict[str, Any] = {  # the fields that JobSet v1alpha2 has, and their types; TEMPLATE is a Job's
    "network": {"enableDNSHostnames": bool, "subdomain": str, "publishNotReadyAddresses": bool},
    "successPolicy": {"operator": str, "targetReplicatedJobs": [str]},
    "failurePolicy": {
        "maxRestarts": int,
        "restartStrategy": str,
        "rules": [{"name": str, "action": str, "onJobFailureReasons": [str], "targetReplicatedJobs": [str]}],
    },
    "suspend": bool,
    "replicatedJobs": [{"name": str, "groupName": str, "replicas": int, "template": {"metadata": {}, "spec": object}}],
}


def made(manifest: Manifest) -> list[Any]:
    """Return the objects, to look into them."""
    return list(objects(manifest))


def pod_of(manifest: Manifest) -> dict[str, Any]:
    spec = made(manifest)[-1]["spec"]
    if manifest.controller is Controller.JOBSET:
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return dict(spec["template"]["spec"])


def variables_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in pod["containers"][0]["env"]}


def check_fields(found: Any, known: Any, path: str) -> None:
    """Raise unless everything found is known, with the right type."""
    if isinstance(known, list):
        assert isinstance(found, list), path
        for each in found:
            check_fields(each, known[0], f"{path}[]")
    elif isinstance(known, dict):
        assert isinstance(found, dict), path
        for name, value in found.items():
            assert name in known, f"{path}.{name}"
            check_fields(value, known[name], f"{path}.{name}")
    else:
        assert isinstance(found, known), path


@pytest.mark.parametrize("manifest", EVERY_KIND, ids=lambda manifest: str(manifest.controller.value))
def test_kubernetes_takes_every_object(manifest: Manifest) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="needs the schemas: pip install kubernetes-validate")
    for each in made(manifest):
        if each["kind"] == "JobSet":
            job = each["spec"]["replicatedJobs"][0]["template"]
            each = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, **job}
        for version in ("1.31", validator.latest_version()):
            validator.validate(each, version, strict=True)


def test_a_jobset_has_only_fields_that_jobsets_have() -> None:
    (jobset,) = made(replace(TRAIN, controller=Controller.JOBSET))
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    check_fields(jobset["spec"], JOBSET, "spec")


@pytest.mark.parametrize("manifest", EVERY_KIND, ids=lambda manifest: str(manifest.controller.value))
def test_the_command_in_the_pod_means_what_was_asked_for(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    container = pod_of(manifest)["containers"][0]
    for name, value in variables_of(pod_of(manifest)).items():
        if isinstance(value, str):
            monkeypatch.setenv(name, value)
    command = [word.replace("$$", "$") for word in container["command"]]  # as Kubernetes does, without $(NAME) left
    assert not any("$(" in word.replace("$$", "") for word in container["command"])
    assert command[:2] == ["multiworld", "run"]
    parsed = run_parser().parse_args(command[2:])
    assert (parsed.nnodes, parsed.nproc_per_node, parsed.restart.value) == ("2:4+1", "8", "worker")
    assert [parsed.training_script, *parsed.training_script_args] == list(TRAIN.program)
    first = "train-agents-0-0.train" if manifest.controller is Controller.JOBSET else "train-0.train"
    assert (parsed.rdzv_backend, parsed.rdzv_endpoint) == ("c10d", f"{first}:29400")


@pytest.mark.parametrize("manifest", EVERY_KIND, ids=lambda manifest: str(manifest.controller.value))
def test_pods_are_given_the_time_that_workers_have_and_the_secret_that_agents_share(manifest: Manifest) -> None:
    pod = pod_of(manifest)
    assert pod["terminationGracePeriodSeconds"] > manifest.shutdown_s
    assert f"--shutdown-timeout={manifest.shutdown_s}" in pod["containers"][0]["command"]
    token = variables_of(pod)["MULTIWORLD_TOKEN"]
    assert token == {"secretKeyRef": {"name": "train-token", "key": "token"}}
    assert "livenessProbe" not in pod["containers"][0]
    assert pod["containers"][0]["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": 8080}
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8"},
        "limits": {"nvidia.com/gpu": "8"},
    }


def test_there_are_as_many_pods_as_hosts_and_spare_ones() -> None:
    job, stateful = (made(replace(TRAIN, controller=kind))[1] for kind in (Controller.JOB, Controller.STATEFULSET))
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (5, 5)
    assert stateful["spec"]["replicas"] == 5


def test_pods_are_found_by_the_service_before_they_are_ready() -> None:
    service, job = made(TRAIN)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]


def test_a_job_that_is_made_again_does_not_meet_the_old_one() -> None:
    run_id = variables_of(pod_of(TRAIN))["PET_RDZV_ID"]
    assert run_id == {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}}


def test_a_job_that_failed_of_itself_is_not_tried_again_and_a_lost_pod_is() -> None:
    rules = made(TRAIN)[1]["spec"]["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["Ignore", "FailJob"]
    assert rules[1]["onExitCodes"] == {"containerName": "agent", "operator": "NotIn", "values": [137, 143]}
    assert pod_of(TRAIN)["restartPolicy"] == "Never"
    assert pod_of(replace(TRAIN, controller=Controller.STATEFULSET))["restartPolicy"] == "Always"


def test_with_etcd_no_pod_waits_for_another() -> None:
    pod = pod_of(replace(TRAIN, etcd="etcd-0:2379,etcd-1:2379"))
    assert "initContainers" not in pod
    assert variables_of(pod)["PET_RDZV_BACKEND"] == "etcd"
    assert variables_of(pod)["PET_RDZV_ENDPOINT"] == "etcd-0:2379,etcd-1:2379"


@pytest.mark.parametrize("manifest", EVERY_KIND, ids=lambda manifest: str(manifest.controller.value))
def test_what_is_printed_is_the_made(manifest: Manifest) -> None:
    comment, _, rest = documents(manifest).partition("\n")
    assert comment.startswith("# ")
    assert [json.loads(each) for each in rest.split("---\n")] == objects(manifest)
    yaml = pytest.importorskip("yaml", reason="needs a reader of YAML: pip install pyyaml")
    assert list(yaml.safe_load_all(documents(manifest))) == objects(manifest)


def test_the_command_prints_a_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["manifest", "k8s", "--name=a", "--image=b", "--nnodes=2", "--options=--spares 1 -m", "--jobset"]
    assert main([*line, "--", "app", "--name", "c"]) == 0
    printed = capsys.readouterr().out
    (jobset,) = made(
        Manifest(
            name="a",
            image="b",
            nnodes="2",
            options=("--spares", "1", "-m"),
            controller=Controller.JOBSET,
            program=("app", "--name", "c"),
        )
    )
    assert json.loads(printed.partition("\n")[2]) == jobset


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["--name=Train"], "--name 'Train'"),
        (["--name=" + "a" * 49], "at most 47"),
        (["--nnodes=3:2"], "0 < MIN <= MAX"),
        (["--nnodes=many"], "expected N, MIN:MAX"),
        (["--port=70000"], "1 to 65535"),
        (["--gpu=-1"], "negative"),
        (["--readiness=/healthz"], "PORT/PATH"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_one_line_and_no_output(
    line: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["manifest", "k8s", "--name=train", "--image=i", *line, "--", "train.py"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert told in said.err


def test_a_manifest_without_a_program_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifest", "k8s", "--name=train", "--image=i"]) == 2
    assert "no program" in capsys.readouterr().err
