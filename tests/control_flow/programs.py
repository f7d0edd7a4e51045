"""Random programs with branches and loops: drawn, run by Python, and built as a graph.

A program is a block: a list of statements over the scalars ``s`` and ``t``, the vectors ``u`` and ``w``, and
one variable. Statements are tuples:

    ("set", target, function, a, b)     target = function(a, b)
    ("swap", a, b)                      of one shape
    ("read", target)                    target = the variable
    ("write", a)                        the variable = tanh(the variable + a)
    ("if", a, limit, block, block)      sum(a) < limit
    ("while", count, a, limit, block)   at most count times, as long as sum(a) < limit

All values stay between -1 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import flowrt as tf

SCALARS, VECTORS = ("s", "t"), ("u", "w")
NAMES = SCALARS + VECTORS
SIZE = 3

Block = Sequence[tuple[Any, ...]]
State = dict[str, Any]

FUNCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "tanh": lambda m, a, b: m.tanh(a + b),
    "sin": lambda m, a, b: m.sin(a - b * 0.5),
    "times": lambda m, a, b: a * b,
    "square": lambda m, a, b: a * a * 0.5 + b * 0.25,
}


# --- drawing


def blocks(depth: int, writes: bool) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Blocks with control flow up to ``depth`` deep; ``writes``: of the variable, too."""
    name = st.sampled_from(NAMES)
    limit = st.floats(-1.5, 1.5).map(lambda x: round(x, 3))
    kinds: list[st.SearchStrategy[tuple[Any, ...]]] = [
        st.tuples(st.just("set"), name, st.sampled_from(sorted(FUNCTIONS)), name, name),
        st.sampled_from([("swap", *SCALARS), ("swap", *VECTORS)]),
        st.tuples(st.just("read"), st.sampled_from(VECTORS)),
    ]
    if writes:
        kinds.append(st.tuples(st.just("write"), name))
    if depth:
        inner = st.deferred(lambda: blocks(depth - 1, writes))
        kinds.append(st.tuples(st.just("if"), name, limit, inner, inner))
        kinds.append(st.tuples(st.just("while"), st.integers(0, 4), name, limit, inner))
    return st.lists(st.one_of(kinds), min_size=1 if depth else 0, max_size=4)


def has_control_flow(block: Block) -> bool:
    return any(kind in ("if", "while") for kind, *_ in block)


# --- running by Python


class Margin:
    """How near the program came to deciding otherwise."""

    def __init__(self) -> None:
        self.least = np.inf

    def is_below(self, value: Any, limit: float) -> bool:
        self.least = min(self.least, abs(np.sum(value) - limit))
        return bool(np.sum(value) < limit)


def interpret(block: Block, state: State, variable: Any, margin: Margin | None = None) -> tuple[State, Any]:
    """The values of the names and of the variable afterwards."""
    margin = margin or Margin()
    state = dict(state)
    for kind, *rest in block:
        if kind == "set":
            target, function, a, b = rest
            value = FUNCTIONS[function](np, state[a], state[b])
            state[target] = np.mean(value) if target in SCALARS else value + np.zeros(SIZE)
        elif kind == "swap":
            a, b = rest
            state[a], state[b] = state[b], state[a]
        elif kind == "read":
            state[rest[0]] = variable
        elif kind == "write":
            variable = np.tanh(variable + state[rest[0]])
        elif kind == "if":
            a, limit, first, second = rest
            taken = first if margin.is_below(state[a], limit) else second
            state, variable = interpret(taken, state, variable, margin)
        else:
            count, a, limit, body = rest
            for _ in range(count):
                if not margin.is_below(state[a], limit):
                    break
                state, variable = interpret(body, state, variable, margin)
    return state, variable


# --- building


def build(block: Block, state: State, variable: Any) -> State:
    """The tensors of the names afterwards: they wait for what the block has written."""
    state, done = dict(state), []
    for kind, *rest in block:
        if kind == "set":
            target, function, a, b = rest
            value = FUNCTIONS[function](tf, state[a], state[b])
            state[target] = (
                tf.reduce_mean(value) if target in SCALARS else value + tf.zeros([SIZE], tf.float64)
            )
        elif kind == "swap":
            a, b = rest
            state[a], state[b] = state[b], state[a]
        elif kind == "read":
            state[rest[0]] = variable.read_value()
        elif kind == "write":
            done.append(variable.assign(tf.tanh(variable.read_value() + state[rest[0]])).op)
        elif kind == "if":
            a, limit, first, second = rest
            names = sorted({*changed(first), *changed(second)})
            found = tf.cond(
                tf.reduce_sum(state[a]) < limit,
                lambda first=first, names=names, s=dict(state): _chosen(build(first, s, variable), names),
                lambda second=second, names=names, s=dict(state): _chosen(build(second, s, variable), names),
            )
            done.append(found["done"])
            state.update(_chosen(found, names, is_done=False))
        else:
            count, a, limit, body = rest
            found = _build_loop(count, a, limit, body, state, variable)
            done.append(found["done"])
            state.update(_chosen(found, changed(body), is_done=False))
    with tf.control_dependencies(done):
        return {name: tf.identity(tensor) for name, tensor in state.items()}


def _build_loop(count: int, a: str, limit: float, body: Block, state: State, variable: Any) -> State:
    """Only what the body changes is a loop variable; the rest it captures."""
    names = changed(body)

    def holds(i: Any, own: State) -> Any:
        return tf.logical_and(i < count, tf.reduce_sum({**state, **own}[a]) < limit)

    def step(i: Any, own: State) -> Any:
        after = _chosen(build(body, {**state, **_chosen(own, names, is_done=False)}, variable), names)
        return i + 1, after

    start = _chosen(state, names)
    found: State = tf.while_loop(holds, step, (tf.constant(0), start))[1]
    return found


def changed(block: Block) -> list[str]:
    """The names that a block may give another value."""
    found: set[str] = set()
    for kind, *rest in block:
        if kind in ("set", "read"):
            found.add(rest[0])
        elif kind == "swap":
            found.update(rest)
        elif kind == "if":
            found.update(changed(rest[2]), changed(rest[3]))
        elif kind == "while":
            found.update(changed(rest[3]))
    return sorted(found)


def _chosen(state: State, names: Sequence[str], is_done: bool = True) -> State:
    """The tensors of ``names``, and one that is there when the block is done."""
    found = {name: state[name] for name in names}
    if is_done:
        with tf.control_dependencies([state[name] for name in NAMES]):
            found["done"] = tf.constant(True)
    return found


def start(seed: int) -> tuple[dict[str, Any], Any]:
    """First values of the names and of the variable."""
    rng = np.random.default_rng(seed)
    values: Mapping[str, Any] = {n: rng.uniform(-1, 1, () if n in SCALARS else SIZE) for n in NAMES}
    return dict(values), rng.uniform(-1, 1, SIZE)
