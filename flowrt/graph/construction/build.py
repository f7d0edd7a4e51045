"""Operation construction: convert the inputs, bind the type variables, add to the default graph.

For ``add(x, 2.0)``, `build_op` reserves the name, finds T from the inputs that already are tensors, converts
the others to constants of that dtype (named ``add/y`` after the input), checks T against the definition,
infers the outputs and appends the operation with `Graph.append`. A call equal to an earlier one (same op,
input dtypes and shapes) is not checked again: its `Signature` is cached. A failed check leaves nothing in the
graph except unused constants.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import DTypeError, ForeignElementError, InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.array_values import NUMBERS, as_array
from flowrt.graph.construction.composites import composite_among
from flowrt.graph.construction.conversions import converted, is_registered
from flowrt.graph.construction.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.inference import Signature, infer_outputs, one_output
from flowrt.graph.op_def import Argument, Attr, OpDef, PartialValue, op_def, set_builder
from flowrt.graph.partial_value import partial_value
from flowrt.graph.shapes import as_shape
from flowrt.graph.source import Source, misuse, user_line, user_source

WATCHING: list[Callable[[Operation], Sequence[Tensor]]] = []
"""While it is not empty, the last function sees each operation that is built, and gives what the call returns
in place of its outputs.
"""


def build_op(op: OpDef, args: tuple[Any, ...], name: str | None, kwargs: dict[str, Any]) -> Any:
    """Add one operation of type ``op``. Returns its output, the list of its outputs, or the Operation if it
    has none.

    Raises `DTypeError` for unsupported dtypes, `InvalidArgumentError` for shapes, attributes and foreign
    graphs.
    """
    graph = get_default_graph()
    values = args if len(args) == len(op.inputs) else _input_values(op, args, kwargs)
    composite = composite_among(values)
    if composite is not None:
        return _of_composite(composite, op, values, name, kwargs)
    for value in values:  # as in TensorFlow, an operation goes where its inputs are
        if type(value) is Tensor:
            if value.op.graph is not graph and not graph.is_inside(value.op.graph):
                graph = value.op.graph
                if graph.finalized and graph.root is not graph:
                    raise graph.foreign(value)
                with graph:
                    return _build_in(graph, op, values, name, kwargs)
            break
    return _build_in(graph, op, values, name, kwargs)


def _of_composite(
    composite: Any, op: OpDef, values: Sequence[Any], name: str | None, kwargs: dict[str, Any]
) -> Any:
    """The result of ``op`` for a composite tensor: see `flowrt.graph.construction.composites`."""
    own = composite.own_functions.get(op.name)
    if own is not None:
        return own(*values, name=name, **kwargs)
    if op.elementwise:
        return composite.own_elementwise(op, values, {**kwargs, "name": name})
    raise misuse(f"{op.name}: expected tensors; got {composite!r}", UnimplementedError)


def _build_in(
    graph: Graph, op: OpDef, values: Sequence[Any], name: str | None, kwargs: dict[str, Any]
) -> Any:
    """`build_op` in ``graph``, which is the default one."""
    source = user_source(3)  # past `build_op` and `OpDef.__call__`
    full_name = graph.operation_name(name or op.name)
    key = _signature_key(graph, op, values, kwargs)
    inputs, signature = values, None if key is None else graph.signatures.get(key)
    if signature is None:
        try:
            given = dict(kwargs)
            types = _given_types(op, kwargs) if kwargs else {}
            inputs = _inputs(op, values, types, full_name, kwargs, source)
            for i, tensor in enumerate(inputs):
                if tensor.op.graph is not graph:
                    inputs[i] = _adopted(graph, tensor)
            is_fixed = not any(argument.is_list for argument in op.inputs)
            key = _signature_key(graph, op, inputs, given) if is_fixed else None
            signature = _signature(graph, op, inputs, types, full_name, kwargs, source, key)
        except InvalidArgumentError as error:
            if error.op is not None:
                raise
            raise type(error)(error.message, op=full_name, op_type=op.name, source=user_line()) from None
    operation = graph.append(op, full_name, inputs, signature[0], signature[1], source)
    outputs = operation.outputs if not WATCHING else WATCHING[-1](operation)
    if len(outputs) == 1 and not op.outputs[0].is_list:
        return outputs[0]
    return list(outputs) if op.outputs else operation


_KEYS = frozenset({bool, int, str, DType})
"""Types of attributes that are equal only if they are the same."""


def _signature_key(
    graph: Graph, op: OpDef, values: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    """The key of calls with this one's signature; None if not all ``values`` are tensors of ``graph``, or for
    attributes that are no key. A call with lists of tensors has none: how many each has is not in it.
    """
    key: list[Any] = [op]
    for value in values:
        if type(value) is not Tensor or value.op.graph is not graph:
            return None
        key.append(value.op.node.outputs[value.index])
    for name, attr in kwargs.items():
        kind = type(attr)
        if kind not in _KEYS:
            return None
        key += (name, kind, attr)
    return tuple(key)


def _signature(
    graph: Graph,
    op: OpDef,
    inputs: Sequence[Tensor],
    types: dict[str, DType],
    full_name: str,
    kwargs: dict[str, Any],
    source: Source | None,
    key: tuple[Any, ...] | None,
) -> Signature:
    """The signature of a call of ``op``, cached under ``key`` if the shape rule requested no values."""
    if key is not None and (known := graph.signatures.get(key)) is not None:
        return known
    asked = set[int]()

    def value(i: int) -> PartialValue:
        asked.add(i)
        return partial_value(graph.node, inputs[i].ref)

    attrs, specs = _attrs(op, types, kwargs), [t.spec for t in inputs]
    outputs = infer_outputs(op, full_name, attrs, specs, output_dtypes(op, attrs), value, source)
    signature = Signature(attrs, outputs)
    if key is not None and not asked:
        graph.signatures[key] = signature
    return signature


def _adopted(graph: Graph, tensor: Tensor) -> Tensor:
    """An input from another graph as a tensor of ``graph``. Raises `InvalidArgumentError` if not readable."""
    adopted = graph.adopt(tensor)
    if adopted is not None:
        return adopted
    if tensor.op.graph.root is graph.root:
        raise tensor.op.graph.foreign(tensor)
    raise ForeignElementError(
        f"input {tensor.name!r} belongs to a different graph than the preceding inputs or the default graph"
    )


set_builder(build_op)


def _input_values(op: OpDef, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """The inputs' values in the order of the signature; ``kwargs`` keeps the attrs."""
    if len(args) == len(op.inputs):
        return args
    if len(args) > len(op.inputs):
        raise misuse(f"{op.name}: expected {len(op.inputs)} inputs; got {len(args)}")
    values = list(args)
    for argument in op.inputs[len(args) :]:
        if argument.name not in kwargs:
            message = (
                f"{op.name}: expected inputs {', '.join(a.name for a in op.inputs)}; got no {argument.name}"
            )
            raise misuse(message)
        values.append(kwargs.pop(argument.name))
    return values


