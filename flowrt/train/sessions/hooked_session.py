"""`HookedSession`: one session of a training loop, with the hooks around its runs, until it fails or ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from flowrt.errors import AbortedError, FailedPreconditionError, InvalidArgumentError, UnavailableError
from flowrt.executor.ends.config import RunOptions
from flowrt.executor.session.session import Session
from flowrt.protos.step_stats_pb2 import RunMetadata
from flowrt.train.coordination.coordinator import Coordinator
from flowrt.train.coordination.queue_runner import start_queue_runners
from flowrt.train.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)


@final
class StepContext:
    """The argument of a step function of `MonitoredSession.run_step_fn`: the bare ``session``, and
    `run_with_hooks`.
    """

    def __init__(self, session: Session, run_with_hooks_fn: Callable[..., Any]) -> None:
        self.session, self.run_with_hooks = session, run_with_hooks_fn

    def request_stop(self) -> None:
        """Leave the step function and the loop: raises StopIteration, which ends the ``with`` block."""
        raise StopIteration("the step function has requested to stop")


@final
class HookedSession:
    """A ``session`` with ``hooks``, and a coordinator for the threads that they start, which get ``grace_s``
    seconds to end. Raises an error of a hook's `after_create_session`; the session is then closed.
    """

    def __init__(self, session: Session, hooks: Sequence[SessionRunHook], grace_s: float) -> None:
        self.session, self._hooks, self._grace_s = session, hooks, grace_s
        self._coordinator = Coordinator(clean_stop_exception_types=())
        self._stop_requested = False
        try:
            start_queue_runners(session, self._coordinator)
            for hook in hooks:
                hook.after_create_session(session, self._coordinator)
        except BaseException:
            self.close()
            raise

    def should_stop(self) -> bool:
        """Raises the error that a thread has reported to the coordinator."""
        self._coordinator.raise_requested_exception()
        return self._stop_requested or self._coordinator.should_stop()

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: Any = None,
    ) -> Any:
        """`Session.run` with the hooks around it."""
        if self.should_stop():
            raise FailedPreconditionError("run: the session was asked to stop. Check should_stop() first")
        context = SessionRunContext(SessionRunArgs(fetches, feed_dict, options), self.session)
        asked = [(hook, hook.before_run(context)) for hook in self._hooks]
        wanted = [(hook, args) for hook, args in asked if args is not None]
        options = _merged_options([options, *(args.options for _, args in wanted)])
        if options is not None and run_metadata is None:
            run_metadata = RunMetadata()
        requests = {hook: args.fetches for hook, args in wanted if args.fetches is not None}
        feeds = _merged_feeds(feed_dict, [args.feed_dict for _, args in wanted])
        result, *found = self._run([fetches, *requests.values()], feeds, options, run_metadata)
        results = dict(zip(requests, found, strict=True))
        for hook in self._hooks:
            hook.after_run(context, SessionRunValues(results.get(hook), options, run_metadata))
        self._stop_requested = self._stop_requested or context.stop_requested
        return result

    def _run(self, fetches: list[Any], feeds: Any, options: RunOptions | None, run_metadata: Any) -> Any:
        try:
            return self.session.run(fetches, feeds, options, run_metadata)
        except (AbortedError, UnavailableError):
            raise
        except Exception:
            self._coordinator.raise_requested_exception()  # a thread's error is the cause
            raise

    def close(self) -> None:
        """Stop the threads of hooks and close the session. Raises the error of a thread."""
        self._coordinator.request_stop()
        try:
            self._coordinator.join(stop_grace_period_secs=self._grace_s, ignore_live_threads=True)
        finally:
            self.session.close()


def _merged_options(given: Sequence[RunOptions | None]) -> RunOptions | None:
    """The highest trace level, the longest deadline, and every requested field; None without options."""
    asked = [options for options in given if options is not None]
    if len(asked) < 2:
        return asked[0] if asked else None
    fields = ("trace_level", "timeout_in_ms", "output_partition_graphs", "report_tensor_allocations_upon_oom")
    return RunOptions(**{name: max(getattr(options, name) for options in asked) for name in fields})


def _merged_feeds(
    feed_dict: Mapping[Any, Any] | None, others: Sequence[Mapping[Any, Any] | None]
) -> Mapping[Any, Any] | None:
    """Raises `InvalidArgumentError` for a tensor that two of them feed."""
    feeds = feed_dict
    for more in others:
        if not more:
            continue
        twice = [key for key in more if feeds and key in feeds]
        if twice:
            raise InvalidArgumentError(
                f"run: expected each tensor to be fed once, by the loop or one hook; got {twice[0]!r} twice"
            )
        feeds = {**(feeds or {}), **more}
    return feeds
