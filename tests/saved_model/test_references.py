"""Reference variables against an interpreter: each node runs when what it waits for has, in the file's order,
and reads or writes the variables in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.protos import graph_pb2

SIZE = 2
VARIABLES = ("v", "w")
_DTYPE = 'attr { key: "dtype" value { type: DT_FLOAT } }'
_T = 'attr { key: "T" value { type: DT_FLOAT } }'
_SHAPE = f'attr {{ key: "shape" value {{ shape {{ dim {{ size: {SIZE} }} }} }} }}'
_INDICES = 'attr { key: "Tindices" value { type: DT_INT32 } }'

OF_ONE = {
    "ScatterAdd": (["one"], _INDICES),
    "ScatterNdAdd": (["row"], _INDICES),
    "StridedSliceAssign": (["one", "two", "one"], _INDICES.replace("Tindices", "Index")),
}
"""Updates of the last element: their inputs that say where it is, and attributes."""

Step = tuple[str, str, float, tuple[int, ...], int | None]
"""An op, a variable, a number, the steps that it waits for, and the one whose reference it takes."""


@st.composite
def programs(draw: Any) -> tuple[list[Step], list[int]]:
    """Steps, and the order in which the file has them."""
    steps: list[Step] = []
    for i in range(draw(st.integers(2, 9))):
        op = draw(st.sampled_from(["Assign", "AssignAdd", "AssignSub", *OF_ONE, "Read", "Read"]))
        variable = draw(st.sampled_from(VARIABLES))
        before = tuple(draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True))) if i else ()
        same = [j for j, step in enumerate(steps) if step[1] == variable and step[0] != "Read"]
        through = draw(st.sampled_from([None, *same]))
        steps.append((op, variable, float(draw(st.integers(-9, 9))), before, through))
    return steps, draw(st.permutations(range(len(steps))))


def constant(name: str, size: int, number: float) -> str:
    value = f"dtype: DT_FLOAT tensor_shape {{ dim {{ size: {size} }} }} float_val: {number}"
    value = f'attr {{ key: "value" value {{ tensor {{ {value} }} }} }}'
    return f'node {{ name: "{name}" op: "Const" {_DTYPE} {value} }}'


def graph_def(steps: list[Step], order: list[int]) -> Any:
    lines = []
    for name in VARIABLES:
        lines.append(f'node {{ name: "{name}" op: "VariableV2" {_DTYPE} {_SHAPE} }}')
        lines.append(constant(f"{name}/value", SIZE, 1))
        lines.append(f'node {{ name: "{name}/init" op: "Assign" input: ["{name}", "{name}/value"] {_T} }}')
    for name, rank, value in (("one", 1, 1), ("two", 1, 2), ("row", 2, 1)):
        place = f"dtype: DT_INT32 tensor_shape {{ {'dim { size: 1 } ' * rank} }} int_val: {value}"
        lines.append(
            f'node {{ name: "{name}" op: "Const" attr {{ key: "dtype" value {{ type: DT_INT32 }} }} '
            f'attr {{ key: "value" value {{ tensor {{ {place} }} }} }} }}'
        )
    for i in order:
        op, variable, number, before, through = steps[i]
        lines.append(constant(f"c{i}", 1 if op in OF_ONE else SIZE, number))
        source = variable if through is None else f"s{through}"
        where, extra = OF_ONE.get(op, ([], ""))
        inputs = [source, *where, f"c{i}", *(f"^s{j}" for j in before)]
        kind = "AddV2" if op == "Read" else op
        lines.append(f'node {{ name: "s{i}" op: "{kind}" input: {inputs} {_T} {extra} }}'.replace("'", '"'))
    return text_format.Parse("\n".join(lines), graph_pb2.GraphDef())


def interpreted(steps: list[Step], order: list[int]) -> dict[int, list[float]]:
    """The value of each read, and of each variable right after what writes it."""
    memory = {name: np.ones(SIZE, np.float32) for name in VARIABLES}
    found: dict[int, list[float]] = {}
    while len(found) < len(steps):
        i = next(i for i in order if i not in found and {*steps[i][3], *_through(steps[i])} <= found.keys())
        op, variable, number, _, _ = steps[i]
        here = memory[variable]
        if op == "Assign":
            here[:] = number
        elif op in OF_ONE:
            here[1] = number + (op != "StridedSliceAssign") * here[1]
        elif op != "Read":
            here += number if op == "AssignAdd" else -number
        found[i] = (here + number if op == "Read" else here).tolist()
    return found


def _through(step: Step) -> tuple[int, ...]:
    return () if step[4] is None else (step[4],)


@settings(max_examples=100, deadline=None)
@given(programs())
def test_any_program_of_references_is_run_in_order(program: tuple[list[Step], list[int]]) -> None:
    steps, order = program
    with tf.Graph(), tf.Session() as session:
        tf.import_graph_def(graph_def(steps, order), name="")
        session.run(["v/init", "w/init"])
        found = session.run({i: f"s{i}:0" for i in range(len(steps))})
    expected = interpreted(steps, order)
    assert {i: value.tolist() for i, value in found.items()} == expected


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_is_fetched_by_its_name(name: str) -> None:
    steps: list[Step] = [("Assign", name, 3.0, (), None)]
    with tf.Graph(), tf.Session() as session:
        tf.import_graph_def(graph_def(steps, [0]), name="")
        session.run("s0")
        assert session.run(f"{name}:0").tolist() == [3, 3]
