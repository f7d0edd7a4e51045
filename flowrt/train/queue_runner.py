"""What starts the threads of input queues.

flowrt has `flowrt.data` instead of queues: scripts that start them find none.
"""

from __future__ import annotations

import threading
from typing import Any

from flowrt.errors import FailedPreconditionError
from flowrt.executor.default_session import get_default_session
from flowrt.train.coordinator import Coordinator
from flowrt.variables import GraphKeys


def start_queue_runners(
    sess: Any = None,
    coord: Coordinator | None = None,
    daemon: bool = True,
    start: bool = True,
    collection: str = GraphKeys.QUEUE_RUNNERS,
) -> list[threading.Thread]:
    """The threads of all runners in ``collection`` of the session's graph: none, unless the script added its
    own.

    A runner has ``create_threads(sess, coord, daemon, start)``. Raises `FailedPreconditionError` without a
    session.
    """
    session = get_default_session() if sess is None else sess
    if session is None:
        raise FailedPreconditionError("start_queue_runners: expected a session; got none. Pass sess=")
    runners = session.graph.get_collection(collection)
    return [thread for runner in runners for thread in runner.create_threads(session, coord, daemon, start)]