def _given_types(op: OpDef, kwargs: dict[str, Any]) -> dict[str, DType]:
    """The type variables that the caller gives by name."""
    variables = {a.type_attr for a in op.inputs if a.type_attr and not a.is_type_list}
    return {v: as_dtype(kwargs.pop(v)) for v in variables if v in kwargs}


def _inputs(
    op: OpDef,
    values: Sequence[Any],
    types: dict[str, DType],
    full_name: str,
    kwargs: dict[str, Any],
    source: Source | None,
) -> list[Tensor]:
    """The inputs as tensors. Those that already are tensors bind the type variables first and determine the
    dtypes of the others.
    """
    for argument, value in zip(op.inputs, values, strict=True):
        if type(value) in NUMBERS or argument.is_type_list:
            continue
        for item in value if argument.is_list and isinstance(value, (list, tuple)) else (value,):
            if type(item) is Tensor or hasattr(item, "__flowrt_tensor__"):
                _bind(argument, item.dtype, types)
    converted: list[Tensor] = []
    for argument, value in zip(op.inputs, values, strict=True):
        if argument.is_list:
            tensors = _convert_list(argument, value, types, full_name)
            if argument.number_attr:
                kwargs[argument.number_attr] = len(tensors)
            elif argument.type_attr:
                kwargs[argument.type_attr] = tuple(t.dtype for t in tensors)
            converted += tensors
        else:
            converted.append(
                value
                if type(value) is Tensor
                else _convert_input(op, argument, value, types, full_name, source)
            )
    return converted


def _bind(argument: Argument, dtype: DType, types: dict[str, DType]) -> None:
    """Check ``dtype`` against the signature and earlier bindings. Raises `DTypeError`."""
    variable = argument.type_attr
    if variable is None:
        if dtype is not argument.dtype:
            expected = "?" if argument.dtype is None else argument.dtype.name
            raise DTypeError(
                f"input {argument.name!r}: expected dtype {expected}; got {dtype.name}"
                f"{_cast_advice(argument.dtype, dtype)}"
            )
    elif types.setdefault(variable, dtype) is not dtype:
        raise DTypeError(
            f"input {argument.name!r}: expected dtype {types[variable].name}, like the inputs before it; "
            f"got {dtype.name}{_cast_advice(types[variable], dtype)}"
        )


