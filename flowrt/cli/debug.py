"""``flowrt debug hang DIR``: which task kept the others waiting, by the flight records of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from flowrt.distribute.observe.flight_recorder import read_records
from flowrt.distribute.observe.missing_sender import explain, short_name

EXAMPLES = """
  flowrt debug hang logs    which task waits for what, and who should have sent it
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="hang", required=True)
    hang = actions.add_parser(
        "hang", help="name the task that the others waited for, and what they waited for"
    )
    hang.add_argument("dir", type=Path, metavar="DIR", help="the --log-dir of the tasks, from all hosts")


def run(arguments: argparse.Namespace) -> int:
    records = read_records(arguments.dir)
    for record in records:
        print(
            f"{short_name(record.task)}: {len(record.events)} events, {record.dropped} earlier ones dropped"
        )
    for line in explain(records):
        print(line)
    return 0
