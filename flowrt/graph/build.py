"""How a call becomes an operation: convert the inputs, bind the type variables, add to the default graph.

The way of ``add(x, 2.0)``: `build_op` reserves the name, finds T from the inputs that are tensors already,
converts the others to constants of that dtype (named ``add/y`` after the input), checks T against the
definition and appends the operation with `Graph.add`. Nothing is left in the graph when a check fails, except
constants that nobody reads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.op_def import Argument, Attr, OpDef, op_def, set_builder
from flowrt.graph.shapes import Dimension, TensorShape, as_shape
from flowrt.graph.source import user_line


def build_op(op: OpDef, args: tuple[Any, ...], name: str | None, kwargs: dict[str, Any]) -> Any:
    """Add one operation of type ``op``. Returns its output, the list of its outputs, or the Operation if it
    has none.

    Raises `DTypeError` for dtypes that do not fit, `InvalidArgumentError` for shapes, attributes and foreign
    graphs.
    """
    graph = get_default_graph()
    values = args if len(args) == len(op.inputs) else _input_values(op, args, kwargs)
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


def _build_in(
    graph: Graph, op: OpDef, values: Sequence[Any], name: str | None, kwargs: dict[str, Any]
) -> Any:
    """`build_op` in ``graph``, which is the default one."""
    full_name = graph.operation_name(name or op.name)
    try:
        types = _given_types(op, kwargs) if kwargs else {}
        inputs = _inputs(op, values, types, full_name, kwargs)
        for i, tensor in enumerate(inputs):
            if tensor.op.graph is not graph:
                inputs[i] = _adopted(graph, tensor)
        attrs = _attrs(op, types, kwargs)
    except InvalidArgumentError as error:
        if error.op is not None:
            raise
        raise type(error)(error.message, op=full_name, op_type=op.name, source=user_line()) from None
    operation = graph.add(op, full_name, inputs, attrs, output_dtypes(op, attrs))
    outputs = operation.outputs
    if len(outputs) == 1 and not op.outputs[0].is_list:
        return outputs[0]
    return list(outputs) if op.outputs else operation


def _adopted(graph: Graph, tensor: Tensor) -> Tensor:
    """An input of another graph as ``graph`` has it. Raises `InvalidArgumentError` if it may not be read."""
    adopted = graph.adopt(tensor)
    if adopted is not None:
        return adopted
    if tensor.op.graph.root is graph.root:
        raise tensor.op.graph.foreign(tensor)
    raise InvalidArgumentError(
        f"input {tensor.name!r} is of another graph than the inputs before it or the default one"
    )


set_builder(build_op)


def _input_values(op: OpDef, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """The inputs' values in the order of the signature; ``kwargs`` keeps the attrs."""
    if len(args) == len(op.inputs):
        return args
    if len(args) > len(op.inputs):
        message = f"{op.name}: expected {len(op.inputs)} inputs; got {len(args)}"
        raise InvalidArgumentError(message, source=user_line())
    values = list(args)
    for argument in op.inputs[len(args) :]:
        if argument.name not in kwargs:
            message = (
                f"{op.name}: expected inputs {', '.join(a.name for a in op.inputs)}; got no {argument.name}"
            )
            raise InvalidArgumentError(message, source=user_line())
        values.append(kwargs.pop(argument.name))
    return values


def _given_types(op: OpDef, kwargs: dict[str, Any]) -> dict[str, DType]:
    """The type variables that the caller gives by name."""
    variables = {a.type_attr for a in op.inputs if a.type_attr and not a.is_type_list}
    return {v: as_dtype(kwargs.pop(v)) for v in variables if v in kwargs}


