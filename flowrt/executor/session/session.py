"""`Session`: runs parts of a graph and keeps its variables.

In ``session.run(fetches, feed_dict)``, the pair (fetches, fed tensors) selects a `Request` (parsed once), the
feeds' shapes select its `Plan` (compiled once), and the plan runs. The cached path consists of one dictionary
look-up for each, the conversion of the feeds, and the program itself.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import call
from typing import Any, NamedTuple

from flowrt.base.in_notebook import InNotebook
from flowrt.device.deadline import deadline
from flowrt.device.device import Device
from flowrt.errors import CancelledError, DTypeError, InvalidArgumentError, OpError
from flowrt.executor.ends.config import ConfigProto, RunOptions
from flowrt.executor.ends.feeds import GpuFeed, flat_feeds, resolve_feed
from flowrt.executor.ends.fetches import Fetches, parse_fetches, structure_key
from flowrt.executor.observe.gc_pause import paused_collector
from flowrt.executor.observe.step_stats import StepRecorder, describe_step
from flowrt.executor.partial.partial_run import PartialRun
from flowrt.executor.plan.plan import Plan
from flowrt.executor.plan.plan_description import settled
from flowrt.executor.plan.size_feeds import SizeFeeds, Values
from flowrt.executor.program.runner import StepControl
from flowrt.executor.session.clusters import CLUSTERS
from flowrt.executor.session.default_session import as_default, graph_to_run, leave
from flowrt.executor.session.growth import EVERY, GraphGrowth
from flowrt.executor.session.local_runtime import LocalRuntime, Runtime, closed
from flowrt.executor.session.request import Request
from flowrt.executor.session.session_variables import StoredShard
from flowrt.graph.construction.graph import Graph, Operation, Tensor, default_sessions, leave_default_graph
from flowrt.graph.passes.pipeline import CompileOptions
from flowrt.graph.shapes import Shape
from flowrt.graph.source import misuse, user_line
from flowrt.graph.typing import FetchLike

LOGGER = logging.getLogger(__name__)

MAX_REQUESTS = 256
"""Cached (fetches, fed tensors) pairs per session; the least recently used one is evicted."""

MAX_SHAPES = 32
"""Plans per request for exact feed shapes; further shapes share one plan that allocates dynamically."""

_NO_OPTIONS = RunOptions()
"""Options of a run to which none were given: making them takes 3 us."""

ON_COMPILE: list[Callable[[BaseSession, Request, Sequence[Shape]], None]] = []
"""Listeners called for each request that a session compiles, with the feeds' shapes: for tools that inspect a
running script (`flowrt.viz.script`).
"""


class DeviceAttributes(NamedTuple):
    """One row of `Session.list_devices`."""

    name: str
    device_type: str
    memory_limit_bytes: int | None


def connect(target: str, config: ConfigProto) -> Runtime:
    """The cluster at ``target``, ``grpc://host:port``. Raises `InvalidArgumentError` for another form, and
    connection errors.
    """
    protocol, separator, _ = target.partition("://")
    if not separator or protocol not in CLUSTERS:
        raise misuse(f"Session: expected the target '' or 'grpc://host:port'; got {target!r}")
    runtime: Runtime = CLUSTERS[protocol](target, config)
    return runtime


class BaseSession(InNotebook):
    """See `Session`. ``seed`` draws the order in which each run interleaves its devices' instructions."""

    def __init__(
        self,
        target: str = "",
        graph: Graph | None = None,
        config: ConfigProto | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        if isinstance(target, Graph | ConfigProto):
            given = "config" if isinstance(target, ConfigProto) else "graph"
            raise misuse(f"Session: the first argument is the target; pass {given}=", DTypeError)
        if not isinstance(config, ConfigProto | None):
            raise misuse(f"Session: expected a ConfigProto; got {config!r}", DTypeError)
        self._graph = graph_to_run(graph)
        self._config = config if config is not None else ConfigProto()
        self._runtime: Runtime = connect(target, self._config) if target else LocalRuntime(self._config, seed)
        self._requests: dict[Any, Request] = {}
        self._lock = threading.RLock()
        self._running: set[StepControl] = set()
        self._clock = 0
        self._growth = GraphGrowth(self._graph)
        self._mutations = self._graph.mutations
        self._closed = False

    # --- running

    def run(
        self,
        fetches: FetchLike,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: Any = None,
    ) -> Any:
        """Run what ``fetches`` needs and return its values in the same structure; operations give None.

        ``fetches`` is a Tensor, Operation, variable, name, or a nested list, tuple, namedtuple or dict of
        them. ``feed_dict`` gives the values of placeholders, or replaces those of any other tensors; a key
        may be a sparse tensor or a tuple of tensors (the state of a recurrent cell), with a tuple of values.
        The arrays returned are the caller's. Raises `InvalidArgumentError`, `DTypeError` and `NotFoundError`
        for bad arguments, errors of kernels, `DeadlineExceededError` after ``options.timeout_in_ms``,
        `CancelledError` when another thread closes the session. After an error the session is usable, and
        variables are as they were before the failing operation.
        """
        request = self._request(fetches, feed_dict)
        values: Any = feed_dict.values() if feed_dict else ()
        if request.is_nested:
            values = [value for item in (feed_dict or {}).items() for _, value in flat_feeds(*item)]
        try:
            return self._execute(request, values, options, run_metadata)
        except OpError as error:
            if error.op is not None and error.op in self._graph.operations:
                self._graph.operations[error.op].describe_calls(error)
            raise

    def _request(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Request:
        kind = type(fetches)
        try:
            key: Any = fetches if kind is Tensor or kind is Operation else structure_key(fetches)
            if feed_dict:
                key = (key, *feed_dict)
            request = self._requests.get(key)
        except (TypeError, ValueError):  # the latter for an array, which is neither true nor false
            if feed_dict is not None and not isinstance(feed_dict, Mapping):
                raise not_a_dict(feed_dict) from None
            fed = f" and {feed_dict!r}" if feed_dict else ""
            raise misuse(
                "run: expected fetches that are tensors, operations, names or a structure of them, and a "
                f"feed_dict with tensors or names as keys; got {fetches!r}{fed}",
                DTypeError,
            ) from None
        if request is None or self._closed or self._graph.mutations != self._mutations:
            self._refresh()
            if feed_dict is not None and not isinstance(feed_dict, Mapping):
                raise not_a_dict(feed_dict)
            keys = [k for item in (feed_dict or {}).items() for k, _ in flat_feeds(*item)]
            feeds = tuple(resolve_feed(self._graph, k) for k in keys)
            is_nested = any(isinstance(k, tuple) or hasattr(k, "fetched_as") for k in feed_dict or ())
            parsed = parse_fetches(self._graph, fetches)
            request = self._remember(key, Request(parsed, feeds, is_nested=is_nested))
        self._clock = request.used = self._clock + 1
        if self._clock % EVERY == 0:
            self._growth.look()
        return request

    def run_part(
        self,
        tensors: Sequence[Tensor],
        targets: Sequence[Operation],
        feed_dict: Mapping[Tensor, Any],
        done: frozenset[str],
    ) -> list[Any]:
        """One call of a partial run: the values of ``tensors``; nothing waits for the operations ``done``."""
        key = (tuple(tensors), tuple(targets), done, *feed_dict)
        self._refresh()
        request = self._requests.get(key)
        if request is None:
            fetches = Fetches(tuple(tensors), tuple(targets), list)
            request = self._remember(key, Request(fetches, tuple(feed_dict), done))
        return self._execute(request, feed_dict.values(), None, None)

    def _refresh(self) -> None:
        """Forget plans made stale by a new graph. Raises `FailedPreconditionError` after `close`."""
        self._check_open()
        if self._graph.mutations != self._mutations:
            if self._requests:
                LOGGER.info(
                    "%s: an operation of the graph was changed, such as its shape or device: all %d steps are"
                    " compiled again",
                    user_line(), len(self._requests),
                )  # fmt: skip
            self._forget_plans()

    def _remember(self, key: Any, request: Request) -> Request:
        with self._lock:
            if len(self._requests) >= MAX_REQUESTS:
                del self._requests[min(self._requests, key=lambda k: self._requests[k].used)]
            return self._requests.setdefault(key, request)

    def _execute(self, request: Request, values: Any, options: RunOptions | None, run_metadata: Any) -> Any:
        shapes = request.shapes
        if shapes is not None and options is None and run_metadata is None:
            plan = request.plans.get(shapes)
            if plan is not None and plan.is_direct and plan.next_tier is None and plan.size_feeds is None:
                fetched = plan.run_direct(values)
                if fetched is not None:
                    return request.fetches.rebuild(fetched)
        arrays = list(map(call, request.convert, values))
        if shapes is None:
            shapes = tuple([a.shape for a in arrays])
        plan = request.plans.get(shapes)
        if plan is None:
            plan = self._plan(request, shapes)
        if GpuFeed in map(type, arrays):
            arrays = list(self._runtime.bring(plan, arrays))
        elif (size_feeds := plan.size_feeds) is not None:
            plan = self._sized(request, plan, size_feeds, size_feeds.values(arrays))
        tier = plan.next_tier  # read once: the compiling thread removes it
        if tier is not None:
            tier.count_run(functools.partial(self._replace, request, plan))
        if options is None and run_metadata is None and plan.is_straight:
            return request.fetches.rebuild(plan.run_straight(arrays))
        return request.fetches.rebuild(self.run_controlled(plan, arrays, options, run_metadata))

    def run_controlled(
        self, plan: Plan, arrays: Sequence[Any], options: RunOptions | None, run_metadata: Any
    ) -> list[Any]:
        """A run that may be cancelled, end at a deadline, or be traced."""
        if not isinstance(options, RunOptions | None):
            raise misuse(f"options: expected RunOptions; got {options!r}", DTypeError)
        if run_metadata is not None and not hasattr(run_metadata, "step_stats"):
            raise misuse(f"run_metadata: expected a RunMetadata; got {run_metadata!r}", DTypeError)
        options = options or _NO_OPTIONS
        timeout_ms = options.timeout_in_ms or self._config.operation_timeout_in_ms
        control = StepControl(timeout_ms / 1000 if timeout_ms else None)
        recorder = StepRecorder() if options.trace_level != RunOptions.NO_TRACE else None
        self._running.add(control)
        try:
            self._check_open()
            with deadline(control.remaining_s()):
                values = plan.run(arrays, control, recorder)
        except OpError as error:
            if control.cancelled is not None and control.cancelled is not error:
                raise control.cancelled from error  # a resource that was closed makes its reader fail
            raise
        finally:
            self._running.discard(control)
        if run_metadata is not None:
            has_graphs = options.output_partition_graphs or recorder is not None
            describe_step(run_metadata, recorder, plan.subgraphs if has_graphs else ())
        return values

    def _plan(self, request: Request, shapes: tuple[tuple[int, ...], ...]) -> Plan:
        with self._lock:
            if len(request.plans) >= MAX_SHAPES:
                shapes = ()
            plan = request.plans.get(shapes)
            if plan is None:
                self._say_why(request, shapes)
                plan = request.plans[shapes] = self._compile(request, shapes)
        return plan

    def _sized(self, request: Request, plan: Plan, size_feeds: SizeFeeds[Plan], values: Values) -> Plan:
        """The plan for ``values`` of the feeds that decide shapes, if there is one, or runs have repeated
        them; else ``plan``, which is for all values.
        """
        key = size_feeds, values
        found = request.sized.get(key)
        if found is None and size_feeds.are_steady(values):
            with self._lock, paused_collector():
                found = request.sized.get(key) or size_feeds.compile(values)  # another thread may have it
                if found is not None:
                    request.sized[key] = found
                    plan.let_go()
                    LOGGER.info("%s: compiled the step again, for fed sizes %s", user_line(), values)
        return plan if found is None else found

    def _say_why(self, request: Request, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Log that a step is compiled: at level INFO if it was before, for other shapes."""
        asked: list[Tensor | Operation] = [*request.fetches.tensors, *request.fetches.targets]
        names = ", ".join([each.name for each in asked[:4]])
        if not request.plans:
            LOGGER.debug("%s: compiling the step of %s", user_line(), names)
        elif not shapes:
            LOGGER.info(
                "%s: compiling the step of %s for all shapes of its feeds: it had more than %d",
                user_line(), names, MAX_SHAPES,
            )  # fmt: skip
        else:
            fed = ", ".join(f"{t.name} {list(shape)}" for t, shape in zip(request.feeds, shapes, strict=True))
            LOGGER.info("%s: compiling the step of %s again, for feeds %s", user_line(), names, fed)

    @paused_collector()
    def _compile(self, request: Request, shapes: tuple[tuple[int, ...], ...]) -> Any:
        """A `Plan`, or a cluster's equivalent."""
        known: Sequence[Shape] = shapes or [t.spec.shape for t in request.feeds]
        for hear in ON_COMPILE:
            hear(self, request, known)
        return self._runtime.compile(self._graph, request, known)

    def _replace(self, request: Request, plan: Plan, better: Plan | None) -> None:
        """Put ``better``, if there is one, in the place of ``plan``, which may be forgotten by now."""
        plan.next_tier = None
        if better is None:
            return
        better.size_feeds = plan.size_feeds
        with self._lock:
            for plans in (request.plans, request.sized):
                for key, current in plans.items():
                    if current is plan and not self._closed:
                        plans[key] = better
                        plan.let_go()
                        LOGGER.info(
                            "compiled loops take the place of kernels in a step of %d operations",
                            len(better.placed),
                        )

    def make_callable(
        self, fetches: FetchLike, feed_list: Sequence[Any] | None = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        """A function from values for ``feed_list`` to those of ``fetches``: `run` without its look-ups.

        With ``accept_options`` it takes ``options`` and ``run_metadata`` as keywords. Raises as `run`; the
        function raises `InvalidArgumentError` for a wrong number of values.
        """
        try:
            feeds = tuple(feed_list or ())
            placeholders = dict.fromkeys(feeds)
        except TypeError:
            raise DTypeError(f"feed_list: expected a list of tensors or names; got {feed_list!r}") from None
        if len(placeholders) < len(feeds):
            raise InvalidArgumentError("make_callable: expected each tensor once in feed_list")
        request = self._request(fetches, placeholders)

        def run(*values: Any, options: RunOptions | None = None, run_metadata: Any = None) -> Any:
            nonlocal request
            if len(values) != len(feeds):
                raise InvalidArgumentError(f"callable: expected {len(feeds)} values; got {len(values)}")
            if not accept_options and (options is not None or run_metadata is not None):
                raise InvalidArgumentError("callable: options need make_callable(..., accept_options=True)")
            if self._closed or self._graph.mutations != self._mutations:
                request = self._request(fetches, placeholders)
            return self._execute(request, values, options, run_metadata)

        return run

    # --- variables, without operations

    def variable_values(self, variables: Sequence[Any]) -> list[Any]:
        """Copies of the variables' values. Raises `FailedPreconditionError`, naming the first without one."""
        self._check_open()
        return self._runtime.variable_values(variables, self.run)

    def assign_variables(self, values: Mapping[Any, Any]) -> None:
        """Set variables. Raises `InvalidArgumentError` for a value of another shape; no variable has changed
        then.
        """
        self._check_open()
        self._runtime.assign_variables(values, self.run)

    def variable_shards(self, variables: Sequence[Any]) -> list[list[StoredShard]]:
        """The parts in which each variable, of static shape, is kept: one per device of its mesh, or one if
        it has no layout; and those of its copy, if it has one. No parts of a variable that `variable_values`
        alone can reach, as in a cluster.
        """
        self._check_open()
        return self._runtime.variable_shards(variables, self.run)

    # --- for inspection

    def compile_options(self) -> CompileOptions:
        """The compile options of steps. Raises `FailedPreconditionError` after `close`."""
        self._check_open()
        return self._runtime.compile_options()

    def plan_of(self, fetches: Any, feeds: Mapping[Any, Shape]) -> Plan | None:
        """The plan that runs of ``fetches`` with ``feeds`` of these shapes come to after a while; None for a
        cluster, where each task has a plan. Nothing runs. Raises as `run`.
        """
        request = self._request(fetches, feeds)
        if not isinstance(self._runtime, LocalRuntime):
            return None
        shapes = tuple(feeds.values())
        plan = request.plans.get(shapes)
        return self._runtime.compile_settled(self._graph, request, shapes) if plan is None else settled(plan)

    # --- partial runs

    def partial_run_setup(self, fetches: Any, feeds: Sequence[Any] | None = None) -> PartialRun:
        """Begin a step run in parts by `partial_run`: ``fetches`` and ``feeds`` are all those of its calls.

        Raises `InvalidArgumentError` as `run`, and for a placeholder that a fetch needs and that is not among
        the feeds.
        """
        self._check_open()
        parsed = parse_fetches(self._graph, fetches)
        given = list(dict.fromkeys([resolve_feed(self._graph, f) for f in feeds or ()]))
        calls = self._runtime.begin_partial_run(self, parsed, given)
        return PartialRun(self._graph, calls)

    def partial_run(
        self, handle: PartialRun, fetches: Any, feed_dict: Mapping[Any, Any] | None = None
    ) -> Any:
        """Continue a step: each feed may be given once, and each operation runs at most once per step.

        Raises `DTypeError` for an invalid handle, `InvalidArgumentError` for fetches or feeds that were not
        declared or are repeated, and for a fetch that needs a missing feed; the step is then unchanged. Any
        other error of a call ends it: later calls raise `FailedPreconditionError`.
        """
        self._check_open()
        if not isinstance(handle, PartialRun):
            raise DTypeError(f"partial_run: expected a handle of partial_run_setup; got {handle!r}")
        return handle.run(fetches, feed_dict or {})

    # --- life

    def as_default(self) -> Any:
        """A context in which ``tensor.eval()`` and ``operation.run()`` use this session; it stays open."""
        return as_default(self)

    @property
    def graph(self) -> Graph:
        return self._graph

    @property
    def graph_def(self) -> Any:
        """The graph as a GraphDef message."""
        return self._graph.as_graph_def()

    @property
    def sess_str(self) -> str:
        return self._runtime.target

    @staticmethod
    def reset(
        target: str, containers: Sequence[str] | None = None, config: ConfigProto | None = None
    ) -> None:
        """Drop the variables that the sessions of the cluster at ``target`` share, in ``containers`` or in
        all. Raises as `Session`.
        """
        cluster: Any = connect(target, config or ConfigProto())
        try:
            cluster.reset(list(containers or ()))
        finally:
            cluster.close()

    def list_devices(self) -> list[DeviceAttributes]:
        return [DeviceAttributes(*described) for described in self._runtime.list_devices()]

    @property
    def devices(self) -> Sequence[Device]:
        """This session's devices: their memory pools, transfers and executors."""
        return tuple(self._runtime.devices)

    def __repr__(self) -> str:
        state = "" if self.is_open else ", closed"
        return f"<flowrt.{type(self).__name__} of {self._graph!r}{state}>"

    @property
    def is_open(self) -> bool:
        """Whether it was not closed yet."""
        return not self._closed

    @property
    def num_plans(self) -> int:
        """The number of steps that it has compiled and kept, for each request and shapes of feeds."""
        with self._lock:
            return sum(len(request.plans) + len(request.sized) for request in self._requests.values())

    def close(self) -> None:
        """End the session: running steps are cancelled, variables released. Further runs raise."""
        with self._lock:
            self._closed = True
            for control in list(self._running):
                control.cancel(CancelledError("the session was closed while this step ran"))
            self._forget_plans()
        self._runtime.close()

    def _forget_plans(self) -> None:
        with self._lock:
            for request in self._requests.values():
                for plan in (*request.plans.values(), *request.sized.values()):
                    plan.close()
            self._requests.clear()
            self._runtime.forget()
            self._mutations = self._graph.mutations

    def _check_open(self) -> None:
        if self._closed:
            raise closed()


def not_a_dict(feed_dict: object) -> DTypeError:
    """The error for ``feed_dict``, which is no dict."""
    return DTypeError(f"feed_dict: expected a dict; got {feed_dict!r}", source=user_line())


class Session(BaseSession):
    """Runs operations of ``graph`` (the default graph if None) on this process's devices.

    ``with Session() as session:`` makes it the default session and its graph the default graph, and closes it
    at the end.

    Args:
        target: "" for this process's devices, or the address of a cluster's task, "grpc://host:port".
        graph: The graph to run; None for the default graph.
        config: Numbers of devices and threads, time-outs: see `ConfigProto`.
        seed: The seed of operations that have none of their own, in a graph without one.

    Example:
        >>> with tf.Graph(), tf.Session() as own:
        ...     value = own.run(tf.constant(2.0) * 3.0)
        >>> value
        np.float32(6.0)
    """

    def __enter__(self) -> Session:
        self._graph.__enter__()
        default_sessions().append(self)
        return self

    def __exit__(self, *ending: Any) -> None:
        leave(self)
        try:
            self._graph.__exit__(*ending)
        finally:
            self.close()


class InteractiveSession(BaseSession):
    """A session that is the default one from its creation until `close`; so is ``graph``, if it is given."""

    def __init__(
        self, target: str = "", graph: Graph | None = None, config: ConfigProto | None = None
    ) -> None:
        super().__init__(target, graph, config)
        self._brings_graph = graph is not None
        if self._brings_graph:
            self._graph.__enter__()
        default_sessions().append(self)

    def close(self) -> None:
        if self in default_sessions():
            leave(self)
            if self._brings_graph:
                leave_default_graph(self._graph)
        super().close()
