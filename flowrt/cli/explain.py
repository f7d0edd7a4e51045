"""``flowrt explain``: where each operation of a step runs and why, and the programs that run it."""

from __future__ import annotations

import argparse
import sys

from flowrt.errors import OpError
from flowrt.viz.explain import Explanation, explain
from flowrt.viz.script import main_question, questions_of_script

HELP = "say where each operation of a step runs and why, and what was compiled for it"
MISTAKE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        help="a script, which is run: of its steps the one with most operations is explained; or a GraphDef"
        " (.pb, .pbtxt), an event file, or a running worker (grpc://host:port)",
    )
    parser.add_argument(
        "--fetch", action="append", metavar="TENSOR", help="the step that computes it; may be repeated"
    )
    parser.epilog = "What stands behind -- are the script's own arguments."


def run(arguments: argparse.Namespace) -> int:
    try:
        print(_explained(arguments))
    except OpError as error:
        print(f"flowrt explain: {str(error).splitlines()[0]}", file=sys.stderr)
        return MISTAKE
    return 0


def _explained(arguments: argparse.Namespace) -> Explanation:
    if not arguments.source.endswith(".py"):
        return explain(arguments.source, arguments.fetch)
    asked = questions_of_script(arguments.source, arguments.script_arguments)
    return explain(main_question(asked, arguments.fetch or ()))