def _inputs(
    op: OpDef, values: Sequence[Any], types: dict[str, DType], full_name: str, kwargs: dict[str, Any]
) -> list[Tensor]:
    """The inputs as tensors. Those that are tensors already bind the type variables first and lead the
    others.
    """
    inputs: list[Any] = []
    complete = True
    for argument, value in zip(op.inputs, values, strict=True):
        inputs.append(value)
        if type(value) is Tensor and not argument.is_list:
            _bind(argument, value.dtype, types)
        else:
            complete = False
    if complete:
        return inputs
    for argument, value in zip(op.inputs, values, strict=True):
        for item in value if argument.is_list and isinstance(value, (list, tuple)) else (value,):
            if not argument.is_type_list and (type(item) is Tensor or hasattr(item, "__flowrt_tensor__")):
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
            converted.append(_convert_input(op, argument, value, types, full_name))
    return converted


def _bind(argument: Argument, dtype: DType, types: dict[str, DType]) -> None:
    """Check ``dtype`` against the signature and what is bound so far. Raises `DTypeError`."""
    variable = argument.type_attr
    if variable is None:
        if dtype is not argument.dtype:
            expected = "?" if argument.dtype is None else argument.dtype.name
            raise DTypeError(
                f"input {argument.name!r}: expected dtype {expected}; got {dtype.name}. Use flowrt.cast()"
            )
    elif types.setdefault(variable, dtype) is not dtype:
        raise DTypeError(
            f"input {argument.name!r}: expected dtype {types[variable].name}, as the inputs before it; "
            f"got {dtype.name}. Use flowrt.cast()"
        )


def _convert_input(
    op: OpDef, argument: Argument, value: Any, types: dict[str, DType], full_name: str
) -> Tensor:
    if type(value) is Tensor:
        return value
    variable = argument.type_attr
    wanted = argument.dtype if variable is None else types.get(variable)
    preferred = None
    if wanted is None and variable is not None:
        allowed = op.types[variable]
        if len(allowed) == 1:
            preferred = next(iter(allowed))
        elif allowed == dtypes.INDEX and isinstance(value, (list, tuple)) and not value:
            preferred = dtypes.int32  # an empty list of axes or dimensions: NumPy would take it for floats
    tensor = _to_tensor(value, wanted, f"{full_name}/{argument.name}/", preferred)
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


_plain_attrs: dict[tuple[OpDef, DType], Mapping[str, Any]] = {}


def _attrs(op: OpDef, types: dict[str, DType], given: dict[str, Any]) -> Mapping[str, Any]:
    """The attributes; one shared mapping for all operations that have a single type and nothing else."""
    if len(types) != 1 or given or op.attrs:
        return _new_attrs(op, types, given)
    key = (op, next(iter(types.values())))
    if key not in _plain_attrs:
        _plain_attrs[key] = _new_attrs(op, types, given)
    return _plain_attrs[key]


def _new_attrs(op: OpDef, types: dict[str, DType], given: dict[str, Any]) -> dict[str, Any]:
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
    """``value`` in the form that attrs of this kind are kept in. Raises `InvalidArgumentError`."""
    if value is None and attr.default is None:
        return None
    try:
        return _ATTR_FORMS[attr.kind](value)
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
    found: list[DType] = []
    for output in op.outputs:
        dtype: Any = attrs[output.type_attr] if output.type_attr else output.dtype
        if output.is_type_list:
            found += dtype
        else:
            found += [dtype] * (attrs[output.number_attr] if output.number_attr else 1)
    return found


# --- conversion


def convert_to_tensor(
    value: Any,
    dtype: Any = None,
    name: str | None = None,
    preferred_dtype: Any = None,
    dtype_hint: Any = None,
) -> Tensor:
    """``value`` as a Tensor of the default graph: a tensor as it is, a variable's value, an array or Python
    value as a constant, a list that contains tensors packed along a new first axis.

    Python floats become float32 and ints int32, NumPy arrays keep their dtype, unless ``dtype`` says
    otherwise. Raises `DTypeError` when the value does not fit ``dtype`` without loss of kind (a float for an
    int).
    """
    hint = preferred_dtype if preferred_dtype is not None else dtype_hint
    try:
        return _to_tensor(value, None if dtype is None else as_dtype(dtype), name, hint)
    except InvalidArgumentError as error:
        raise _in_scope(error, name or "") from error.__cause__


