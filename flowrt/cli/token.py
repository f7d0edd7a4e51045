"""``flowrt token new``: the secret that all tasks and sessions of a cluster share."""

from __future__ import annotations

import argparse
from pathlib import Path

from flowrt.distribute.cluster.tokens import write_token
from flowrt.rendezvous.channel.security import TOKEN_FILE

EXAMPLES = """
  flowrt token new    then copy ~/.flowrt/token to the other hosts
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="new", required=True)
    new = actions.add_parser("new", help="write 256 random bits to a file that only you can read")
    new.add_argument(
        "--path", type=Path, help="output file (default: ~/.flowrt/token, where tasks look for it)"
    )


def run(arguments: argparse.Namespace) -> int:
    path = arguments.path or Path.home() / TOKEN_FILE
    write_token(path)
    print(f"{path}: copy it to the other hosts, or set FLOWRT_TOKEN_PATH there")
    return 0
