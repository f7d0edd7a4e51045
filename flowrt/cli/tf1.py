"""``flowrt-tf1``: runs a program written for TensorFlow 1, unchanged, on flowrt."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from flowrt.cli.options import MISTAKE
from flowrt.compat import tensorflow
from flowrt_command import new_parser

COMMAND = "flowrt-tf1"
DESCRIPTION = "Run a program written for TensorFlow 1, with flowrt under the name tensorflow."
EXAMPLES = """
  flowrt-tf1 train.py --steps 100
  flowrt-tf1 -m models.train --steps 100
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program of ``argv`` (None: the process's arguments) as Python would; its errors and its exit
    status are its own. 2 for a mistake on the command line.
    """
    arguments = new_tf1_parser().parse_args(argv)
    if not arguments.module and not Path(arguments.program).exists():
        print(f"{COMMAND}: expected a Python file; there is none at {arguments.program!r}", file=sys.stderr)
        return MISTAKE
    tensorflow.install()
    sys.argv = [arguments.program, *arguments.words]
    if arguments.module:
        sys.path.insert(0, "")
        runpy.run_module(arguments.program, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(arguments.program).resolve().parent))
        runpy.run_path(arguments.program, run_name="__main__")
    return 0


def new_tf1_parser() -> argparse.ArgumentParser:
    parser = new_parser(COMMAND, DESCRIPTION, EXAMPLES)
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is the name of a module")
    parser.add_argument("program", metavar="PROGRAM", help="a Python file")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="the program's arguments")
    return parser


if __name__ == "__main__":
    sys.exit(main())