def _in_scope(error: InvalidArgumentError, name: str) -> InvalidArgumentError:
    """``error`` with the user's line, and with the name that the tensor ``name`` would have had: it begins
    with that of the operation for which it was asked.
    """
    if error.op is not None or error.source is not None:
        return error
    scope = get_default_graph().get_name_scope()
    full_name = name[:-1] if name.endswith("/") else "/".join(filter(None, (scope, name)))
    return type(error)(error.message, op=full_name or None, source=user_line())


def _to_tensor(value: Any, wanted: DType | None, name: str | None, hint: Any = None) -> Tensor:
    """`convert_to_tensor`, with errors that do not say where."""
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
    if isinstance(value, (list, tuple)) and _contains_tensor(value):
        return _pack(value, wanted, name)
    if wanted is None and hint is not None:
        with contextlib.suppress(DTypeError):
            return constant_tensor(as_array(value, as_dtype(hint)), name)
    return constant_tensor(as_array(value, wanted), name)


def constant_tensor(array: np.ndarray[Any, Any], name: str | None = None) -> Tensor:
    """A Const operation that holds ``array`` (which must not change afterwards)."""
    const = op_def("Const")
    graph = get_default_graph()
    full_name = graph.operation_name(name or "Const")
    dtype = as_dtype(array.dtype)
    return graph.add(const, full_name, (), {"value": array, "dtype": dtype}, (dtype,)).outputs[0]


def _contains_tensor(value: Any) -> bool:
    return any(
        isinstance(v, Tensor)
        or hasattr(v, "__flowrt_tensor__")
        or (isinstance(v, (list, tuple)) and _contains_tensor(v))
        for v in value
    )


def _pack(values: Sequence[Any], dtype: DType | None, name: str | None) -> Tensor:
    if dtype is None:
        dtype = next(_dtypes_in(values))
    tensors = [_to_tensor(v, dtype, None) for v in values]
    packed: Tensor = op_def("Pack")(tensors, name=name or "packed")
    return packed


def _dtypes_in(values: Sequence[Any]) -> Iterator[DType]:
    for value in values:
        if isinstance(value, Tensor) or hasattr(value, "__flowrt_tensor__"):
            yield value.dtype
        elif isinstance(value, (list, tuple)):
            yield from _dtypes_in(value)


_NUMBERS = (float, int)


def as_array(value: Any, dtype: DType | None = None) -> np.ndarray[Any, Any]:
    """``value`` as a NumPy array under TensorFlow's rules (see `convert_to_tensor`); strings become ``bytes``
    objects.

    Raises `DTypeError` (wrong kind) or `InvalidArgumentError` (ragged or out of range).
    """
    if value is None:
        raise DTypeError("expected a value that can become a tensor; got None")
    if type(value) in _NUMBERS and dtype in dtypes.FLOATING:
        return np.array(value, dtype.np)  # the common case, without the checks below
    if isinstance(value, (Operation, Graph)):
        raise DTypeError(f"expected a value that can become a tensor; got {value!r}")
    if isinstance(value, DType):
        raise DTypeError(f"expected a value that can become a tensor; got the dtype {value!r}")
    if isinstance(value, (TensorShape, Dimension)):
        return _shape_array(value, dtype)
    if isinstance(value, (np.ndarray, np.generic)):
        return _from_numpy(value, dtype)
    return _from_python(value, dtype)


def _shape_array(value: TensorShape | Dimension, dtype: DType | None) -> np.ndarray[Any, Any]:
    wanted = (dtype or dtypes.int32).np
    if isinstance(value, Dimension):
        return np.array(int(value), wanted)
    value.assert_is_fully_defined()
    return np.array(value.as_list(), wanted)


