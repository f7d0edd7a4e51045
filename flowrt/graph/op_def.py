"""Operation definitions: all properties of an op in one place.

`define_op` requires every property that it cannot derive, so an op cannot be defined in part:

* the signature, ``"x: T in REAL, axis: host Tidx in INDEX -> T"``: inputs and outputs with their dtypes.
  ``T`` is a type variable, with the dtypes that `flowrt.dtypes.domain` reads after its first ``in`` (or those
  in ``types``), ``N * T`` a list of N tensors of one dtype, ``*Tin`` a list of tensors of any dtypes,
  ``host`` marks a small integer tensor that parameterizes the op (axes, shapes): it stays in host memory and
  reaches shape rules and kernels as Python ints or nested tuples of ints. ``host shape`` is one that gives
  the shape of output 0. Outputs have TensorFlow's names,
  which GraphDef functions refer to; the default is "output";
* the attributes, ``"axis: int = 0, dtype: type"``: see `parse_attrs`;
* ``shape``: a rule from `ShapeContext` to one shape per output; not needed without outputs;
* ``kernel(xp, *inputs, out=None, workspace=None, **attrs)``: the computation, over the array module ``xp``
  (NumPy, CuPy). A kernel that has a parameter ``out`` can write its result into a given array; one that has
  ``workspace`` allocates scratch arrays with ``workspace.begin()(shape, dtype)``, or new arrays if it is
  None. Kernels receive only the attrs they name;
* ``vjp(op, *output_gradients)`` and ``jvp(op, *input_tangents)``: build graph, so higher orders are free.
  No gradient flows through an op that changes or names resources, or without an input and an output of a
  dtype that can have one: it needs neither. The jvp defaults to the transpose of the vjp;
* ``samples(rng)``: inputs and attrs for the generic test of all ops; only a pure op needs them;
* ``effects`` and ``traits``: the properties that passes query instead of the op's name;
* ``loop``: the op's code in a compiled loop over the elements, if it has one: see `Loop`;
* ``axes``: the op's sharding rule, ``"i k, k j -> i j"``, or a function from `ShapeContext` to one: see
  `flowrt.graph.layouts.sharding_rule`. Elementwise ops, reductions and views need none;
* ``sharded(op)``: builds the same from ops that can be computed on parts, for a dimension that must be whole
  by ``axes`` and is cut all the same: see `flowrt.graph.passes.layouts.sharded_forms`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeAlias, final

import numpy as np

from flowrt.dtypes import ANY, INEXACT, DType, as_dtype, domain, resource, variant
from flowrt.errors import AlreadyExistsError, InternalError, InvalidArgumentError, NotFoundError, nearest
from flowrt.graph.op_facets import (
    NO_TRAITS,
    BatchRule,
    Form,
    Jvp,
    Kernel,
    ListAccess,
    ListUse,
    Loop,
    Traits,
    Vjp,
)
from flowrt.graph.op_help import CallDoc, CallSignature
from flowrt.graph.shapes import Shape, format_shape

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from flowrt.graph.construction.operation import Tensor
    from flowrt.graph.node import Node, Ref, TensorSpec

    Result_co = TypeVar("Result_co", default=Any, covariant=True)
    Defined = TypeVar("Defined", default=Tensor)
else:
    from typing import TypeVar

    Result_co, Defined = TypeVar("Result_co"), TypeVar("Defined")


REQUIRED: Any = inspect.Parameter.empty


class Effect(Enum):
    """Effect of running an op, apart from computing its outputs."""

    PURE = "pure"
    """Nothing: may be merged with an equal op, folded, moved, dropped."""
    READ = "read"
    """Reads the resources among its inputs."""
    WRITE = "write"
    """Changes the resources among its inputs."""
    RANDOM = "random"
    """Draws from its own random stream: never merged or folded, dropped when unused."""
    STATEFUL = "stateful"
    """Affects the outside world (prints, calls Python, advances an iterator): never merged or folded."""
    HANDLE = "handle"
    """Names a resource of the session (a variable, an iterator)."""
    NESTED = "nested"
    """Has the effects of functions among its attrs (see `flowrt.graph.effects`): never merged or folded.

    """
    SOURCE = "source"
    """Gets its value from outside the graph (placeholder, feed, receive)."""


class Privilege(Enum):
    """Capability that a process grants to remote clients only if configured to."""

    PYTHON = "calls Python"
    FILES = "writes a file"
    READS_FILES = "reads a file"


class Effects(NamedTuple):
    """Effects of running an op, and its run-time requirements."""

    effect: Effect = Effect.PURE
    state: Callable[[Node], Any] | None = None
    """Creates the session's object for a node of this op (a variable's storage, a random stream)."""
    waits: bool = False
    """Whether its kernel may block on another step, so that its own step needs a separate thread."""
    privilege: Callable[[Mapping[str, Any]], Privilege | None] | None = None
    """Returns the privilege that a node with these attrs requires, or None."""


PURE = Effects()


class Rule(Enum):
    """Explicit markers used in place of a rule."""

    NONDIFFERENTIABLE = "no gradient flows through"
    LINEAR = "the jvp is the op itself applied to the tangents"
    BY_VJP = "the jvp is the transpose of the vjp"


NONDIFFERENTIABLE, LINEAR, BY_VJP = Rule


def BY_EXECUTOR(xp: Any, /, *inputs: Any, **options: Any) -> NoReturn:
    """Placeholder kernel of an op that the executor implements itself."""
    raise InternalError("expected an op with a kernel; got one that the executor does")


PartialValue: TypeAlias = Any
"""A partially known host value: int, bool or float, a nested tuple of them, None where unknown."""


ShapeRule: TypeAlias = Callable[["ShapeContext"], Sequence[Shape]]

AxesRule: TypeAlias = "str | Callable[[ShapeContext], str | None]"
"""A sharding rule, or a function that returns one for a call; None: all inputs must be whole."""


class Attr(NamedTuple):
    """One attribute: its kind is GraphDef's: bool, int, float, string, type, shape, tensor, func or a
    ``list(...)``.
    """

    kind: str
    default: Any = REQUIRED

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


class Argument(NamedTuple):
    """One input or output of a signature."""

    name: str
    type_attr: str | None  # the type variable, or None for a fixed dtype
    dtype: DType | None
    number_attr: str | None  # N of "N * T"
    is_type_list: bool  # "*Tin"
    on_host: bool
    is_list: bool  # either of the two
    is_shape: bool = False  # "host shape T": the shape of output 0

    def length(self, attrs: Mapping[str, Any]) -> int:
        """Number of tensors it accepts in a call with ``attrs``."""
        if self.number_attr:
            return int(attrs[self.number_attr])
        return len(attrs[self.type_attr]) if self.is_type_list and self.type_attr else 1

    def dtypes(self, attrs: Mapping[str, Any]) -> list[DType]:
        """The dtypes of its tensors in a call with ``attrs``."""
        if self.is_type_list and self.type_attr:
            return list(attrs[self.type_attr])
        dtype: Any = attrs[self.type_attr] if self.type_attr else self.dtype
        return [dtype] * self.length(attrs)


def by_argument(
    arguments: Iterable[Argument], flat: Iterable[Any], attrs: Mapping[str, Any]
) -> Iterator[tuple[Argument, list[Any]]]:
    """Each of ``arguments`` with its items of ``flat``, which has one item per tensor."""
    items = iter(flat)
    for argument in arguments:
        yield argument, list(islice(items, argument.length(attrs)))


class Sample(NamedTuple):
    """Inputs (arrays, or tuples of arrays for list inputs) and attrs of one call, for the test of all ops."""

    inputs: tuple[Any, ...]
    attrs: Mapping[str, Any] = {}
    differentiable: bool = True
    """False where the op has a gradient but this sample sits on a kink or has an integer dtype."""


def sample(*inputs: Any, differentiable: bool = True, **attrs: Any) -> Sample:
    return Sample(inputs, attrs, differentiable)


Samples: TypeAlias = Callable[[np.random.Generator], Iterable[Sample]]


class ShapeContext:
    """Input of a shape rule: shapes, dtypes, attrs, and the known part of host values.

    ``shapes[i]`` and ``dtypes[i]`` index the flattened inputs.
    """

    __slots__ = ("attrs", "dtypes", "op", "shapes", "value")

    def __init__(
        self,
        op: OpDef,
        attrs: Mapping[str, Any],
        shapes: Sequence[Shape],
        dtypes: Sequence[DType],
        value: Callable[[int], PartialValue],
    ) -> None:
        self.op, self.attrs, self.shapes, self.dtypes = op, attrs, shapes, dtypes
        self.value = value
        """``value(i)``: the known part of input i's value, or None."""

    def check_scalars(self, *inputs: int) -> None:
        """Raise `InvalidArgumentError` if one of ``inputs``, none after a list of tensors, is no scalar."""
        for i in inputs:
            if self.shapes[i] not in (None, ()):
                raise InvalidArgumentError(
                    f"{self.op.inputs[i].name}: expected a scalar; got shape {format_shape(self.shapes[i])}"
                )

    def describe(self, specs: Sequence[TensorSpec]) -> list[str]:
        """Dtype and shape of each input, and the value of each host input, truncated to 60 characters."""
        arguments = [a for a in self.op.inputs for _ in range(a.length(self.attrs))]
        described = [f"{a.name}: {spec}" for a, spec in zip(arguments, specs, strict=True)]
        for i, argument in enumerate(arguments):
            if argument.on_host and (value := self.value(i)) is not None:
                described[i] += f"={value!s:.60}"
        return described


