"""Sessions and hooks that look into runs: all tensors that a run needs are fetched with it."""

from __future__ import annotations

import functools
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flowrt.errors import AlreadyExistsError
from flowrt.executor.session.default_session import as_default, leave
from flowrt.graph.construction.defaults import default_sessions
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.source import misuse
from flowrt.logging import warning
from flowrt.tf1.debugger.dumps import Dump, Predicate, has_inf_or_nan, write_dump
from flowrt.tf1.debugger.prompt import Choice, Prompt
from flowrt.tf1.debugger.watching import WatchOptions, watched_tensors
from flowrt.train.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)


class _Debugger(ABC):
    """Base of what is done before and after each run."""

    @abstractmethod
    def before(self, graph: Any, fetches: Any, feeds: Mapping[Any, Any] | None) -> list[Tensor]:
        """The tensors that the coming run is to fetch besides; none for a run that is not looked into."""

    @abstractmethod
    def after(self, watched: list[Tensor], values: list[Any]) -> None:
        """Look at their values."""


class _Dumping(_Debugger):
    """Writes the tensors of each run to a folder of its own."""

    def __init__(self, root: Any, watch_fn: Callable[..., Any] | None) -> None:
        self._root, self._watch_fn, self._runs = Path(os.fspath(root)), watch_fn, 0
        if self._root.exists() and (not self._root.is_dir() or any(self._root.iterdir())):
            raise misuse(f"session_root: expected a new or empty folder; got {root}", AlreadyExistsError)

    def before(self, graph: Any, fetches: Any, feeds: Mapping[Any, Any] | None) -> list[Tensor]:
        options = self._watch_fn(fetches, feeds) if self._watch_fn else WatchOptions()
        return watched_tensors(graph, fetches, feeds, options)

    def after(self, watched: list[Tensor], values: list[Any]) -> None:
        self._runs += 1
        names = (tensor.name for tensor in watched)
        write_dump(self._root / f"run_{self._runs}", zip(names, values, strict=True))


class _CommandLine(_Debugger):
    """Asks the user around runs; runs through if standard input is no terminal."""

    def __init__(self) -> None:
        self.filters: dict[str, Predicate] = {"has_inf_or_nan": has_inf_or_nan}
        self._prompt = Prompt(self.filters)
        self._asks = sys.stdin.isatty()
        self._choice: Choice | None = None
        if not self._asks:
            warning("The debugger needs a terminal: standard input is none, and the program runs through.")

    def before(self, graph: Any, fetches: Any, feeds: Mapping[Any, Any] | None) -> list[Tensor]:
        if not self._asks:
            return []
        self._choice = self._choice or self._prompt.ask(graph, None)
        if self._choice.times > 0:
            rest = self._choice.times - 1
            self._choice = self._choice._replace(times=rest) if rest or self._choice.filter_name else None
            return []
        return watched_tensors(graph, fetches, feeds, WatchOptions())

    def after(self, watched: list[Tensor], values: list[Any]) -> None:
        if not watched:
            return
        found = zip(watched, values, strict=True)
        dump = Dump({tensor.name: functools.partial(np.asarray, value) for tensor, value in found})
        name = self._choice.filter_name if self._choice else None
        if name is not None:
            passing = dump.find(self.filters[name])
            if not passing:
                return  # on with the next run
            self._prompt.say(f"{len(passing)} tensors pass {name}, the first is {passing[0].tensor_name}")
        self._choice = self._prompt.ask(watched[0].graph, dump)


class _DebuggedSession:
    """A session, or a monitored one, the runs of which go through a debugger; all else is its own."""

    def __init__(self, sess: Any, debugger: _Debugger) -> None:
        self._session, self._debugger = sess, debugger

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """The values of ``fetches``, as `Session.run`."""
        watched = self._debugger.before(self._session.graph, fetches, feed_dict)
        found, values = self._session.run([fetches, watched], feed_dict, options, run_metadata)
        self._debugger.after(watched, values)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def as_default(self) -> Any:
        """A context in which this is the default session."""
        return as_default(self)

    def __enter__(self) -> Any:
        self._session.__enter__()
        default_sessions().append(self)
        return self

    def __exit__(self, *ending: Any) -> Any:
        leave(self)
        return self._session.__exit__(*ending)


class LocalCLIDebugWrapperSession(_DebuggedSession):
    """A session that asks before and after each run, at the prompt "tfdbg> " of the terminal; see
    `flowrt.tf1.debugger.prompt`. Without a terminal it warns once and runs through.

    ``ui_type`` is accepted: lines are read, nothing is drawn. There is one filter, "has_inf_or_nan", and
    those of `add_tensor_filter`: ``run -f has_inf_or_nan`` runs until a tensor has NaN or infinity.
    """

    def __init__(
        self,
        sess: Any,
        dump_root: Any = None,
        log_usage: bool = True,
        ui_type: str = "curses",
        thread_name_filter: str | None = None,
        config_file_path: str | None = None,
    ) -> None:
        self._commands = _CommandLine()
        super().__init__(sess, self._commands)

    def add_tensor_filter(self, filter_name: str, tensor_filter: Predicate) -> None:
        """A filter of `DebugTensorDatum` and value, for the commands."""
        self._commands.filters[filter_name] = tensor_filter


class DumpingDebugWrapperSession(_DebuggedSession):
    """A session that writes the tensors of each run to a folder ``run_1`` and so on in ``session_root``, for
    `DebugDumpDir`. ``watch_fn(fetches, feeds)`` returns `WatchOptions`.

    Raises `AlreadyExistsError` for a folder with files.
    """

    def __init__(
        self,
        sess: Any,
        session_root: Any,
        watch_fn: Callable[..., Any] | None = None,
        thread_name_filter: str | None = None,
        pass_through_operrors: bool | None = None,
        log_usage: bool = True,
    ) -> None:
        super().__init__(sess, _Dumping(session_root, watch_fn))


class _DebugHook(SessionRunHook):
    """A debugger around the runs of a monitored session."""

    def __init__(self, debugger: _Debugger) -> None:
        self._debugger = debugger

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        asked = run_context.original_args
        self._watched = self._debugger.before(run_context.session.graph, asked.fetches, asked.feed_dict)
        return SessionRunArgs(self._watched)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        self._debugger.after(self._watched, run_values.results)


class LocalCLIDebugHook(_DebugHook):
    """`LocalCLIDebugWrapperSession` as a hook."""

    def __init__(
        self,
        ui_type: str = "curses",
        dump_root: Any = None,
        thread_name_filter: str | None = None,
        config_file_path: str | None = None,
    ) -> None:
        self._commands = _CommandLine()
        super().__init__(self._commands)

    def add_tensor_filter(self, filter_name: str, tensor_filter: Predicate) -> None:
        """A filter of `DebugTensorDatum` and value, for the commands."""
        self._commands.filters[filter_name] = tensor_filter


class DumpingDebugHook(_DebugHook):
    """`DumpingDebugWrapperSession` as a hook."""

    def __init__(
        self,
        session_root: Any,
        watch_fn: Callable[..., Any] | None = None,
        thread_name_filter: str | None = None,
        log_usage: bool = True,
    ) -> None:
        super().__init__(_Dumping(session_root, watch_fn))
