"""Branches and loops in the graph: ``cond``, ``case``, ``switch_case``, ``while_loop``, under TensorFlow's
names.

A branch or body is a Python function, called once while the graph is built. What it makes becomes a function
of the graph (`flowrt.graph.func_graph`), owned by one If, Case or While operation.

branches    cond, case, switch_case
loops       while_loop
functions   what these ask of the Python functions that they are given, and of what those capture
structures  nested results: where two part, and the TensorArrays in them
"""

from flowrt.control_flow.branches import case, cond, switch_case
from flowrt.control_flow.loops import while_loop

__all__ = ["case", "cond", "switch_case", "while_loop"]
