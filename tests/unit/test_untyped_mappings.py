"""Mappings of anything are the user's own values, or stay within one process: what processes say has types."""

from __future__ import annotations

import re
from pathlib import Path

import multiworld

ROOT = Path(multiworld.__file__).parent
UNTYPED = re.compile(r"\b(dict|Mapping)\[str, Any\]")
AT_MOST = 75
"""Lines in all. One more needs a reason; one less lowers this."""
MAY_HAVE = {
    "bench": "figures that a report shows as JSON, and what the members of a benchmark answer the testing kit",
    "channel/collectives/reduction.py": "torch's functions by the names of operations",
    "demo/report.py": "a report as JSON, for people's programs",
    "elastic/launch/arguments.py": "options of the command line, on their way into a configuration",
    "elastic/launch/launcher.py": "the record of a job's failure, whose form torch has laid down",
    "model/checks": "arguments of the user's functions, and the state of random generators",
    "model/signature.py": "tensors by the user's names",
    "model/tracing": "arguments of the user's modules",
    "model/user_main.py": "what the user's main module holds",
    "remote/protocol/template.py": "keyword arguments of PyTorch's operators",
    "serving/config": "the user's configuration before it is checked, and the example that a model gives",
    "serving/member/reports.py": "fields of a dataclass, on their way into another",
    "serving/control/spec.py": "fields of a dataclass, on their way into another; a specification as JSON",
    "serving/control/weights_store.py": "a state_dict",
    "serving/deployment.py": "a status as JSON, for people's programs",
    "serving/gateway/endpoints/openapi.py": "a document of OpenAPI",
    "serving/generation/stage.py": "a state_dict",
    "serving/ingress/requests.py": "tensors by the user's names",
    "serving/member/member.py": "a state_dict",
    "serving/tracing/exporter.py": "the attributes of a span, which may be anything",
    "testing": "the values that a test's author sends to the test's own processes",
    "training/state.py": "the name of a state_dict's type",
    "wire/json_forms.py": "JSON itself: the codec makes types of it",
    "wire/messages.py": "JSON itself: the codec makes types of it",
}
"""Modules and folders, and whose values they hold."""


def untyped_lines() -> dict[str, int]:
    """Return how many lines of each module hold one."""
    found = {}
    for path in ROOT.rglob("*.py"):
        num_lines = sum(bool(UNTYPED.search(line)) for line in path.read_text(encoding="utf-8").splitlines())
        if num_lines:
            found[path.relative_to(ROOT).as_posix()] = num_lines
    return found


def test_mappings_of_anything_stand_only_where_their_values_are_not_ours() -> None:
    others = [module for module in untyped_lines() if not any(module.startswith(each) for each in MAY_HAVE)]
    assert not others, (
        f"give these messages types (wire/messages.py), or say in MAY_HAVE whose values they hold: {others}"
    )


def test_mappings_of_anything_grow_no_more() -> None:
    found = untyped_lines()
    assert sum(found.values()) <= AT_MOST, found


def test_whoever_may_have_some_has_some() -> None:
    found = untyped_lines()
    assert not [each for each in MAY_HAVE if not any(module.startswith(each) for module in found)]
