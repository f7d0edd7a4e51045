"""Conversion of Python's control flow over tensors to graphs: ``@flowrt.functions.function(autograph=True)``.

    conversion          adapter of the library that finds control flow in a function's source
    branches, loops     replacements of statements: Python's over Python values, `cond` and
                        `while_loop` over tensors
    variables           variables of converted code, with or without a value
    outer_names         lists that blocks append to; names rebound by functions that blocks call
    python_functions    ``len``, ``range``, ``print`` and so on
    experimental        options of the conversion: `set_loop_options`, `do_not_convert`
    to_graph            a function with its control flow converted

A converted block is a function without arguments that changes the variables around it. ``get_state`` and
``set_state`` read and write those that it changes and that are used outside, ``names`` are their names.
"""

from flowrt.autograph import experimental as experimental
from flowrt.autograph.conversion import to_graph as to_graph
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("autograph")
