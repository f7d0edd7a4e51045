"""`SessionRunHook`: callbacks around the runs of a monitored session.

begin                   once, before the graph is finalized: operations may be added
after_create_session    for every session created; after a failure there is a new one
before_run, after_run   around every run
end                     once, when the loop ends without an error
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, final

from flowrt.errors import DTypeError
from flowrt.executor.ends.config import RunOptions
from flowrt.train.coordination.coordinator import Coordinator

__all__ = ["SessionRunArgs", "SessionRunContext", "SessionRunHook", "SessionRunValues"]


class SessionRunArgs(NamedTuple):
    """Requests of a hook for a run: ``fetches`` and ``feed_dict`` as for `Session.run`, and the fields of
    ``options`` that differ from their defaults.
    """

    fetches: Any
    feed_dict: Mapping[Any, Any] | None = None
    options: RunOptions | None = None


class SessionRunValues(NamedTuple):
    """Results of a run: ``results`` in the structure of the hook's fetches, None if it requested none.
    ``options`` and ``run_metadata`` are those of the run, None if not requested.
    """

    results: Any
    options: RunOptions | None
    run_metadata: Any


@final
class SessionRunContext:
    """One run: ``original_args`` (the loop's request) and ``session``, for a hook's own operations."""

    def __init__(self, original_args: SessionRunArgs, session: Any) -> None:
        self.original_args, self.session = original_args, session
        self._stop_requested = False

    @property
    def stop_requested(self) -> bool:
        return self._stop_requested

    def request_stop(self) -> None:
        """Make `should_stop` of the monitored session true after this run."""
        self._stop_requested = True


class SessionRunHook:
    """Base of all hooks: does nothing."""

    def begin(self) -> None:
        """Called before the session is made. The default graph may be changed for the last time."""

    def after_create_session(self, session: Any, coord: Coordinator) -> None:
        """Called with each new `Session`, after its variables are initialized; the graph is finalized.

        Threads that the hook starts stop when ``coord`` requests it.
        """

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Fetches and feeds for the coming run, added to the loop's; None for nothing."""
        return None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Called with the results of the run. Not called for a run that failed."""

    def end(self, session: Any) -> None:
        """Called with the last session when the loop has ended without an error. Variables can be saved."""


def check_hooks(hooks: Any) -> list[SessionRunHook]:
    """``hooks`` as a list. Raises `DTypeError` for anything but `SessionRunHook` objects."""
    found = list(hooks or ())
    for hook in found:
        if not isinstance(hook, SessionRunHook):
            raise DTypeError(f"hooks: expected SessionRunHook objects; got {hook!r}")
    return found
