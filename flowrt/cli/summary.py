"""``flowrt summary``: parameters, floating-point operations and bytes of a step, by name scope."""

from __future__ import annotations

import argparse
import json

from flowrt.cli.options import positive, report_mistake
from flowrt.errors import OpError
from flowrt.viz.script import main_request, only, requests_of_script
from flowrt.viz.step_summary import step_summary, summary_table

EXAMPLES = """
  flowrt summary train.py -- --steps 2    of the largest step of a script
  flowrt summary graph.pb --depth 2       by two parts of each name

Arguments after -- are passed to the script.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        help="a script, which is run (its largest step is summed up), a GraphDef (.pb, .pbtxt), an event"
        " file, or a running worker (grpc://host:port)",
    )
    parser.add_argument(
        "--fetch", action="append", metavar="TENSOR", help="sum up only what TENSOR depends on; repeatable"
    )
    parser.add_argument("--depth", type=positive, default=1, help="parts of a scope's name (default: 1)")
    parser.add_argument("--json", action="store_true", help="one object a scope, with all digits")


def run(arguments: argparse.Namespace) -> int:
    source, fetches = arguments.source, arguments.fetch
    try:
        if source.endswith(".py"):
            asked = requests_of_script(source, arguments.script_arguments)
            source = main_request(asked, fetches or ())
            source, fetches = only(source, fetches) if fetches else source, None
        rows = step_summary(source, fetches, depth=arguments.depth)
    except OpError as error:
        return report_mistake("summary", str(error))
    print(json.dumps([row._asdict() for row in rows], indent=1) if arguments.json else summary_table(rows))
    return 0
