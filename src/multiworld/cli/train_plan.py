"""``multiworld train plan``: templates of pipelines for a number of nodes, what they take, and who has which layers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..command_parser import CommandParser
from .planning_options import Planning, add_planning_options, planning_of, told, write_picture

if TYPE_CHECKING:
    from ..training.planning.templates import Templates
    from ..training.view.plan_view import PipelinesFor, PlanView

PLAN = "multiworld train plan"
EPILOG = """\
examples:
  multiworld train plan gpt2.json --nodes 8 --memory-gib 16
  multiworld train plan --layers 100 --nodes 16 --tolerate 2 --svg plan.svg

A template divides the layers among the stages of a pipeline of so many nodes. Pipelines are made of templates: as many
as use all nodes, with micro-batches so that all of them end a step at the same time. After a loss other pipelines are
made of the same templates.

step: from the first forward to the last backward, simulated exactly, without the exchange of gradients.
bubbles: the part of a step in which a stage waits. in flight: micro-batches whose activations a stage holds at most.
of proportional: the rate beside that part of the rate of all nodes which these nodes are.

Exit status: 0, 2 for what cannot be planned, with the reason."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan: 0, or 2 for what cannot be planned."""
    options = command_parser().parse_args(arguments)

    def work() -> None:
        from ..training.planning.installed import check_installed
        from ..training.view.plan_picture import plan_picture
        from ..training.view.plan_view import plan_json, plan_text

        check_installed()
        view = view_of(planning_of(options))
        if options.svg is not None:
            write_picture(options.svg, plan_picture(view))
        if options.json:
            print(json.dumps(plan_json(view), indent=2))
        elif options.svg != "-":
            print(plan_text(view))

    return told(PLAN, work)


def command_parser() -> CommandParser:
    parser = CommandParser(
        prog=PLAN,
        description="Divide a model among pipelines of nodes: templates, predicted times, and who has which layers.",
        epilog=EPILOG,
    )
    add_planning_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON: one object")
    parser.add_argument(
        "--svg", metavar="FILE", help="draw the templates, their timelines and the pipelines; -: to standard output"
    )
    return parser


def view_of(planning: Planning) -> PlanView:
    """Return what is shown. Raises PlanError for what cannot be planned."""
    from ..training.planning.timelines import TemplateTimeline
    from ..training.planning.timing import Timing
    from ..training.view.plan_view import PlanView

    templates = planning.templates()
    counts = range(templates.smallest, planning.num_nodes + 1)
    return PlanView(
        profile=planning.profile,
        node=planning.node,
        num_nodes=planning.num_nodes,
        tolerate=planning.tolerate,
        num_micro_batches=planning.num_micro_batches,
        smallest=templates.smallest,
        timelines=[
            TemplateTimeline(Timing.of(planning.profile, [planning.node] * each.num_nodes, each)) for each in templates
        ],
        pipelines=[_pipelines(templates, planning, num_nodes) for num_nodes in counts],
    )


def _pipelines(templates: Templates, planning: Planning, num_nodes: int) -> PipelinesFor:
    """Return the pipelines of so many nodes. Raises PlanError for the count that the user gave."""
    from ..training.errors import PlanError
    from ..training.planning.instantiation import instantiate
    from ..training.view.plan_view import PipelinesFor

    try:
        found = instantiate(
            templates, num_nodes, tolerate=planning.tolerate, num_micro_batches=planning.num_micro_batches
        )
    except PlanError as error:
        if num_nodes == planning.num_nodes:
            raise
        return PipelinesFor(num_nodes=num_nodes, note=str(error))
    return PipelinesFor(
        num_nodes=num_nodes,
        pipelines=tuple((each.size, each.num_micro_batches) for each in found.instances),
        iteration_s=found.iteration_s,
        idle=found.idle,
    )