def _cast_advice(wanted: DType | None, given: DType) -> str:
    """The advice to cast, unless one of the two, such as a string, cannot be cast."""
    castable = all(dtype is not None and (dtype.is_numeric or dtype.is_bool) for dtype in (wanted, given))
    return ". Use flowrt.cast()" if castable else ""


def _convert_input(
    op: OpDef, argument: Argument, value: Any, types: dict[str, DType], full_name: str, source: Source | None
) -> Tensor:
    variable = argument.type_attr
    wanted = argument.dtype if variable is None else types.get(variable)
    preferred = None
    if wanted is None and variable is not None:
        allowed = op.types[variable]
        if len(allowed) == 1:
            preferred = next(iter(allowed))
        elif allowed == dtypes.INDEX and isinstance(value, (list, tuple)) and not value:
            preferred = dtypes.int32  # an empty list of axes or dimensions: NumPy would take it for floats
    tensor = _to_tensor(value, wanted, f"{full_name}/{argument.name}/", preferred, source)
    _bind(argument, tensor.dtype, types)
    return tensor


def _convert_list(argument: Argument, value: Any, types: dict[str, DType], full_name: str) -> list[Tensor]:
    if not isinstance(value, (list, tuple)):
        raise DTypeError(f"input {argument.name!r}: expected a list of tensors; got {value!r}")
    wanted = None if argument.is_type_list else types.get(argument.type_attr or "", argument.dtype)
    tensors = []
    for position, item in enumerate(value):
        tensor = _to_tensor(item, wanted, f"{full_name}/{argument.name}_{position}/")
        if not argument.is_type_list:
            wanted = wanted or tensor.dtype
            if tensor.dtype is not wanted:
                name, got = f"{argument.name}[{position}]", tensor.dtype.name
                raise DTypeError(f"input {name}: expected dtype {wanted.name}; got {got}")
        tensors.append(tensor)
    if wanted is not None and argument.type_attr is not None:
        types.setdefault(argument.type_attr, wanted)
    return tensors


def _attrs(op: OpDef, types: dict[str, DType], given: dict[str, Any]) -> dict[str, Any]:
    """All attrs: type variables, list lengths, those ``given``, and defaults."""
    attrs: dict[str, Any] = {}
    for variable, dtype in types.items():
        allowed = op.types[variable]
        if dtype not in allowed:
            names = ", ".join(sorted(d.name for d in allowed))
            raise DTypeError(f"{variable}: expected one of {names}; got {dtype.name}")
        attrs[variable] = dtype
    for argument in op.inputs:
        if argument.is_list and (key := argument.number_attr or argument.type_attr) in given:
            attrs[key or ""] = given.pop(key)
    for key, attr in op.attrs.items():
        if key in given:
            attrs[key] = _attr_value(key, attr, given.pop(key))
        elif attr.required:
            raise InvalidArgumentError(f"attribute {key!r} ({attr.kind}): expected a value; got none")
        else:
            attrs[key] = attr.default
    for key in given:
        if not key.startswith("_"):
            known = [a.name for a in op.inputs] + list(op.attrs)
            raise InvalidArgumentError(f"expected arguments among {', '.join(known)}; got {key!r}")
    attrs.update(given)
    return attrs


def _attr_value(key: str, attr: Attr, value: Any) -> Any:
    """``value`` in the canonical form of this kind of attr. Raises `InvalidArgumentError`."""
    if value is None and attr.default is None:
        return None
    try:
        return _ATTR_FORMS[attr.kind](value)
    except InvalidArgumentError as error:
        raise type(error)(f"attribute {key!r}: {error.message}") from None
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidArgumentError(
            f"attribute {key!r}: expected {attr.kind}; got {value!r} ({error})"
        ) from None


def _strict_int(value: Any) -> int:
    return int(value.__index__())


def _text(value: Any) -> Any:
    return value if isinstance(value, (str, bytes)) else str(value)


_ATTR_FORMS: dict[str, Any] = {
    "bool": bool,
    "int": _strict_int,
    "float": float,
    "string": _text,
    "type": as_dtype,
    "shape": as_shape,
    "tensor": np.asarray,
    "func": lambda value: value,
    "list(int)": lambda value: tuple(_strict_int(v) for v in value),
    "list(float)": lambda value: tuple(float(v) for v in value),
    "list(string)": lambda value: tuple(_text(v) for v in value),
    "list(type)": lambda value: tuple(as_dtype(v) for v in value),
    "list(shape)": lambda value: tuple(as_shape(v) for v in value),
    "list(bool)": lambda value: tuple(bool(v) for v in value),
    "list(func)": tuple,
}