class SimplifyContext:
    """View of a node for a ``simplify`` rule.

    The rule returns one `Ref` per output: earlier tensors that always equal the outputs bit for bit; or a
    simpler node with the same name and outputs; or None. Inputs that the result no longer needs must be
    `constant`: anything else may have side effects.
    """

    __slots__ = ("_lookup", "node")

    def __init__(self, node: Node, lookup: Callable[[str], Node]) -> None:
        self.node, self._lookup = node, lookup

    def spec(self, ref: Ref) -> TensorSpec:
        return self._lookup(ref[0]).outputs[ref[1]]

    def producer(self, ref: Ref) -> Node | None:
        """The node that produces ``ref``, if it may be bypassed: it is pure and has no control inputs."""
        node = self._lookup(ref[0])
        return node if node.op.effect is Effect.PURE and not node.controls else None

    def constant(self, ref: Ref) -> np.ndarray[Any, Any] | None:
        """The value of ``ref`` if it is a constant."""
        node = self._lookup(ref[0])
        return node.attrs["value"] if node.op.name == "Const" and not node.controls else None


SimplifyRule: TypeAlias = Callable[[SimplifyContext], "Node | Sequence[Ref] | None"]


def returns_inputs(c: SimplifyContext) -> Sequence[Ref]:
    """The ``simplify`` rule of ops that return their inputs as they are."""
    return c.node.inputs


