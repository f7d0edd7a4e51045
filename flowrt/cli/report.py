"""``flowrt report RUN_DIR``: a run as one HTML file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from flowrt.cli.options import report_mistake, spellings
from flowrt.errors import DataLossError, OpError
from flowrt.report import read_run, write_page

EXAMPLES = """
  flowrt report runs/mnist                    writes runs/mnist/report.html
  flowrt report runs/mnist -o mnist.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir",
        type=Path,
        metavar="RUN_DIR",
        help="directory with the run's event files, task logs and traces, or of flowrt plan --log-dir",
    )
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="output file (default: RUN_DIR/report.html)"
    )
    parser.add_argument(
        *spellings("--skip-damaged"), action="store_true",
        help="report the intact parts of damaged files (default: fail)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    target = arguments.out or arguments.run_dir / "report.html"
    try:
        found = read_run(arguments.run_dir, arguments.skip_damaged)
        for note in found.notes:
            print(f"flowrt report: {' '.join(note.split())}", file=sys.stderr)
        print(write_page(found, target))
    except DataLossError as error:
        what = str(error).splitlines()[0].rstrip(".")
        return report_mistake("report", f"{what}. --skip-damaged reports the intact parts.")
    except OpError as error:
        return report_mistake("report", str(error))
    return 0
