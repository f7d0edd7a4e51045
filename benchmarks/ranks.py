"""A benchmark whose side needs several processes: each is a program in an interpreter of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack

from benchmarks.cluster import reserve_addresses
from benchmarks.timing import Outcome


def outcome_of_first(program: str, side: str, name: str, count: int) -> Outcome:
    """What the first of ``count`` ranks of ``program SIDE NAME RANK ADDRESSES...`` prints: an outcome, as
    JSON, in the last line.
    """
    with ExitStack() as stack:
        addresses = reserve_addresses(count, stack)
        ranks = []
        for rank in range(count):
            command = [sys.executable, program, side, name, str(rank), *addresses]
            ranks.append(stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
            stack.callback(ranks[rank].kill)
        printed, _ = ranks[0].communicate()
        if ranks[0].returncode != 0:
            raise RuntimeError(f"{side}, {name}: the first rank ended with status {ranks[0].returncode}")
    return Outcome(*json.loads(printed.splitlines()[-1]))
