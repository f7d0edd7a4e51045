"""Python's control flow over tensors as graph: ``@flowrt.functions.function(autograph=True)``.

    conversion          the door to the library that finds control flow in a function's source
    branches, loops     what stands in the source's place: Python's over Python values, `cond` and
                        `while_loop` over tensors
    variables           of converted code, with or without a value
    lists               what blocks append to
    outer_names         what functions that blocks call rebind
    python_functions    ``len``, ``range``, ``print`` and so on
    experimental        what a program says to the conversion: `set_loop_options`
    source_lines        converted code with the user's line numbers

A converted block is a function without arguments that changes the variables around it. ``get_state`` and
``set_state`` read and write those that it changes and that matter outside, ``names`` are their names.
"""

from flowrt.autograph import experimental as experimental
from flowrt.base.missing_names import missing_from

__getattr__ = missing_from("autograph")
