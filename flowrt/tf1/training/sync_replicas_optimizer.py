"""`SyncReplicasOptimizer`: synchronous training with between-graph replication.

    worker   step: apply_grad of each gradient to its variable's accumulator, then dequeue a token
    chief    another thread: take_grad of all accumulators, one update, one token (the next step) per worker

A gradient that was computed at an older step than the accumulators' is dropped: with
``replicas_to_aggregate`` below ``total_num_replicas`` the slowest workers are spares (Chen et al.,
"Revisiting Distributed Synchronous SGD", 2016). Accumulators are colocated with their variables, the token
queue with the step counter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, final

from flowrt.dataflow.accumulators import ConditionalAccumulator, SparseConditionalAccumulator
from flowrt.dataflow.queues import FIFOQueue
from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.ops.base.filling import fill
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.text.python_calls import group, no_op
from flowrt.train.coordination.coordinator import Coordinator
from flowrt.train.coordination.queue_runner import QueueRunner
from flowrt.train.hooks.session_run_hook import SessionRunHook
from flowrt.train.optimizers.optimizer import Optimizer, on_device_of
from flowrt.variables.variable import GraphKeys, Variable, global_variables, report_uninitialized_variables


class SyncReplicasOptimizer(Optimizer):
    """Updates by ``opt`` with the mean gradient of ``replicas_to_aggregate`` workers.

    If that is more than ``total_num_replicas``, each worker contributes several gradients to an update. After
    each update ``variable_averages`` averages ``variables_to_average``. Every worker runs with the hook of
    `make_session_run_hook`.
    """

    def __init__(
        self,
        opt: Optimizer,
        replicas_to_aggregate: int,
        total_num_replicas: int | None = None,
        variable_averages: Any = None,
        variables_to_average: Sequence[Variable] | None = None,
        use_locking: bool = False,
        name: str = "sync_replicas",
    ) -> None:
        super().__init__(use_locking, name)
        total = replicas_to_aggregate if total_num_replicas is None else total_num_replicas
        if min(replicas_to_aggregate, total) < 1:
            raise InvalidArgumentError(
                f"SyncReplicasOptimizer: expected at least 1 replica; got {replicas_to_aggregate} of {total}"
            )
        self._opt, self._replicas_to_aggregate, self._total_num_replicas = opt, replicas_to_aggregate, total
        self._tokens_per_step = max(total, replicas_to_aggregate)
        self._variable_averages, self._variables_to_average = variable_averages, variables_to_average
        self._applied: _Applied | None = None

    # --- of the optimizer inside

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Variable]]:
        """The gradients of ``opt``."""
        return self._opt.compute_gradients(*args, **kwargs)

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        return self._opt.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        return self._opt.get_slot_names()

    def variables(self) -> list[Variable]:
        return self._opt.variables()

    # --- gradients

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Operation:
        """A worker's step: its gradients to the accumulators, then wait for the update. Ignores ``name``.

        Raises `InvalidArgumentError` without gradients or ``global_step`` (to detect stale gradients).
        """
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        if not pairs:
            raise InvalidArgumentError("apply_gradients: expected at least one gradient; got none")
        if global_step is None:
            raise InvalidArgumentError(
                "SyncReplicasOptimizer: expected a global_step, which identifies stale gradients; got None"
            )
        local_step = _local_step_like(global_step)
        accumulators = _Accumulators(pairs, local_step, self._replicas_to_aggregate)
        graph = get_default_graph()
        with on_device_of(global_step), graph.name_scope(None):
            update = self._opt.apply_gradients(accumulators.taken, global_step=global_step)
            tokens = FIFOQueue(
                -1, global_step.dtype, shapes=[[]], shared_name="sync_token_q", name="sync_token_q"
            )
            chief_step = self._chief_step(update, tokens, global_step)
            with graph.control_dependencies(accumulators.given):
                token = tokens.dequeue()
        step: Operation = local_step.assign(token, read_value=False)
        self._applied = _Applied(local_step, global_step, accumulators, tokens, chief_step)
        return step

    def _chief_step(self, update: Operation, tokens: FIFOQueue, global_step: Variable) -> Operation:
        """One update, and the number of the next step for every worker."""
        graph = get_default_graph()
        with graph.control_dependencies([update]):
            numbers = fill([self._tokens_per_step], global_step.read_value())
            done = tokens.enqueue_many(numbers)
        if self._variable_averages is not None:
            with graph.control_dependencies([done]):
                done = self._variable_averages.apply(self._variables_to_average)
        return done

    # --- the chief's updates

    def get_chief_queue_runner(self) -> QueueRunner:
        """The queue runner that performs the updates on a thread of the chief. Raises
        `FailedPreconditionError` before `apply_gradients`.
        """
        applied = self._after_apply()
        with on_device_of(applied.global_step):
            own = FIFOQueue(1, "int32", shapes=[[]], shared_name="dummy_queue", name="dummy_queue")
        return QueueRunner(own, [applied.chief_step])

    def chief_step(self) -> Operation:
        """One update, once there are gradients for it. Raises `FailedPreconditionError` before
        `apply_gradients`.
        """
        return self._after_apply().chief_step

    def get_init_tokens_op(self, num_tokens: int = -1) -> Operation:
        """An operation that enqueues ``num_tokens`` initial tokens, by default one per gradient of an update.

        Raises `InvalidArgumentError` for fewer than the workers need to reach the first update, and
        `FailedPreconditionError` before `apply_gradients`.
        """
        applied = self._after_apply()
        needed = self._replicas_to_aggregate - self._total_num_replicas
        count = self._replicas_to_aggregate if num_tokens == -1 else num_tokens
        if count < needed:
            raise InvalidArgumentError(
                f"get_init_tokens_op: expected at least {needed} tokens, since {self._total_num_replicas}"
                f" workers make updates of {self._replicas_to_aggregate} gradients; got {num_tokens}"
            )
        if count == 0:
            return no_op(name="no_init_tokens")
        with on_device_of(applied.global_step), get_default_graph().name_scope(None):
            return applied.tokens.enqueue_many(fill([count], applied.global_step.read_value()))

    def make_session_run_hook(self, is_chief: bool, num_tokens: int = -1) -> SessionRunHook:
        """The hook for each worker's `MonitoredTrainingSession`; the chief's performs the updates."""
        return _SyncReplicasHook(self, is_chief, num_tokens)

    def local_step_init_op(self) -> Operation:
        """Sets the worker's local step to the global step."""
        applied = self._after_apply()
        return applied.local_step.assign(applied.global_step.read_value(), read_value=False)

    def chief_init_op(self) -> Operation:
        """`local_step_init_op`, and the same for the accumulators."""
        applied = self._after_apply()
        return group(self.local_step_init_op(), *applied.accumulators.set_step(applied.global_step))

    def _after_apply(self) -> _Applied:
        if self._applied is None:
            raise FailedPreconditionError(
                "SyncReplicasOptimizer: expected apply_gradients() or minimize() to be called first; it"
                " was not"
            )
        return self._applied


