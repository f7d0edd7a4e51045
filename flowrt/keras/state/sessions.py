"""The session of Keras, the learning phase, and values of variables.

`get_session` initializes the variables that Keras made and that have no value yet, so that a script may mix
``model.fit`` with sessions of its own.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from flowrt.executor.session.default_session import get_default_session
from flowrt.executor.session.session import Session
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import placeholder_with_default
from flowrt.graph.construction.graph import Tensor, get_default_graph, reset_default_graph
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import misuse
from flowrt.keras.state.graph_state import graph_state
from flowrt.variables.variable import Variable

_SESSIONS: list[Session] = []
"""The session, if there is one: that of `set_session`, or the one that `get_session` made."""

_CHECKED: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""The number of its graph's variables, in their order, that a session is known to have."""


def get_session(op_input_list: Sequence[Any] = ()) -> Session:
    """The default session, else that of `set_session`, else a new one for the graph of ``op_input_list``, or
    without that the default graph.
    """
    session = get_default_session()
    if session is None:
        graphs = (x.graph for x in op_input_list if isinstance(x, (Tensor, Variable)))
        graph = next(graphs, get_default_graph()).root
        if not _SESSIONS or _SESSIONS[0].graph is not graph:
            _SESSIONS[:] = [Session(graph=graph)]
        session = _SESSIONS[0]
    _initialize(session)
    return session


def set_session(session: Session) -> None:
    """Let ``session`` run models where no session is the default."""
    _SESSIONS[:] = [session]


def clear_session() -> None:
    """Forget the session, and begin a new default graph."""
    _SESSIONS.clear()
    reset_default_graph()


def _initialize(session: Session) -> None:
    variables = graph_state(session.graph).variables
    known = _CHECKED.get(session, 0)
    if known == len(variables):
        return
    fresh = variables[known:]
    has_value = session.run([v.is_initialized() for v in fresh])
    missing = [v.initializer for v, found in zip(fresh, has_value, strict=True) if not found]
    if missing:
        session.run(missing)
    _CHECKED[session] = known + len(fresh)


# --- training or not


def learning_phase() -> Any:
    """A scalar bool tensor of the default graph, false unless fed; or what `set_learning_phase` set."""
    state = graph_state()
    if state.learning_phase is None:
        root = get_default_graph().root
        with root.as_default(), root.control_dependencies(None), root.name_scope(None), root.device(None):
            state.learning_phase = placeholder_with_default(False, [], name="keras_learning_phase")
    return state.learning_phase


def set_learning_phase(value: Any) -> None:
    """Fix the phase of what is built from now on: 1 for training, 0 for the other uses."""
    if value not in (0, 1):
        raise misuse(f"set_learning_phase: expected 0 or 1; got {value!r}")
    graph_state().learning_phase = int(value)


@contextlib.contextmanager
def learning_phase_scope(value: int) -> Iterator[None]:
    """Fix the phase, see `set_learning_phase`, of what is built inside."""
    before = graph_state().learning_phase
    set_learning_phase(value)
    try:
        yield
    finally:
        graph_state().learning_phase = before


# --- values


def get_value(x: Any) -> Any:
    """The value of a variable or tensor in the session."""
    return get_session([x]).run(x) if isinstance(x, (Variable, Tensor)) else x


def batch_get_value(tensors: Sequence[Any]) -> list[Any]:
    return get_session(tensors).run(list(tensors)) if tensors else []


def set_value(x: Variable, value: Any) -> None:
    """Set the value of a variable in the session. Raises `InvalidArgumentError` for another shape."""
    batch_set_value([(x, value)])


def batch_set_value(tuples: Iterable[tuple[Variable, Any]]) -> None:
    pairs = [(x, np.asarray(value, x.dtype.as_numpy_dtype)) for x, value in tuples]
    session = get_session([x for x, _ in pairs])
    for x, value in pairs:
        x.load(value, session)


def eval(x: Any) -> Any:
    """See `get_value`."""
    return get_value(x)


class Function:
    """A step as a function: see `function`."""

    def __init__(self, inputs: Sequence[Any], outputs: Any, updates: Sequence[Any], name: str | None) -> None:
        if not isinstance(inputs, (list, tuple)):
            raise misuse(f"function: inputs: expected a list of tensors; got {inputs!r}")
        self.name = name or "function"
        self._inputs, self._is_one = list(inputs), not isinstance(outputs, (list, tuple))
        self._outputs = [outputs] if self._is_one else list(outputs)
        self._updates = [_as_operation(update) for update in updates]
        self._steps: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()

    def __call__(self, inputs: Any = ()) -> Any:
        session = get_session([*self._inputs, *self._outputs])
        step = self._steps.get(session)
        if step is None:
            tensors = [x for x in self._inputs if isinstance(x, Tensor)]
            step = session.make_callable([self._outputs, self._updates], tensors)
            self._steps[session] = step
        values = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        if len(values) != len(self._inputs):
            raise misuse(f"{self.name}: expected {len(self._inputs)} inputs; got {len(values)}")
        fed = [value for x, value in zip(self._inputs, values, strict=True) if isinstance(x, Tensor)]
        outputs = step(*fed)[0]
        return outputs[0] if self._is_one else outputs


def function(
    inputs: Sequence[Any], outputs: Any, updates: Sequence[Any] | None = None, name: str | None = None
) -> Function:
    """A function from values of ``inputs`` to those of ``outputs``, one run of the session a call.

    ``updates`` are operations, or pairs of a variable and its new value. ``inputs`` may have a learning phase
    that is a number: its value is ignored.
    """
    return Function(inputs, outputs, updates or (), name)


def _as_operation(update: Any) -> Any:
    if isinstance(update, tuple):
        variable, value = update
        return variable.assign(convert_to_tensor(value, variable.dtype), read_value=False)
    return group(update) if isinstance(update, Variable) else update
