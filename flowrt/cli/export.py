"""``flowrt export``: a graph, or a pipeline's schedule, as a file that a viewer opens."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from flowrt.cli.export_schedule import add_schedule_arguments, export_schedule, reject_schedule_arguments
from flowrt.cli.options import not_negative, positive, report_mistake
from flowrt.errors import InvalidArgumentError, OpError
from flowrt.profiler.always_on import kept_steps, recent_step_stats
from flowrt.viz.export import RADIUS, check_export, export
from flowrt.viz.formats.table import FORMATS
from flowrt.viz.script import main_request, only, requests_of_script
from flowrt.viz.sources import LAYOUTS, VIEWS, source_of

EXAMPLES = """
  flowrt export train.py --out graph.html                      the step of a script, for a browser
  flowrt export train.py --view partitioned --out graph.svg    by device, with Send and Recv
  flowrt export train.py --against before.pb --out graph.html  what changed from an earlier graph
  flowrt export grpc://10.0.0.1:2222 --out graph.html          what a worker runs
  flowrt export --schedule 1f1b --devices 4 --micro-batches 8 --out schedule.svg

Arguments after -- are passed to the script.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "source",
        nargs="?",
        default="",
        help="a script, which is run (its largest step is drawn), a GraphDef (.pb, .pbtxt), an event file,"
        " or a running worker (grpc://host:port)",
    )
    add("--out", required=True, metavar="FILE", help="output file (replaced only on success)")
    add(
        "--format", choices=list(FORMATS), metavar="NAME",
        help=f"{', '.join(FORMATS)} (default: from the name of FILE)",
    )  # fmt: skip
    add(
        "--view",
        choices=[*VIEWS, LAYOUTS],
        metavar="NAME",
        help=f"{', '.join(VIEWS)}, or {LAYOUTS}, if the step has a mesh (default: {VIEWS[0]})",
    )
    add("--fetch", action="append", metavar="TENSOR", help="draw only what TENSOR depends on; repeatable")
    add(
        "--depth",
        type=positive,
        metavar="N",
        help="levels of scopes to draw (default: as many as are legible)",
    )
    add("--focus", metavar="OP", help="draw only the neighbourhood of this operation or scope")
    add(
        "--radius", type=not_negative, metavar="N",
        help=f"radius of --focus, in edges (default: {RADIUS})",
    )  # fmt: skip
    add(
        "--against", metavar="GRAPH",
        help="another graph, such as the GraphDef of an earlier version: the page shows what changed from it",
    )  # fmt: skip
    add_schedule_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    try:
        print((_export if arguments.schedule is None else export_schedule)(arguments))
    except OpError as error:
        return report_mistake("export", str(error))
    return 0


def _export(arguments: argparse.Namespace) -> str:
    if not arguments.source:
        raise InvalidArgumentError("source: expected a graph, or --schedule; got none")
    reject_schedule_arguments(arguments)
    source, view, step_stats = arguments.source, arguments.view or VIEWS[0], []
    if arguments.radius is None:
        arguments.radius = RADIUS
    elif arguments.focus is None:
        raise InvalidArgumentError("radius: expected --focus OP, the center of the radius; got none")
    if source.endswith(".py"):  # report mistakes in the other arguments before the script runs
        check_export(
            source, arguments.out, arguments.format, view, arguments.depth, arguments.focus,
            arguments.radius, arguments.against,
        )  # fmt: skip
        if arguments.against is not None:
            _check_against(arguments.against, arguments.fetch)
        with kept_steps():
            asked = requests_of_script(source, arguments.script_arguments)
            step_stats = recent_step_stats()
        source = main_request(asked, arguments.fetch or ())
        source = only(source, arguments.fetch) if arguments.fetch else source
    return export(
        source,
        arguments.out,
        arguments.format,
        view,
        fetches=arguments.fetch,
        depth=arguments.depth,
        focus=arguments.focus,
        radius=arguments.radius,
        step_stats=step_stats,
        against=arguments.against,
    )


def _check_against(path: str, fetches: Sequence[str] | None) -> None:
    """Raises its errors if ``path`` cannot be compared with."""
    if path.endswith(".py"):
        raise InvalidArgumentError(
            f"against: expected a graph, such as a GraphDef; got the script {path}."
            f" Write its graph first: flowrt export {path} --out before.pb"
        )
    source_of(path, fetches)
