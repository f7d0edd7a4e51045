"""`copy_variables`: values of variables, to variables in other layouts or over another mesh."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from flowrt.errors import DTypeError, nearest
from flowrt.graph.construction.graph import Operation, get_default_graph
from flowrt.graph.ops.base.identities import redistribute_op
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import misuse
from flowrt.variables.variable import Variable

Variables: TypeAlias = Mapping[str, Variable] | Sequence[Variable]


def copy_variables(source: Variables, target: Variables, name: str = "copy_variables") -> Operation:
    """An operation that sets the variables ``target`` to the values of ``source``, whatever their layouts.

    Both are mappings, which have the same keys, or lists, which are paired in order. The variables of a pair
    have one shape and dtype; they may be over meshes of other devices and shapes, or have no layout. Each
    device of the target is sent the parts that it keeps and has not: nothing is gathered. Run it in a step
    without other operations in layouts.

    >>> with LayoutStrategy(Mesh([("tp", 2)], ["/cpu:0", "/cpu:1"])).scope():
    ...     actor = tf.get_variable("actor", [8, 4], layout=["tp", None])
    >>> with LayoutStrategy(Mesh([("tp", 2)], ["/cpu:2", "/cpu:3"])).scope():
    ...     generating = tf.get_variable("generating", [8, 4], layout=[None, "tp"])
    >>> session.run(copy_variables([actor], [generating]))

    Raises `InvalidArgumentError`, with all that does not match, for other keys, shapes, dtypes or lengths,
    and for a variable that is twice in ``target``; `DTypeError` for what is no variable.
    """
    pairs = _pairs(source, target)
    _check(pairs)
    with get_default_graph().name_scope(name):
        values = [redistribute_op(variable.read_value()) for _, variable, _ in pairs]
        assigned = [
            copy.assign(value, read_value=False) for value, (_, _, copy) in zip(values, pairs, strict=True)
        ]
    return group(*assigned, name=name)


def _pairs(source: Any, target: Any) -> list[tuple[str, Variable, Variable]]:
    """(label, source, target) of each copy."""
    if isinstance(source, Mapping) and isinstance(target, Mapping):
        missing = [*_missing(source, target, "target"), *_missing(target, source, "source")]
        if missing:
            raise misuse(f"copy_variables: expected the same keys; {'; '.join(missing)}")
        return [(repr(key), source[key], target[key]) for key in source]
    if isinstance(source, Mapping) or isinstance(target, Mapping):
        raise misuse("copy_variables: expected two mappings or two lists; got one of each")
    for where, given in (("source", source), ("target", target)):
        if not isinstance(given, Iterable) or isinstance(given, str | Variable):
            what = f"copy_variables: {where}: expected a mapping or a list of variables"
            raise misuse(f"{what}; got {given!r}", DTypeError)
    if len(source) != len(target):
        raise misuse(
            f"copy_variables: expected as many variables in target as in source, {len(source)}; got "
            f"{len(target)}"
        )
    return [(str(i), *pair) for i, pair in enumerate(zip(source, target, strict=True))]


def _missing(keys: Iterable[str], there: Collection[str], where: str) -> list[str]:
    hints = {key: nearest(key, there) for key in keys if key not in there}
    return [f"{where} lacks {key!r}{'.' * bool(hint)}{hint}" for key, hint in hints.items()]


def _check(pairs: Sequence[tuple[str, Variable, Variable]]) -> None:
    wrong = []
    for label, source, target in pairs:
        for variable in (source, target):
            if not isinstance(variable, Variable):
                raise misuse(f"copy_variables: {label}: expected a variable; got {variable!r}", DTypeError)
        if source.dtype is not target.dtype or source.shape.as_list() != target.shape.as_list():
            have, wanted = _described(source), _described(target)
            wrong.append(f"{label}: {have} for {wanted}")
    if wrong:
        raise misuse(f"copy_variables: expected pairs of one dtype and shape; got {'; '.join(wrong)}")
    names = [target.op.name for _, _, target in pairs]
    twice = sorted({each for each in names if names.count(each) > 1})
    if twice:
        raise misuse(f"copy_variables: expected each variable once in target; got {', '.join(twice)} twice")


def _described(variable: Variable) -> str:
    return f"{variable.op.name} {variable.dtype.name}{variable.shape.as_list()}"
