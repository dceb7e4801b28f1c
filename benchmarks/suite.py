"""A suite of benchmarks, each a line by name: measure those that are wanted, print a table, append it to RESULTS.md."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from multiworld.bench.report import Line, Report, Section, describe_machine
from multiworld.bench.table import append_record, section_text, verdict_text

__all__ = ["RESULTS", "Suite"]

RESULTS = Path(__file__).parent / "RESULTS.md"


@dataclass(frozen=True, kw_only=True)
class Suite:
    """``lines``: by name, what each is about and how it is measured. ``reference``: what stands beside ours."""

    name: str
    lines: Mapping[str, tuple[str, Callable[[argparse.Namespace], list[Line]]]]
    reference: str
    other_references: Mapping[str, str] = field(default_factory=dict)
    not_alternated: Collection[str] = ()
    """Lines that are not measured in turn with the reference."""

    def parser(self, about: str | None) -> argparse.ArgumentParser:
        """Return one with the options of every suite: ``alternations``, ``only``, ``record``, ``json``."""
        listed = "\n".join(f"  {name:<9} {about}" for name, (about, _) in self.lines.items())
        parser = argparse.ArgumentParser(
            prog=f"python -m benchmarks.{self.name}",
            description=about,
            epilog=f"lines:\n{listed}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--alternations", type=int, default=5, metavar="N", help="of every comparison (default 5)")
        parser.add_argument("--only", action="append", choices=self.lines, metavar="LINE", help="this one; repeatable")
        parser.add_argument("--record", action="store_true", help=f"append the figures to {RESULTS.name}")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
        parser.add_argument("--seed", type=int, default=0, help="of whatever is random (default 0)")
        return parser

    def run(self, options: argparse.Namespace) -> int:
        """Measure and report; return 1 if a bound was missed."""
        names = list(options.only or self.lines)
        sections: list[Section] = []
        report = Report(machine=describe_machine(), quick=options.alternations < 5, sections=sections)
        try:
            for name in names:
                sections.append(self._measure(name, options))
                print(f"\n{section_text(sections[-1])}\n", flush=True)
        finally:  # whoever ends a run of an hour keeps what was measured until then
            if sections:
                sections += [self._not_reached(name) for name in names[len(sections) :]]
                self._keep(report, options)
        print(verdict_text(report), flush=True)
        return 1 if report.failures or report.missing else 0

    def _keep(self, report: Report, options: argparse.Namespace) -> None:
        if options.json:
            options.json.write_text(json.dumps(report.as_json(), indent=1))
        if options.record:
            append_record(RESULTS, report)

    def _not_reached(self, name: str) -> Section:
        lines = [Line.not_measured(name, "the run was ended before")]
        return Section(name=f"{self.name}: {name}", about=f"{self.lines[name][0]}.", took_s=0.0, lines=lines)

    def _measure(self, name: str, options: argparse.Namespace) -> Section:
        about, measure = self.lines[name]
        began = time.monotonic()
        print(f"{name}: {about}", flush=True)
        try:
            lines = measure(options)
        except Exception as error:  # what cannot be measured fails, and the other lines are measured all the same
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            lines = [Line.not_measured(name, f"{type(error).__name__}: {error}")]
        times = "" if name in self.not_alternated else f"; {options.alternations} times on each side, in turn"
        return Section(
            name=f"{self.name}: {name}",
            about=f"{about[0].upper()}{about[1:]}{times}.",
            took_s=time.monotonic() - began,
            lines=lines,
            reference=self.other_references.get(name, self.reference),
        )