def undoes_itself(c: SimplifyContext) -> Sequence[Ref] | None:
    """The ``simplify`` rule of involutions such as Neg: two applications cancel."""
    inner = c.producer(c.node.inputs[0])
    return inner.inputs if inner is not None and inner.op is c.node.op else None


class Ufunc:
    """A kernel that is one array-module function with a positional ``out``: bound without any wrapper."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, xp: Any, *inputs: Any, out: Any = None) -> Any:
        function = getattr(xp, self.name)
        return function(*inputs) if out is None else function(*inputs, out=out)

    def bind(self, xp: Any) -> Any:
        return getattr(xp, self.name)


@final
@dataclass(frozen=True, eq=False, slots=True)
class OpDef(Generic[Result_co]):
    __doc__ = CallDoc(
        """An op's definition. Calling it adds an operation to the default graph (see
        `flowrt.graph.construction.build`).

        The fields of its `Effects` and its `Traits`, documented there, are also attributes of the definition.
        ``OpDef[Result]`` is the type of a call's result: a tensor, a list of tensors, or an operation without
        outputs.
        """
    )

    name: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    types: Mapping[str, frozenset[DType]]
    attrs: Mapping[str, Attr]
    shape: ShapeRule
    kernel: Kernel
    vjp: Vjp | Rule
    jvp: Jvp | Rule
    samples: Samples
    alias: bool
    """Whether the outputs are views of the first device input, so that a plan can create them once."""
    value: Callable[[ShapeContext], PartialValue] | None
    """Evaluates the op on partially known host values (shape arithmetic)."""
    simplify: SimplifyRule | None
    """Finds a simpler or redundant form of a node of this op, bit for bit equal: see `SimplifyContext`."""
    cost: Callable[[Any, Any], float] | None
    """Floating-point operations of a call from (input specs, output specs); None: one per output element.

    """
    loop: Loop | None
    """The op's code in compiled loops; None: only the kernel computes it."""
    batch: BatchRule | None
    """The rule of `vectorized_map`; None: by a loop, or, if elementwise, as `Batching` does."""
    lists: ListAccess | None
    """Access of the op to a list of tensors, as far as compiled loops support it."""
    axes: AxesRule | None
    sharded: Form | None
    """Builds the op from ops that can be computed on parts; None: its whole dimensions are gathered."""
    doc: str
    kernel_attrs: tuple[str, ...]
    loop_attrs: tuple[str, ...]
    """The attrs that ``loop.build`` reads."""
    takes_out: bool
    takes_workspace: bool
    effect: Effect
    state: Callable[[Node], Any] | None
    waits: bool
    privilege: Callable[[Mapping[str, Any]], Privilege | None] | None
    elementwise: bool
    overwrites: int | None
    commutative: bool
    reduction: str | None
    joined: Callable[[Mapping[str, Any]], tuple[int | None, ...]] | None
    total: bool
    linear_in: tuple[int, ...]
    narrows: bool | None
    up_to_phase: bool

    __signature__ = CallSignature()

    @property
    def aliased(self) -> int:
        """Index of the input that an alias op returns a view of."""
        return next(i for i, argument in enumerate(self.inputs) if not argument.on_host)

    def uses_list(self, *uses: ListUse) -> bool:
        """Whether its list access is one of ``uses``."""
        return self.lists is not None and self.lists.use in uses

    @property
    def is_pure(self) -> bool:
        return self.effect is Effect.PURE

    @property
    def reads_variable(self) -> bool:
        """Whether its output is the memory of a variable."""
        return self.alias and self.effect is Effect.READ

    def __call__(self, *args: Any, name: str | None = None, **kwargs: Any) -> Result_co:
        """Add one operation. Returns its output, a list of outputs, or the operation when it has none."""
        if len(args) > len(self.inputs):
            args, name = self._take_extra(args, name, kwargs)
        return _builders[0](self, args, name, kwargs)

    def positional_attrs(self) -> list[str]:
        """The attrs that a call takes after the inputs, in their order."""
        inferred = {a.type_attr for a in (*self.inputs, *self.outputs)}
        return [key for key in self.attrs if key not in inferred and not key.startswith("_")]

    def _take_extra(
        self, args: tuple[Any, ...], name: str | None, kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], str | None]:
        """Positional arguments after the inputs: the attrs in order, then the name, as in TensorFlow."""
        count, order = len(self.inputs), [*self.positional_attrs(), "name"]
        if len(args) > count + len(order):
            return args, name  # the builder reports the error
        for key, value in zip(order, args[count:], strict=False):
            if key == "name":
                name = value
            else:
                kwargs[key] = value
        return args[:count], name

    def __repr__(self) -> str:
        return f"<OpDef {self.name}>"


