"""``flowrt explain``: where each operation of a step runs and why, and the programs that run it."""

from __future__ import annotations

import argparse

from flowrt.cli.options import report_mistake
from flowrt.errors import InvalidArgumentError, OpError
from flowrt.graph.passes.pipeline import parse_pipeline
from flowrt.viz.explain import ALL, explain, pass_changes, regex
from flowrt.viz.explain_layouts import explain_layouts
from flowrt.viz.script import main_request, requests_of_script

EXAMPLES = """
  flowrt explain train.py -- --steps 2                where each operation of the largest step runs, and why
  flowrt explain train.py --passes all                what each stage of compilation changes
  flowrt explain grpc://10.0.0.1:2222                 what a worker runs

Arguments after -- are passed to the script.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        help="a script, which is run (its largest step is explained), a GraphDef (.pb, .pbtxt), an event"
        " file, or a running worker (grpc://host:port)",
    )
    parser.add_argument(
        "--fetch", action="append", metavar="TENSOR", help="explain the step that computes TENSOR; repeatable"
    )
    parser.add_argument(
        "--passes",
        metavar="STAGES",
        help="show what each compilation stage changes instead: 'all', or a list such as"
        " 'extract, lower, optimise(fold_constants)'",
    )
    parser.add_argument(
        "--layouts",
        action="store_true",
        help="show the layout of each tensor over the mesh instead, and the collectives between layouts",
    )
    parser.add_argument(
        "--name",
        metavar="REGEX",
        help="show only operations whose name matches, and the program lines that run them",
    )


def run(arguments: argparse.Namespace) -> int:
    try:
        print(_text(arguments))
    except OpError as error:
        return report_mistake("explain", str(error))
    return 0


def _text(arguments: argparse.Namespace) -> str:
    source, fetches = arguments.source, arguments.fetch
    if arguments.passes not in (None, ALL):
        parse_pipeline(arguments.passes)  # mistakes are reported before the script runs
    if arguments.name is not None:
        if arguments.layouts or arguments.passes is not None:
            raise InvalidArgumentError("--name: expected it without --passes and --layouts")
        regex(arguments.name)
    if source.endswith(".py"):
        asked = requests_of_script(source, arguments.script_arguments)
        source, fetches = main_request(asked, fetches or ()), None
    if arguments.layouts:
        return str(explain_layouts(source, fetches) or "no tensor of this step has a layout")
    if arguments.passes is not None:
        return pass_changes(source, arguments.passes, fetches)
    found = explain(source, fetches)
    return str(found if arguments.name is None else found.only(arguments.name))
