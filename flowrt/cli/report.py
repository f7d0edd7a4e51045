"""``flowrt report RUN_DIR ...``: a run, or several side by side, as one HTML file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from flowrt.cli.options import report_mistake, spellings
from flowrt.errors import DataLossError, OpError
from flowrt.report import common_directory, read_run, write_page

EXAMPLES = """
  flowrt report runs/mnist                    writes runs/mnist/report.html
  flowrt report runs/mnist -o mnist.html
  flowrt report runs/a runs/b                 compares them in runs/report.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dirs",
        type=Path,
        nargs="+",
        metavar="RUN_DIR",
        help="directory with the run's event files, task logs and traces, or of flowrt plan --log-dir; "
        "several are compared",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="output file (default: report.html in RUN_DIR, or in the directory that all are below)",
    )
    parser.add_argument(
        *spellings("--skip-damaged"), action="store_true",
        help="report the intact parts of damaged files (default: fail)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    target = arguments.out or common_directory(arguments.run_dirs) / "report.html"
    try:
        found = read_run(*arguments.run_dirs, skip_damaged=arguments.skip_damaged)
        for note in found.notes:
            print(f"flowrt report: {' '.join(note.split())}", file=sys.stderr)
        print(write_page(found, target))
    except DataLossError as error:
        what = str(error).splitlines()[0].rstrip(".")
        return report_mistake("report", f"{what}. --skip-damaged reports the intact parts.")
    except OpError as error:
        return report_mistake("report", str(error))
    return 0
