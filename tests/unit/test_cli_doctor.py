"""What ``multiworld doctor`` says, and when it says that this machine will not do."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from multiworld import native
from multiworld.cli import doctor


@dataclass(frozen=True)
class _Support:
    works: bool
    reason: str = ""


def _healthy() -> Mapping[str, doctor.Support]:
    return {"auto": _Support(works=True), "nccl": _Support(works=False, reason="this build of torch has no CUDA")}


def test_working_default_channel_is_healthy_whatever_the_others_do() -> None:
    assert doctor.diagnose(_healthy).healthy


@pytest.mark.parametrize(
    "supports",
    [{}, {"gloo": _Support(works=True)}, {"gloo": _Support(works=True), "auto": _Support(works=False, reason="?")}],
)
def test_default_channel_that_cannot_work_is_unhealthy(supports: dict[str, doctor.Support]) -> None:
    assert not doctor.diagnose(lambda: supports).healthy


@pytest.mark.parametrize("error", [ImportError("libtorch.so is missing"), OSError("libtorch.so is missing")])
def test_torch_that_cannot_be_loaded_is_a_diagnosis_not_a_traceback(error: Exception) -> None:
    def broken() -> Mapping[str, doctor.Support]:
        raise error

    diagnosis = doctor.diagnose(broken)
    assert not diagnosis.healthy
    assert "libtorch.so is missing" in diagnosis.channels[0].reason
    assert "libtorch.so is missing" in doctor.render(diagnosis)


def test_table_gives_the_reason_for_each_channel_that_does_not_work() -> None:
    lines = [line.split() for line in doctor.render(doctor.diagnose(_healthy)).splitlines()]
    assert ["auto", "works", "(default)"] in lines
    assert "nccl does not work: this build of torch has no CUDA" in [" ".join(line) for line in lines]


def test_table_says_what_a_channel_that_works_needs_besides() -> None:
    def registered() -> Mapping[str, doctor.Support]:
        return {"auto": _Support(works=True), "mpi": _Support(works=True, reason="for processes of mpiexec")}

    text = doctor.render(doctor.diagnose(registered))
    assert "mpi works, for processes of mpiexec" in [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("core", "row"),
    [
        (doctor.NativePart(active=True, reason=""), "native core active"),
        (
            doctor.NativePart(active=False, reason="it was not built"),
            "native core not active: it was not built; large tensors move more slowly on one host",
        ),
    ],
)
def test_table_says_whether_the_native_core_is_active_and_why_not(core: doctor.NativePart, row: str) -> None:
    text = doctor.render(dataclasses.replace(doctor.diagnose(_healthy), native_core=core))
    assert row in [" ".join(line.split()) for line in text.splitlines()]


def test_table_says_why_modules_are_not_compiled() -> None:
    part = doctor.NativePart(active=False, reason="it was not built")
    text = doctor.render(dataclasses.replace(doctor.diagnose(_healthy), compiled_modules=part))
    assert "compiled modules not active: it was not built; each message takes longer" in [
        " ".join(line.split()) for line in text.splitlines()
    ]


def test_table_is_aligned() -> None:
    text = doctor.render(doctor.diagnose(_healthy))
    rows = [line for line in text.splitlines() if line.startswith("  ")]
    columns = {len(row) - len(row.lstrip()) for row in rows}
    assert columns == {2}
    values = {
        row.index(value) for row in rows for value in ("works (default)", "does not work:", "not set") if value in row
    }
    assert len(values) == 1


def test_json_holds_what_the_table_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_TOKEN", "a secret")
    diagnosis = doctor.diagnose(_healthy)
    text = json.dumps(diagnosis.as_json())
    record = json.loads(text)
    assert set(record) == {
        "versions",
        "native_core",
        "native_remote",
        "compiled_modules",
        "channels",
        "interfaces",
        "limits",
        "token_set",
        "extras",
        "healthy",
        "verdict",
        "advice",
    }
    assert set(record["versions"]) == {"multiworld", "python", "torch", "kernel"}
    assert record["native_core"] == {"active": native.core is not None, "reason": native.why_not}
    assert record["compiled_modules"] == {"active": not native.not_compiled, "reason": native.not_compiled}
    assert [channel["name"] for channel in record["channels"]] == ["auto", "nccl"]
    assert record["token_set"] is True
    assert "a secret" not in text
    assert "a secret" not in doctor.render(diagnosis)


def test_token_that_is_not_set_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MULTIWORLD_TOKEN", raising=False)
    assert "not set" in doctor.render(doctor.diagnose(_healthy))


def test_missing_kernel_feature_names_its_consequence() -> None:
    diagnosis = doctor.diagnose(_healthy)
    limits = dataclasses.replace(
        diagnosis.limits, pidfd=False, proc_stat=False, tcp_user_timeout=False, shm_total_bytes=None
    )
    text = doctor.render(dataclasses.replace(diagnosis, limits=limits, interfaces=()))
    assert "seen by its closed sockets only" in text
    assert "reported as silent" in text
    assert "only when the lease runs out" in text
    assert "not there" in text


def _all_there() -> doctor.Diagnosis:
    diagnosis = doctor.diagnose(_healthy)
    return dataclasses.replace(
        diagnosis,
        native_core=doctor.NativePart(active=True, reason=""),
        native_remote=doctor.NativePart(active=True, reason=""),
        compiled_modules=doctor.NativePart(active=True, reason=""),
        limits=dataclasses.replace(diagnosis.limits, open_files_hard=None),
        extras=tuple(dataclasses.replace(each, missing=()) for each in diagnosis.extras),
        token_set=True,
    )


def test_the_last_line_is_the_verdict() -> None:
    assert doctor.render(_all_there()).splitlines()[-1] == "Ready: everything works here."
    broken = dataclasses.replace(_all_there(), healthy=False)
    assert "\nNOT READY: the default channel (auto) cannot work here." in doctor.render(broken)


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({"native_core": doctor.NativePart(active=False, reason="it was not built")}, "a C compiler"),
        ({"native_remote": doctor.NativePart(active=False, reason="no headers")}, "each operation of remote tensors"),
        ({"compiled_modules": doctor.NativePart(active=False, reason="no mypyc")}, "each message takes longer"),
        (
            {"compiled_modules": doctor.NativePart(active=False, reason="MULTIWORLD_NATIVE=0")},
            "unset MULTIWORLD_NATIVE",
        ),
        ({"extras": (doctor.Extra(name="serving", purpose="serve", missing=("orjson",)),)}, "'.[serving]'"),
        ({"token_set": False}, "openssl rand -hex 32"),
    ],
)
def test_the_verdict_says_what_can_be_better_and_how(change: dict[str, object], advice: str) -> None:
    last = doctor.render(dataclasses.replace(_all_there(), **change)).split("\n\n")[-1].splitlines()  # type: ignore[arg-type]
    assert last[0] == "Ready, and it can be better:"
    assert len(last) == 2
    assert advice in last[1]


def test_few_open_files_are_advised_against() -> None:
    limits = dataclasses.replace(_all_there().limits, open_files_hard=1024)
    (advice,) = dataclasses.replace(_all_there(), limits=limits).advice
    assert "1024" in advice


def test_an_extra_names_the_packages_of_its_own_and_of_those_it_includes_that_are_missing() -> None:
    requirements = [
        "torch>=2.6",
        'multiworld[serving]; extra == "demo"',
        'scikit-learn-that-nobody-has; extra == "demo"',
        'pytest; extra == "serving"',
        'orjson-that-nobody-has>=1; extra == "serving"',
        'ruff-that-nobody-has; extra == "dev"',
    ]
    missing = {each.name: each.missing for each in doctor._extras(requirements)}
    assert missing == {
        "serving": ("orjson-that-nobody-has",),
        "demo": ("orjson-that-nobody-has", "scikit-learn-that-nobody-has"),
        "mpi": (),
        "tracing": (),
        "training": (),
    }


def test_the_table_of_extras_says_what_each_is_for_and_how_to_have_it() -> None:
    extra = doctor.Extra(name="mpi", purpose="the channel mpi", missing=("mpi4py",))
    text = doctor.render(dataclasses.replace(_all_there(), extras=(extra,)))
    assert "not installed (mpi4py missing): the channel mpi; pip install '.[mpi]' in a clone" in text