_Builder: TypeAlias = Callable[["OpDef", tuple[Any, ...], str | None, dict[str, Any]], Any]
_builders: list[_Builder] = []
_registry: dict[str, OpDef] = {}


LENT_TO_KERNELS = frozenset({"out", "workspace", "state"})
"""Parameters of kernels that are no attrs."""


def _check_attr_names(name: str, read: Collection[str]) -> None:
    """Raises `InvalidArgumentError` for attrs that the kernel of op ``name`` reads and could not get."""
    if taken := LENT_TO_KERNELS.intersection(read):
        raise InvalidArgumentError(
            f"define_op: expected attrs of {name!r} with other names than {', '.join(sorted(taken))}: "
            "parameters with which kernels get something else"
        )


def set_builder(build: _Builder) -> None:
    """Set the function that adds operations to a graph; called by `flowrt.graph.construction.build`."""
    _builders[:] = [build]


def define_op(
    name: str,
    signature: str,
    *,
    kernel: Kernel,
    doc: str,
    shape: ShapeRule | None = None,
    vjp: Vjp | Rule | None = None,
    jvp: Jvp | Rule | None = None,
    samples: Samples | None = None,
    types: Mapping[str, Iterable[DType]] = {},
    attrs: str | Mapping[str, Attr] = "",
    effects: Effects = PURE,
    traits: Traits = NO_TRAITS,
    alias: bool = False,
    value: Callable[[ShapeContext], PartialValue] | None = None,
    simplify: SimplifyRule | None = None,
    cost: Callable[[Any, Any], float] | None = None,
    loop: Loop | None = None,
    batch: BatchRule | None = None,
    lists: ListAccess | None = None,
    axes: AxesRule | None = None,
    sharded: Form | None = None,
) -> OpDef[Defined]:
    """Define an op, register it by its (TensorFlow) name and return the `OpDef`, which is also its builder.

    Raises `AlreadyExistsError` for a second definition, and `InvalidArgumentError` for a missing rule, a
    signature that does not parse, and a ``loop`` that does not match the inputs or reads an undefined attr.
    """
    if name in _registry:
        raise AlreadyExistsError(f"define_op: expected a new op name; {name!r} is defined already")
    inputs, outputs, types = parse_signature(signature, types)
    attrs = parse_attrs(attrs) if isinstance(attrs, str) else attrs
    parameters = () if isinstance(kernel, Ufunc) else _parameters_of(kernel)
    known = {*attrs, *types, *(a.number_attr for a in inputs if a.number_attr)}
    _check_attr_names(name, known.intersection(parameters))
    if shape is None and not outputs:
        shape = _no_outputs
    if vjp is None and (
        effects.effect in (Effect.WRITE, Effect.HANDLE)
        or not (_have_gradients(inputs, types) and _have_gradients(outputs, types))
    ):
        vjp = NONDIFFERENTIABLE
    if samples is None and effects.effect is not Effect.PURE:
        samples = _no_samples
    if shape is None or vjp is None or samples is None:
        raise InvalidArgumentError(f"define_op: expected shape, vjp and samples of {name!r}; one is missing")
    if jvp is None:
        jvp = NONDIFFERENTIABLE if vjp is NONDIFFERENTIABLE else BY_VJP
    op: OpDef[Defined] = OpDef(
        name, inputs, outputs, types, dict(attrs),
        shape, kernel, vjp, jvp, samples, alias, value, simplify, cost, loop, batch, lists, axes, sharded,
        doc,
        kernel_attrs=tuple(p for p in parameters if p in known),
        loop_attrs=() if loop is None else _loop_attrs(name, loop, len(inputs), known),
        takes_out=isinstance(kernel, Ufunc) or "out" in parameters,
        takes_workspace="workspace" in parameters,
        **effects._asdict(),
        **traits._asdict(),
    )  # fmt: skip
    _registry[name] = op
    return op


