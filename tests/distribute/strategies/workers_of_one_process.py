"""Workers as `MultiWorkerMirroredStrategy` makes them, in one process: each a thread, a graph, a session."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from flowrt.distribute.collectives import Group, JoinedGroup, join
from flowrt.distribute.strategies.core.strategy import Strategy
from flowrt.distribute.strategies.kinds.multi_worker import MultiWorkerExtended
from flowrt.distribute.strategies.values.communication_options import CommunicationOptions

SOON_S = 60.0
_keys = itertools.count()


class Worker(Strategy):
    """The worker that has the only rank of ``group``, with a replica on each of ``devices``."""

    def __init__(
        self,
        group: Group,
        devices: Sequence[str] = ("/device:CPU:0",),
        bucket_bytes: int = 0,
        compression: str | None = None,
    ) -> None:
        options = CommunicationOptions(bytes_per_pack=bucket_bytes, compression=compression)
        super().__init__(MultiWorkerExtended(self, group, tuple(devices), options))


@contextmanager
def joined_workers(count: int) -> Iterator[list[JoinedGroup]]:
    """A group of ``count`` ranks, joined once for each."""
    key = f"workers of one process {next(_keys)}"
    with ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        groups = [Group(key, count, (rank,)) for rank in range(count)]
        yield [stack.enter_context(each) for each in pool.map(partial(join, kind="local"), groups)]


def at_once(work: Callable[[JoinedGroup], Any], joined: Sequence[JoinedGroup]) -> list[Any]:
    """``work`` of each, on a thread each."""
    with ThreadPoolExecutor(len(joined)) as pool:
        return list(pool.map(work, joined, timeout=2 * SOON_S))
