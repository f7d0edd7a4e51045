"""Shared by ``flowrt top`` and ``flowrt profile``: the target, the connection, and the exit statuses."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from flowrt.base.exit_codes import NOT_FORMED, exit_code
from flowrt.distribute.cluster.cluster_spec import parse_address
from flowrt.distribute.launch.cluster_watch import ClusterWatch
from flowrt.errors import InvalidArgumentError, OpError, UnavailableError
from flowrt.rendezvous.channel.security import load_security
from flowrt.rendezvous.transport import new_transport

SCHEME = "grpc://"
UNSEEN = ". A worker whose sessions have no target is seen if it was started with FLOWRT_METRICS=PORT"
"""The likely reason why an address refuses: such a worker listens only where metrics are asked for."""


def add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="grpc://HOST:PORT", help="any task of the cluster; it knows the others"
    )


def watch_cluster(command: str, target: str, look: Callable[[ClusterWatch], int]) -> int:
    """The status of ``look``, which gets a watcher of the cluster at ``target``. An error is one line on
    stderr, with the status of `flowrt.base.exit_codes`: 2 for a mistake, 3 if the task cannot
    be reached, 6 if it refuses us.
    """
    try:
        address = _address(target)
        security = load_security(os.environ, Path.home())
        try:
            watch = ClusterWatch(new_transport(security), security, address)
        except UnavailableError as error:
            return _complain(command, error, NOT_FORMED, UNSEEN)
        with watch:
            return look(watch)
    except OpError as error:
        return _complain(command, error, exit_code(error))


def _address(target: str) -> str:
    if not target.startswith(SCHEME):
        raise InvalidArgumentError(f"expected a target like {SCHEME}host:port; got {target!r}")
    return str(parse_address(target.removeprefix(SCHEME)))


def _complain(command: str, error: OpError, status: int, hint: str = "") -> int:
    print(f"flowrt {command}: {' '.join(str(error).split())}{hint}", file=sys.stderr)
    return status