def _parameters_of(kernel: Kernel) -> Collection[str]:
    """Their names: of a plain function from its code, which takes 1 us where `inspect.signature` takes 20."""
    if type(kernel) is not FunctionType or hasattr(kernel, "__wrapped__"):
        return inspect.signature(kernel).parameters
    code = kernel.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _have_gradients(arguments: Sequence[Argument], types: Mapping[str, frozenset[DType]]) -> bool:
    """Whether one of them may have: a float, a complex number, a list of tensors, or what a handle names."""
    dtypes = (types.get(a.type_attr, ANY) if a.type_attr else {a.dtype} for a in arguments)
    return any(not {*INEXACT, resource, variant}.isdisjoint(allowed) for allowed in dtypes)


def _no_outputs(s: ShapeContext) -> Sequence[Shape]:
    return []


def _no_samples(rng: np.random.Generator) -> Iterable[Sample]:
    return ()


def define_handle(
    name: str,
    state: Callable[[Node], Any],
    doc: str,
    *,
    output: str = "resource",
    attrs: str = "",
    value: Callable[[ShapeContext], PartialValue] | None = None,
    privilege: Callable[[Mapping[str, Any]], Privilege | None] | None = None,
) -> OpDef[Tensor]:
    """Define an op that returns the handle of the object that ``state`` makes in a session: see `Effects`."""
    return define_op(
        name,
        f"-> {output}",
        attrs=attrs,
        shape=lambda s: [()],
        kernel=lambda xp, state: state,
        effects=Effects(Effect.HANDLE, state=state, privilege=privilege),
        value=value,
        doc=doc,
    )


