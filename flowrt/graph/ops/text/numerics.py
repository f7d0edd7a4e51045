"""`enable_check_numerics`: every operation that is built is followed by a check for NaN and infinity.

    Log 'Log' <- x        becomes        CheckNumerics 'Log/CheckNumerics' <- Log 'Log' <- x

What reads the operation reads the check; a check waits for those of the operation's inputs, as derivatives
read outputs themselves. So the first check that fails is that of the operation where the first bad value
arose: its inputs were checked before, unless they were fed or are variables.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowrt.graph.construction.build import WATCHING
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.text.assertions import check_numerics

__all__ = ["disable_check_numerics", "enable_check_numerics"]


def enable_check_numerics(stack_height_limit: int = 30, path_length_limit: int = 50) -> None:
    """Check each floating tensor of the operations built from now on, in functions, loops and gradients too:
    a step that computes NaN or infinity raises `InvalidArgumentError`, which names the operation where it
    arose first, its line and its inputs.

    Constants, fed values, variables and what iterators and queues give are not checked themselves, nor is an
    operation that is fetched by its own name: the tensor that its call returned is ``y/CheckNumerics:0``, not
    ``y:0``. Steps get slower: operations are computed one by one. What a random operation without a seed of
    its own draws depends on the number of operations before it, and so is another number. The two limits are
    TensorFlow's and change nothing: all calls are shown. Idempotent.

    Example:
        >>> tf.debugging.enable_check_numerics()
        >>> y = tf.log(tf.placeholder(tf.float32, [1], name="x"), name="y")
        >>> tf.debugging.disable_check_numerics()
        >>> y.op.type, y.op.get_attr("message")
        ('CheckNumerics', "output 0 of Log 'y', with inputs x:0 float32[1]")
    """
    del stack_height_limit, path_length_limit
    if _checked not in WATCHING:
        WATCHING.append(_checked)


def disable_check_numerics() -> None:
    """Operations built from now on are no longer checked; those built before stay so. Idempotent."""
    if _checked in WATCHING:
        WATCHING.remove(_checked)


def _checked(operation: Operation) -> Sequence[Tensor]:
    """The outputs of ``operation``, with a check after each in which a bad value can arise."""
    op = operation.op_def
    if op.effect not in (Effect.PURE, Effect.STATEFUL) or op.alias:
        return operation.outputs
    graph, inputs = operation.graph, operation.inputs
    described = ", ".join(f"{tensor.name} {tensor.spec}" for tensor in inputs) or "none"
    before = [graph.operations.get(_name_of_check(tensor.op)) for tensor in inputs]
    checked: list[Tensor] = []
    with graph.control_dependencies([check for check in before if check is not None]):
        for index, tensor in enumerate(operation.outputs):
            if tensor.dtype.is_floating:
                message = f"output {index} of {operation.type} {operation.name!r}, with inputs {described}"
                tensor = check_numerics(tensor, message=message, name=f"{_name_of_check(operation)}/")
            checked.append(tensor)
    return checked


def _name_of_check(operation: Operation) -> str:
    return f"{operation.name}/CheckNumerics"
