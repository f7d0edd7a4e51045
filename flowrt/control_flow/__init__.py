"""Branches and loops in the graph: ``cond``, ``case``, ``switch_case``, ``while_loop``.

signatures   calls of a Python function that share a trace
structures   nested results of branches and bodies
functions    checks of Python functions passed to branches and loops
trace        a Python function run once with symbolic tensors
branches     ``cond``, ``case``, ``switch_case``
loops        ``while_loop``
"""

from flowrt.control_flow.branches import case, cond, switch_case
from flowrt.control_flow.loops import while_loop

__all__ = ["case", "cond", "switch_case", "while_loop"]