def output_dtypes(op: OpDef, attrs: Mapping[str, Any]) -> list[DType]:
    """The dtypes of all outputs of an operation with these ``attrs``."""
    return [dtype for output in op.outputs for dtype in output.dtypes(attrs)]


# --- conversion


def convert_to_tensor(
    value: Any,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    preferred_dtype: DTypeLike | None = None,
    dtype_hint: DTypeLike | None = None,
) -> Tensor:
    """``value`` as a tensor of the default graph.

    Args:
        value: A tensor, which is returned as it is; a variable, for its value; an array or Python value, for
            a constant; or a list that contains tensors, packed along a new first axis.
        dtype: The dtype; by default Python floats become float32 and ints int32, and NumPy arrays keep
            theirs.
        preferred_dtype: The dtype where it is possible.

    Returns:
        A tensor.

    Raises:
        DTypeError: The value does not fit ``dtype`` without changing its kind (a float for an int).

    Example:
        >>> tf.convert_to_tensor([1.0, 2.0])
        <flowrt.Tensor 'Const:0' shape=(2,) dtype=float32>
    """
    hint = preferred_dtype if preferred_dtype is not None else dtype_hint
    try:
        return _to_tensor(value, None if dtype is None else as_dtype(dtype), name, hint)
    except InvalidArgumentError as error:
        raise in_scope(error, name or "") from error.__cause__


def in_scope(error: InvalidArgumentError, name: str) -> InvalidArgumentError:
    """``error`` with the user's line and with the name that the tensor ``name`` would have had, which begins
    with the name of the operation that needed it.
    """
    if error.op is not None or error.source is not None:
        return error
    scope = get_default_graph().get_name_scope()
    full_name = name[:-1] if name.endswith("/") else "/".join(filter(None, (scope, name)))
    return type(error)(error.message, op=full_name or None, source=user_line())


def _to_tensor(
    value: Any, wanted: DType | None, name: str | None, hint: Any = None, source: Source | None = None
) -> Tensor:
    """`convert_to_tensor`, raising errors without a location."""
    if type(value) in NUMBERS and wanted is not None:  # the common case, without the checks below
        return constant_tensor(as_array(value, wanted), name, source)
    if isinstance(value, Tensor):
        if wanted is not None and value.dtype is not wanted:
            raise DTypeError(
                f"expected dtype {wanted.name}; got tensor {value.name!r} of dtype {value.dtype.name}. "
                "Use flowrt.cast()"
            )
        return value
    if hasattr(value, "__flowrt_tensor__"):
        tensor: Tensor = value.__flowrt_tensor__()
        return _to_tensor(tensor, wanted, name)
    made = converted(value, wanted, name)
    if made is not NotImplemented:
        if not isinstance(made, Tensor):
            raise DTypeError(f"expected a conversion function that returns a tensor; got {made!r}")
        return _to_tensor(made, wanted, name)
    if isinstance(value, (list, tuple)) and _contains_tensor(value):
        return _pack(value, wanted, name)
    if wanted is None and hint is not None:
        with contextlib.suppress(DTypeError):
            return constant_tensor(as_array(value, as_dtype(hint)), name)
    return constant_tensor(as_array(value, wanted), name, source)


def constant_tensor(
    value: np.ndarray[Any, Any] | np.generic, name: str | None = None, source: Source | None = None
) -> Tensor:
    """A Const operation that holds ``value``, which must not change later; ``source`` is the user's line."""
    array = np.asarray(value)  # arithmetic on 0-d arrays gives NumPy scalars
    graph = get_default_graph()
    full_name = graph.operation_name(name or "Const")
    dtype = as_dtype(array.dtype)
    attrs, outputs = {"value": array, "dtype": dtype}, one_output(dtype, array.shape)
    return graph.append(op_def("Const"), full_name, (), attrs, outputs, source or user_source()).outputs[0]


def _contains_tensor(value: Any) -> bool:
    return any(
        isinstance(v, Tensor)
        or hasattr(v, "__flowrt_tensor__")
        or is_registered(v)
        or (isinstance(v, (list, tuple)) and _contains_tensor(v))
        for v in value
    )


def _pack(values: Sequence[Any], dtype: DType | None, name: str | None) -> Tensor:
    if dtype is None:
        dtype = next(_dtypes_in(values), None)
    tensors = [_to_tensor(v, dtype, None) for v in values]
    return op_def("Pack")(tensors, name=name or "packed")


def _dtypes_in(values: Sequence[Any]) -> Iterator[DType]:
    for value in values:
        if isinstance(value, Tensor) or hasattr(value, "__flowrt_tensor__"):
            yield value.dtype
        elif isinstance(value, (list, tuple)):
            yield from _dtypes_in(value)