def check_unmasked(value: Any) -> None:
    """Raises `InvalidArgumentError` for an array with masked elements: tensors have no masks."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        count = np.count_nonzero(value.mask)
        raise InvalidArgumentError(
            f"expected an array without masked elements; got {count} of {value.size}. Use filled()"
        )


def _from_numpy(value: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    check_unmasked(value)
    if value.dtype.kind in "SU" or (value.dtype.kind == "O"):
        return _strings(value, dtype)
    own = as_dtype(value.dtype)
    if dtype is None or own is dtype:
        return np.array(value, own.np)  # a copy: the caller may go on changing its array
    _check_kind(own, dtype, value)
    return np.asarray(value).astype(dtype.np)


def _from_python(value: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    try:
        array = np.array(value)
    except ValueError as error:
        raise InvalidArgumentError(
            f"expected a rectangular nested sequence; got {_brief(value)} ({error})"
        ) from None
    except OverflowError:
        raise InvalidArgumentError(f"expected numbers of at most 64 bits; got {_brief(value)}") from None
    if array.dtype.kind == "O" and any(isinstance(v, Dimension) for v in array.ravel()):
        array = array.astype(np.int64)  # ``[-1, x.shape[1]]``
        value = array.tolist()
    if array.dtype.kind in "SUO":
        if array.dtype.kind == "O" and any(isinstance(v, (list, tuple)) for v in array.ravel()):
            raise InvalidArgumentError(f"expected a rectangular nested sequence; got {_brief(value)}")
        return _strings(array, dtype)
    own = as_dtype(array.dtype)
    if dtype is not None:
        if array.size:
            _check_kind(own, dtype, value)
        return _cast_in_range(array, dtype, value)
    if own is dtypes.float64 and not hasattr(value, "__array__"):
        return _cast_in_range(array, dtypes.float32, value)
    if own is dtypes.int64 and not hasattr(value, "__array__") and np.all(array.astype(np.int32) == array):
        return array.astype(np.int32)
    return array


def _cast_in_range(array: np.ndarray[Any, Any], dtype: DType, value: Any) -> np.ndarray[Any, Any]:
    if dtype.is_integer and array.size and not (dtype.min <= array.min() and array.max() <= dtype.max):
        raise InvalidArgumentError(
            f"expected {dtype.name}, from {dtype.min} to {dtype.max}; got {_brief(value)}"
        )
    with np.errstate(all="ignore"):
        return array.astype(dtype.np)


def _check_kind(own: DType, wanted: DType, value: Any) -> None:
    """Refuse conversions that change the kind: float to int, complex to real, numbers to bool or string."""
    order = {"bool": 0, "int": 1, "float": 2, "complex": 3}
    have, want = order.get(_kind(own), 9), order.get(_kind(wanted), 9)
    if 9 in (have, want) or have > want or (have != want and 0 in (have, want)):
        raise DTypeError(f"expected {wanted.name}; got {_brief(value)} of dtype {own.name}")


def _kind(dtype: DType) -> str:
    if dtype.is_bool:
        return "bool"
    if dtype.is_integer:
        return "int"
    return "complex" if dtype.is_complex else "float" if dtype.is_floating else dtype.name


def _strings(array: np.ndarray[Any, Any], dtype: DType | None) -> np.ndarray[Any, Any]:
    if dtype not in (None, dtypes.string):
        assert dtype is not None
        raise DTypeError(f"expected {dtype.name}; got {_brief(array)}, strings or objects")
    result = np.empty(array.shape, object)
    flat = result.reshape(-1)
    for i, item in enumerate(array.reshape(-1)):
        if not isinstance(item, (str, bytes)):
            raise DTypeError(
                f"expected a value that can become a tensor; got {_brief(item)} of {type(item).__name__}"
            )
        flat[i] = item.encode() if isinstance(item, str) else bytes(item)
    return result


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