def _local_step_like(global_step: Variable) -> Variable:
    """A worker's local step, placed with its other operations: a device setter would place the variable on a
    server, shared by all workers.
    """
    graph = get_default_graph()
    here = no_op(name="local_step_device").device
    with graph.device(None), graph.device(here or None):
        return Variable(
            global_step.initial_value,
            trainable=False,
            collections=[GraphKeys.LOCAL_VARIABLES],
            dtype=global_step.dtype,
            name="sync_rep_local_step",
        )


@final
class _Accumulators:
    """One accumulator per gradient, colocated with its variable: ``given`` are the operations that add this
    worker's gradients, ``taken`` the pairs for an update.
    """

    def __init__(self, pairs: Sequence[tuple[Any, Variable]], local_step: Variable, required: int) -> None:
        self.given: list[Operation] = []
        self.taken: list[tuple[Any, Variable]] = []
        self._all: list[ConditionalAccumulator | SparseConditionalAccumulator] = []
        for gradient, variable in pairs:
            self._add(gradient, variable, local_step.read_value(), required)

    def _add(self, gradient: Any, variable: Variable, step: Tensor, required: int) -> None:
        how: dict[str, Any] = {
            "shape": variable.shape,
            "shared_name": f"{variable.op.name}/grad_accum",
            "name": "grad_accum",
        }
        accumulator: Any
        with on_device_of(variable):
            if isinstance(gradient, IndexedSlices):
                accumulator = SparseConditionalAccumulator(variable.dtype, **how)
                apply, take = accumulator.apply_indexed_slices_grad, accumulator.take_indexed_slices_grad
            else:
                accumulator = ConditionalAccumulator(variable.dtype, **how)
                apply, take = accumulator.apply_grad, accumulator.take_grad
            self.given.append(apply(gradient, step))
            self.taken.append((take(required), variable))
        self._all.append(accumulator)

    def set_step(self, global_step: Variable) -> list[Operation]:
        return [accumulator.set_global_step(global_step.read_value()) for accumulator in self._all]


class _Applied(NamedTuple):
    """The results of `SyncReplicasOptimizer.apply_gradients`."""

    local_step: Variable
    global_step: Variable
    accumulators: _Accumulators
    tokens: FIFOQueue
    chief_step: Operation


@final
class _SyncReplicasHook(SessionRunHook):
    def __init__(self, optimizer: SyncReplicasOptimizer, is_chief: bool, num_tokens: int) -> None:
        self._optimizer, self._is_chief, self._num_tokens = optimizer, is_chief, num_tokens

    def begin(self) -> None:
        make: Callable[[], Operation] = self._optimizer.local_step_init_op
        self._tokens: Operation | None = None
        if self._is_chief:
            make = self._optimizer.chief_init_op
            self._tokens = self._optimizer.get_init_tokens_op(self._num_tokens)
        self._init = make()
        self._missing = report_uninitialized_variables(global_variables())

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Raises `FailedPreconditionError` when the variables have no values yet."""
        missing = [name.decode() for name in session.run(self._missing)]
        if missing:
            raise FailedPreconditionError(
                f"SyncReplicasOptimizer: expected initialized global variables;"
                f" uninitialized: {', '.join(missing)}"
            )
        session.run(self._init)
        if self._tokens is not None:
            session.run(self._tokens)
            work = partial(self._update, session, coord)
            threading.Thread(target=work, name="flowrt-sync-replicas", daemon=True).start()

    def _update(self, session: Any, coord: Coordinator) -> None:
        """Make updates until the session is closed. The coordinator does not wait for it: a step that waits
        for gradients ends with the session.
        """
        step = self._optimizer.chief_step()
        try:
            while not coord.should_stop():
                session.run(step)
        except Exception as error:  # noqa: BLE001 (for the coordinator)
            if not coord.should_stop():
                coord.request_stop(error)
