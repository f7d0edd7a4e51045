"""Waiting for checkpoints that another process writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from flowrt.train.checkpoints.checkpoint_state import latest_checkpoint

_LOOK_S = 0.5
"""The time between looks at a directory."""


def wait_for_new_checkpoint(
    checkpoint_dir: Any,
    last_checkpoint: str | None = None,
    seconds_to_sleep: float = 1,
    timeout: float | None = None,
) -> str | None:
    """The newest checkpoint of a directory as soon as it is another one than ``last_checkpoint``; None after
    ``timeout`` seconds (None: never). The directory is looked at every ``seconds_to_sleep`` seconds.
    """
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        path = latest_checkpoint(checkpoint_dir)
        if path is not None and path != last_checkpoint:
            return path
        if end is not None and time.monotonic() + seconds_to_sleep > end:
            return None
        time.sleep(seconds_to_sleep)


def checkpoints_iterator(
    checkpoint_dir: Any,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """Yield the newest checkpoint of a directory whenever there is another one, at most one each
    ``min_interval_secs`` seconds. It ends after ``timeout`` seconds without a new one (None: never), unless
    ``timeout_fn()`` says False.
    """
    last = None
    while True:
        new = wait_for_new_checkpoint(checkpoint_dir, last, _LOOK_S, timeout)
        if new is None:
            if timeout_fn is None or timeout_fn():
                return
            continue
        start, last = time.monotonic(), new
        yield new
        time.sleep(max(0.0, start + min_interval_secs - time.monotonic()))