def _loop_attrs(name: str, loop: Loop, inputs: int, known: Collection[str]) -> tuple[str, ...]:
    """The keyword-only parameters of ``loop.build``, all of them attrs, after the builder and the inputs."""
    signature = inspect.signature(loop.build)
    named = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
    unknown = [parameter for parameter in named if parameter not in known]
    if unknown:
        raise InvalidArgumentError(
            f"loop of {name}: expected attrs of the op; got {', '.join(unknown)}.{nearest(unknown[0], known)}"
        )
    try:
        signature.bind(None, *[None] * inputs, **dict.fromkeys(named))
    except TypeError as error:
        raise InvalidArgumentError(
            f"loop of {name}: expected a builder and {inputs} inputs as parameters; got {signature}"
        ) from error
    return tuple(named)


def parse_signature(
    signature: str, types: Mapping[str, Iterable[DType]] = {}
) -> tuple[tuple[Argument, ...], tuple[Argument, ...], dict[str, frozenset[DType]]]:
    """``"x: T in REAL, axis: host int32 -> y: T"`` as two tuples of `Argument`, and the dtypes of the type
    variables, those in ``types`` included. Raises `InvalidArgumentError`.
    """
    left, arrow, right = signature.partition("->")
    if not arrow:
        raise InvalidArgumentError(f"signature: expected 'inputs -> outputs'; got {signature!r}")
    known = {variable: frozenset(allowed) for variable, allowed in types.items()}
    inputs, outputs = _parse_arguments(left, known), _parse_arguments(right, known)
    if len({argument.name for argument in outputs}) < len(outputs):
        raise InvalidArgumentError(f"signature: expected outputs of different names; got {signature!r}")
    return inputs, outputs, known


def _parse_arguments(text: str, types: dict[str, frozenset[DType]]) -> tuple[Argument, ...]:
    """Adds to ``types`` the variables that ``text`` is the first to name."""
    arguments = []
    for part in filter(None, map(str.strip, text.split(","))):
        name, colon, kind = part.partition(":")
        if not colon:
            name, kind = "output", part
        kind, has_domain, allowed = kind.partition(" in ")
        words = kind.split()
        on_host = words[0] == "host"
        is_shape = words[:2] == ["host", "shape"]
        kind = "".join(words[on_host + is_shape :])
        number, star, element = kind.rpartition("*")
        if has_domain:
            types[element] = domain(allowed)
        is_type_list = bool(star) and not number
        type_attr = element if is_type_list or element in types else None
        dtype = None if type_attr else as_dtype(element)
        arguments.append(
            Argument(
                name.strip(), type_attr, dtype, number or None, is_type_list, on_host, bool(star), is_shape
            )
        )
    return tuple(arguments)


def parse_attrs(text: str) -> dict[str, Attr]:
    """``"axis: int = 0, dtype: type"`` by name; a default is a Python literal, of a type a dtype's name."""
    attrs = {}
    for part in re.split(r", (?=\w+: )", text) if text else ():
        name, _, rest = part.partition(": ")
        kind, has_default, default = rest.partition(" = ")
        convert = as_dtype if kind == "type" else ast.literal_eval
        attrs[name] = Attr(kind, convert(default)) if has_default else Attr(kind)
    return attrs


def op_def(name: str) -> OpDef[Defined]:
    """The definition of the op ``name``. Raises `NotFoundError`, which names the nearest ones."""
    if name not in _registry:
        raise NotFoundError(f"op {name!r}: flowrt has no such op.{nearest(name, _registry)}")
    return _registry[name]


def registered_ops() -> Mapping[str, OpDef]:
    """All definitions by name, in the order of definition."""
    return _registry
