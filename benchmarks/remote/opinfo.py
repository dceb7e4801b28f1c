"""Every sample that PyTorch has for its own operators, on a node: the same bits as here, forward and backward.

``python -m benchmarks.remote.opinfo --list FILE`` writes what differs or is refused. Needs the package ``expecttest``.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from multiworld import remote
from multiworld.bench.report import Bound, Line
from multiworld.remote import NodeDeadError
from multiworld.remote.master.node import Node

from .operators import Finding, Found, compare

__all__ = ["line", "lines_of", "measure", "table_of"]

DTYPE = torch.float32
UNCOUNTED = (Found.UNINITIALISED, Found.UNREPEATABLE)


def measure(node: Node, names: str = "", part: tuple[int, int] = (0, 1), most: int | None = None) -> Iterator[Finding]:
    """Compare the operators whose name contains ``names``, of every ``part[1]``-th; ``most``: samples of each."""
    for info in itertools.islice(_operators(names), part[0], None, part[1]):
        backward = bool(info.supports_autograd)
        samples = iter(info.sample_inputs("cpu", DTYPE, requires_grad=backward))
        for sample in itertools.islice(samples, most):
            found = compare(node, info.full_name, info, sample, backward=backward)
            yield from found
            if not node.is_alive or any(NodeDeadError.__name__ in each.text for each in found):
                node.wait_alive(60)


def _operators(names: str) -> Iterator[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if names in info.full_name and DTYPE in info.supported_dtypes("cpu"):  # type: ignore[no-untyped-call]
            yield info


def line(options: argparse.Namespace) -> list[Line]:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lines_of(_measured())


def _measured(names: str = "", part: tuple[int, int] = (0, 1), most: int | None = None) -> list[Finding]:
    """Show what is not equal as it is found. Failures are findings: the end of the nodes raises none of them."""
    findings = []
    nodes = remote.local(1)
    try:
        for finding in measure(nodes[1], names, part, most):
            findings.append(finding)
            if finding.found not in (Found.EQUAL, Found.UNINITIALISED):
                print(*finding[:2], finding.found.value, finding.text, flush=True)
    finally:
        nodes.close()
    return findings


def lines_of(findings: Iterable[Finding]) -> list[Line]:
    found = list(findings)
    lines = []
    for is_backward, what, percent in ((False, "equal results", 99.0), (True, "equal gradients", 98.0)):
        counted = Counter(each.found for each in found if each.is_backward == is_backward)
        total = sum(number for kind, number in counted.items() if kind not in UNCOUNTED)
        value = 100 * counted[Found.EQUAL] / total if total else None
        details = {kind.value: float(number) for kind, number in counted.items()}
        lines.append(Line(name=what, unit="%", value=value, bound=Bound(at="least", limit=percent), details=details))
    unclear = sum(each.found in (Found.DIFFERENT, Found.FAILED) for each in found)
    lines.append(Line(name="samples without a clear error", unit="", value=float(unclear), bound=Bound.at_most(0)))
    return lines


def table_of(findings: Iterable[Finding]) -> str:
    """Return the list of what is not equal, one row for each operator, direction and kind."""
    found = list(findings)
    totals = Counter((each.operator, each.is_backward) for each in found)
    others = [each for each in found if each.found not in (Found.EQUAL, Found.UNINITIALISED)]
    rows = Counter((each.operator, each.is_backward, each.found) for each in others)
    texts = {(each.operator, each.is_backward, each.found): each.text for each in reversed(others)}
    lines = ["| operator | | samples | what comes instead |", "| --- | --- | --- | --- |"]
    for key, number in sorted(rows.items(), key=lambda row: (row[0][0], row[0][1])):
        operator, is_backward, kind = key
        text = texts[key].replace("|", "\\|")
        direction = "gradients" if is_backward else "results"
        lines.append(
            f"| `{operator}` | {direction} | {number} of {totals[operator, is_backward]} {kind.value} | {text} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote.opinfo", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="operators whose name contains it")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every N-th operator, from the I-th on")
    parser.add_argument("--most", type=int, metavar="N", help="samples of each operator")
    parser.add_argument("--list", type=Path, metavar="FILE", help="write the list of what is not equal")
    options = parser.parse_args(arguments)
    index, parts = map(int, options.part.split("/"))
    torch.set_num_threads(1)
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        findings = _measured(options.only, (index, parts), options.most)
    for each in lines_of(findings):
        print(f"{each.name}: {each.value} {each.unit} {each.details}")
    print(f"{time.monotonic() - began:.0f} s")
    if options.list:
        options.list.write_text(table_of(findings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
