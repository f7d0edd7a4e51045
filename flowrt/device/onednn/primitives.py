"""oneDNN's primitives on arrays: convolution and its gradients, mean pooling and batch normalization with
theirs, and matrix products without packing (for those with packing see `flowrt.device.onednn.onednn_blas`).

A primitive is created for certain shapes and layouts, which takes milliseconds (the library generates machine
code for them), and is cached. It may require its own layout for an operand: then an input is copied to that
layout, or an output from it. Filters always are: measured for [64, 14, 14, 32] by 5x5x32x64, the gradients
take 3.2 ms instead of 15.4 and 5.9, and the copy 0.1. So are images that are not channels-last.

Shapes here are the library's: images ``[n, c, *spatial]``, filters ``[g, f, c, *taps]`` with f and c of one
of g groups; strides alone determine the layout of an array.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, wraps
from types import MappingProxyType
from typing import Any, NamedTuple, ParamSpec, TypeAlias, final

import numpy as np

from flowrt.device.onednn.onednn import (
    ARGUMENT_OF_POST_OP,
    SECOND_SOURCE,
    Address,
    ExecutionArgument,
    Handle,
    Unsupported,
    library,
    numbers,
    threads_to_use,
)
from flowrt.device.stream_executor import ALIGNMENT
from flowrt.device.workspace import WORKSPACE, new_bytes

Array: TypeAlias = np.ndarray[Any, Any]

_P = ParamSpec("_P")
_Plan: TypeAlias = "tuple[Callable[[list[Handle]], Handle], Sequence[_Operand]]"
"""A function from the operands' descriptors to the primitive's, and the operands."""

MAX_PRIMITIVES = 1024
"""Number of cached primitives. Each has 10 to 100 KB, most of it machine code."""

FORWARD = 64
"""Value of dnnl_prop_kind_t: for training, so that it can be the hint that the gradients require."""

DIRECT, MEAN_INSIDE = 1, 0x3FF
"""Values of dnnl_alg_kind_t: convolution_direct, pooling_avg_exclude_padding."""

BACKWARD = 128
"""Value of dnnl_prop_kind_t."""

LINEAR, SWISH, CLIP, HARD_SWISH = 0x26, 0x2C, 0x2E, 0x34
"""Values of dnnl_alg_kind_t: eltwise_linear, eltwise_swish, eltwise_clip, eltwise_hardswish."""

SWISH_WORK, COPY_WORK = 32, 8
"""Multiplications that take as long as the swish of an element, 0.4 ns, or its copy elsewhere, 0.1."""

SUM, PRODUCT, DIFFERENCE = 0x1FFF0, 0x1FFF1, 0x1FFF5
"""Values of dnnl_alg_kind_t: binary_add, mul, sub."""

ACCUMULATION = "sum", (ctypes.c_float(1.0), 0, 0)
"""The post-op that adds a result to what is in its place: a factor, a zero point, and the dtype as it is."""

GIVEN_STATISTICS, SCALED, SHIFTED = 1, 2, 4
"""Values of dnnl_normalization_flags_t: use_global_stats, use_scale, use_shift."""

SOURCE, TARGET, FILTER, SCRATCHPAD = 1, 17, 33, 80
MEAN, VARIANCE, SCALE, SHIFT = 49, 50, 51, 52
SOURCE_GRADIENT, TARGET_GRADIENT, FILTER_GRADIENT = 129, 145, 161
SCALE_GRADIENT, SHIFT_GRADIENT = 255, 256
"""DNNL_ARG_*"""

REFERENCE, GEMM = "ref", "x64:gemm"
SLOW = REFERENCE, GEMM
"""Implementations of convolutions that other layouts may do without: plain loops, and a product of unfolded
images. 8 to 8 channels by 3x39 taps take 115 ms by the product, and 19 with the channels last, with copies.
"""

ITEMSIZE = 4

NO_CONSTANTS: Mapping[int, int] = MappingProxyType({})

NORMALIZATION_WORK = 1
"""Work of normalizing an element, as multiplications: threads share arrays from 32 MiB on. They meet several
times within a call and spin until all are there: where other processes use the cores, on 2 of them, [32, 32,
32, 16] takes two threads 48 ms, 16 of processor time, and one thread 0.4. With both cores to themselves, two
took 0.1.
"""


class Layout(NamedTuple):
    """Layout of a float32 array: shape and strides in bytes, as in NumPy, in the library's order of
    dimensions; and whether the library may choose another layout.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_free: bool = False

    def descriptor(self) -> Handle:
        """The library's descriptor. Raises `Unsupported` for strides that are fractional or negative."""
        strides, least = [], 1
        for size, nbytes in zip(reversed(self.shape), reversed(self.strides), strict=True):
            stride, rest = divmod(nbytes, ITEMSIZE)
            if size == 1 and stride < 1:
                stride, rest = least, 0  # unused stride
            if stride < 1 or rest:
                raise Unsupported("strides")
            strides.append(stride)
            least = max(least, stride * size)
        return library().descriptor(self.shape, strides[::-1])

    def wanted(self, given: Handle) -> Handle:
        """Descriptor requested for a primitive: ``given``, unless the layout is free."""
        return library().descriptor(self.shape, None) if self.is_free else given

    def channels_last(self) -> Layout:
        """Layout of images of this shape with the channels last, without gaps. Where there is one channel, or
        one pixel, an array's own strides say nothing: the library takes them for those of another layout.
        """
        channels, *spatial = self.shape[1:]
        nbytes = ITEMSIZE * np.cumprod([1, channels, *spatial[::-1]])
        channel, *pixels, image = nbytes.tolist()
        return Layout(self.shape, (image, channel, *pixels[::-1]))


class Axis(NamedTuple):
    """Windows along one axis, as in `flowrt.graph.ops.nn.windows`, with the padding after the axis too."""

    taps: int
    stride: int
    dilation: int
    before: int
    after: int


class Activation(NamedTuple):
    """An elementwise function that follows a primitive."""

    kind: int
    alpha: float = 0.0
    beta: float = 0.0


class Combination(NamedTuple):
    """A primitive's result with another array, which broadcasts to it, by a binary function."""

    kind: int
    other: Layout


PostOp: TypeAlias = "Activation | Combination"


def layout_of(array: Array, is_free: bool = False) -> Layout:
    return Layout(array.shape, array.strides, is_free)


# --- primitives


def _primitive(work: Callable[..., int]) -> Callable[[Callable[_P, _Plan]], Callable[_P, Primitive]]:
    """Decorator of functions that plan primitives: the result makes the primitive, or finds it made.
    ``work`` is the number of its multiplications or additions.
    """

    def decorate(plan: Callable[..., _Plan]) -> Any:
        @wraps(plan)
        def found(*arguments: Any) -> Primitive:
            primitive = _made(plan, work(*arguments), threads_to_use(work(*arguments)), *arguments)
            if primitive is None:
                raise Unsupported(plan.__name__)
            return primitive

        return found

    return decorate


@lru_cache(maxsize=MAX_PRIMITIVES)
def _made(plan: Callable[..., _Plan], work: int, n_threads: int, *arguments: Any) -> Primitive | None:
    library().use_threads(n_threads)
    try:
        return Primitive(work, n_threads, *plan(*arguments))
    except Unsupported:
        return None


def _convolution_work(
    x: Layout, filter: Layout, y: Layout, axes: tuple[Axis, ...], then: tuple[PostOp, ...] = ()
) -> int:
    _, _, per_group, *taps = filter.shape
    swishes = sum(isinstance(op, Activation) and op.kind == SWISH for op in then)
    return math.prod(y.shape) * (per_group * math.prod(taps) + SWISH_WORK * swishes)


@_primitive(_convolution_work)
def convolution(
    x: Layout, filter: Layout, y: Layout, axes: tuple[Axis, ...], then: tuple[PostOp, ...] = ()
) -> _Plan:
    """``y`` of ``x`` and ``filter``, with what is done to it ``then``; call it with their arrays in this
    order, and the others of combinations. As all functions that make primitives, raises `Unsupported` where
    the library has none that is better than plain loops.
    """
    others = [_Operand(_argument_of(i), op.other) for i, op in enumerate(then) if isinstance(op, Combination)]
    operands = _Operand(SOURCE, x), _Operand(FILTER, filter), _Operand(TARGET, y, True), *others

    def describe(given: list[Handle]) -> Handle:
        post_ops, found = _post_ops(then, given[3:]), list[Handle]()
        last = [layout.channels_last().descriptor() for layout in (x, y)]
        for images in ([given[0], given[2]], last):
            with suppress(Unsupported):
                found.append(_forward([images[0], given[1], images[1]], axes, post_ops))
                if not library().implementation(found[-1]).startswith(SLOW):
                    return found[-1]
        if not found:
            raise Unsupported("convolution")
        return found[0]

    return describe, operands


def _argument_of(post_op: int) -> int:
    return ARGUMENT_OF_POST_OP * (post_op + 1) | SECOND_SOURCE


def _post_ops(then: Sequence[PostOp], others: Iterable[Handle]) -> list[tuple[str, Sequence[Any]]]:
    """The library's form of ``then``, with descriptors of ``others``."""
    left = iter(others)
    return [
        ("eltwise", (op.kind, ctypes.c_float(op.alpha), ctypes.c_float(op.beta)))
        if isinstance(op, Activation)
        else ("binary", (op.kind, next(left)))
        for op in then
    ]


@_primitive(_convolution_work)
def convolution_source_gradient(x: Layout, filter: Layout, y: Layout, axes: tuple[Axis, ...]) -> _Plan:
    """The gradient of ``x``, from ``filter`` and the gradient of ``y``."""

    def describe(given: list[Handle]) -> Handle:
        kind, windows = "convolution_backward_data", _windows(axes)
        return library().primitive_descriptor(kind, DIRECT, *given, *windows, _forward(given, axes))

    return describe, (
        _Operand(SOURCE_GRADIENT, x, True),
        _Operand(FILTER, filter),
        _Operand(TARGET_GRADIENT, y),
    )


@_primitive(_convolution_work)
def convolution_filter_gradient(x: Layout, filter: Layout, y: Layout, axes: tuple[Axis, ...]) -> _Plan:
    """The gradient of ``filter``, from ``x`` and the gradient of ``y``."""

    def describe(given: list[Handle]) -> Handle:
        x, filter, y = given
        kind, windows = "convolution_backward_weights", _windows(axes)
        hint = _forward(given, axes)
        return library().primitive_descriptor(kind, DIRECT, x, filter, None, y, *windows, hint)

    return describe, (
        _Operand(SOURCE, x),
        _Operand(FILTER_GRADIENT, filter, True),
        _Operand(TARGET_GRADIENT, y),
    )


def _forward(
    given: Sequence[Handle], axes: Sequence[Axis], post_ops: Sequence[tuple[str, Sequence[Any]]] = ()
) -> Handle:
    x, filter, y = given
    operands = FORWARD, DIRECT, x, filter, None, y
    return library().primitive_descriptor(
        "convolution_forward", *operands, *_windows(axes), post_ops=post_ops
    )


def _pooling_work(x: Layout, y: Layout, axes: tuple[Axis, ...]) -> int:
    return math.prod(x.shape)


@_primitive(_pooling_work)
def mean_pooling(x: Layout, y: Layout, axes: tuple[Axis, ...]) -> _Plan:
    """The mean of each window over its elements inside ``x``."""
    return lambda given: _pooled(given, axes), (_Operand(SOURCE, x), _Operand(TARGET, y, True))


@_primitive(_pooling_work)
def mean_pooling_gradient(x: Layout, y: Layout, axes: tuple[Axis, ...]) -> _Plan:
    """The gradient of ``x`` from that of ``y``."""

    def describe(given: list[Handle]) -> Handle:
        windows, hint = _pooling_windows(axes), _pooled(given, axes)
        return library().primitive_descriptor("pooling_backward", MEAN_INSIDE, *given, *windows, hint)

    return describe, (_Operand(SOURCE_GRADIENT, x, True), _Operand(TARGET_GRADIENT, y))


def _pooled(given: Sequence[Handle], axes: Sequence[Axis]) -> Handle:
    windows = _pooling_windows(axes)
    return library().primitive_descriptor("pooling_forward", FORWARD, MEAN_INSIDE, *given, *windows)


def _normalization_work(x: Layout, channels: Layout, epsilon: float, is_training: bool) -> int:
    return NORMALIZATION_WORK * math.prod(x.shape)


@_primitive(_normalization_work)
def batch_normalization(x: Layout, channels: Layout, epsilon: float, is_training: bool) -> _Plan:
    """``y`` of ``x`` and its layout, ``scale`` and ``shift``, by channel, with ``mean`` and ``variance``,
    which are computed if it ``is_training``; call it with x, scale, shift, mean, variance, y.
    """
    vectors = [_Operand(SCALE, channels), _Operand(SHIFT, channels)]
    vectors += [_Operand(MEAN, channels, is_training), _Operand(VARIANCE, channels, is_training)]

    def describe(given: list[Handle]) -> Handle:
        return _normalized(given[0], epsilon, is_training)

    return describe, (_Operand(SOURCE, x), *vectors, _Operand(TARGET, x, True))


@_primitive(_normalization_work)
def batch_normalization_gradient(x: Layout, channels: Layout, epsilon: float, is_training: bool) -> _Plan:
    """The gradients of x, scale and shift: call it with the gradient of y, x, scale, mean, variance, and the
    gradients. The statistics depend on x if it ``is_training``.
    """

    def describe(given: list[Handle]) -> Handle:
        layout, hint = given[0], _normalized(given[0], epsilon, is_training)
        parameters = ctypes.c_float(epsilon), _normalization_flags(is_training), hint
        kind = "batch_normalization_backward"
        return library().primitive_descriptor(kind, BACKWARD, layout, layout, layout, *parameters)

    return describe, (
        _Operand(TARGET_GRADIENT, x),
        _Operand(SOURCE, x),
        _Operand(SCALE, channels),
        _Operand(MEAN, channels),
        _Operand(VARIANCE, channels),
        _Operand(SOURCE_GRADIENT, x, True),
        _Operand(SCALE_GRADIENT, channels, True),
        _Operand(SHIFT_GRADIENT, channels, True),
    )


def _normalized(x: Handle, epsilon: float, is_training: bool) -> Handle:
    parameters = ctypes.c_float(epsilon), _normalization_flags(is_training)
    return library().primitive_descriptor("batch_normalization_forward", FORWARD, x, x, *parameters)


def _normalization_flags(is_training: bool) -> int:
    return SCALED | SHIFTED | (0 if is_training else GIVEN_STATISTICS)


@_primitive(lambda a, b, c, adds=False: math.prod(c.shape) * a.shape[-1])
def matrix_product(a: Layout, b: Layout, c: Layout, adds: bool = False) -> _Plan:
    """``c`` = ``a @ b``, of matrices or of batches of them, of one rank, which broadcast; or, if it ``adds``,
    ``c`` + ``a @ b``.
    """
    post_ops = [ACCUMULATION] if adds else []

    def describe(given: list[Handle]) -> Handle:
        a, b, c = given
        return library().primitive_descriptor("matmul", a, b, None, c, post_ops=post_ops)

    return describe, (_Operand(SOURCE, a), _Operand(FILTER, b), _Operand(TARGET, c, True))


def _windows(axes: Sequence[Axis]) -> tuple[Any, ...]:
    """Strides, dilations (0 in the library if there is none), padding before and after."""
    return (
        numbers([a.stride for a in axes]),
        numbers([a.dilation - 1 for a in axes]),
        numbers([a.before for a in axes]),
        numbers([a.after for a in axes]),
    )


def _pooling_windows(axes: Sequence[Axis]) -> tuple[Any, ...]:
    strides, dilations, *padding = _windows(axes)
    return strides, numbers([a.taps for a in axes]), dilations, *padding


# --- how they run


class _Operand(NamedTuple):
    """An array of a primitive: its argument number, and the caller's layout."""

    argument: int
    layout: Layout
    is_result: bool = False


class _Copy(NamedTuple):
    """Layout that a primitive requires for an operand: a descriptor, and the copying primitive."""

    operand: int
    descriptor: Address
    copies: Handle
    is_result: bool


@final
class Primitive:
    """A computation on arrays of certain layouts. Thread-safe."""

    def __init__(
        self,
        work: int,
        n_threads: int,
        describe: Callable[[list[Handle]], Handle],
        operands: Sequence[_Operand],
    ) -> None:
        dnnl = library()
        self.work, self.n_threads, self.operands = work, n_threads, operands
        self.given = [operand.layout.descriptor() for operand in operands]
        self.descriptor = describe([o.layout.wanted(d) for o, d in zip(operands, self.given, strict=True)])
        self.implementation = dnnl.implementation(self.descriptor)
        if self.implementation.startswith(REFERENCE):
            raise Unsupported(self.implementation)
        self.handle = dnnl.create("primitive", self.descriptor)
        self.copies = list(filter(None, map(self._copy, range(len(operands)))))
        self.scratchpad = dnnl.scratchpad_descriptor(self.descriptor)
        self._idle: list[Execution] = []

    def __call__(self, *arrays: Array) -> None:
        """Compute the result, one of the ``arrays``, from the others. They have the layouts that the
        primitive was made for.
        """
        try:
            execution = self._idle.pop()
        except IndexError:
            execution = Execution(self)
        for number, array in enumerate(arrays):
            execution.place(number, array.ctypes.data)
        execution.run()
        self._idle.append(execution)

    @property
    def is_current(self) -> bool:
        """Whether one that is made now, in this thread, would use as many threads."""
        return self.n_threads == threads_to_use(self.work)

    def _copy(self, number: int) -> _Copy | None:
        dnnl, operand = library(), self.operands[number]
        given = self.given[number].address
        chosen = dnnl.argument_descriptor(self.descriptor, operand.argument)
        if dnnl.are_equal(given, chosen):
            return None
        ends = (chosen, given) if operand.is_result else (given, chosen)
        dnnl.use_threads(threads_to_use(COPY_WORK * math.prod(operand.layout.shape)))  # those it will run on
        copies = dnnl.create("primitive", dnnl.reorder_descriptor(*ends))
        return _Copy(number, chosen, copies, operand.is_result)


@final
class Execution:
    """A primitive with memory objects: for one thread at a time. It keeps no array alive.

    ``constants`` has the addresses of operands that never change: those of another layout than the primitive
    requires are copied once, here.
    """

    def __init__(self, primitive: Primitive, constants: Mapping[int, int] = NO_CONSTANTS) -> None:
        dnnl = library()
        self.primitive = primitive
        self.stream = dnnl.stream()
        self._memories = [dnnl.memory(given.address) for given in primitive.given]
        self._addresses = [0] * len(self._memories)
        for number, address in constants.items():
            self.place(number, address)
        self._laid_out = {
            copy.operand: self._copied(copy)
            for copy in primitive.copies
            if copy.operand in constants and not copy.is_result
        }
        """Memory of copied constants, by operand."""
        self._copies = [copy for copy in primitive.copies if copy.operand not in self._laid_out]
        descriptors = [copy.descriptor for copy in self._copies]
        if primitive.scratchpad is not None and dnnl.nbytes(primitive.scratchpad):
            descriptors.append(primitive.scratchpad)
        self._inner = [dnnl.memory(descriptor) for descriptor in descriptors]
        ends = np.cumsum([0] + [-(-dnnl.nbytes(d) // ALIGNMENT) * ALIGNMENT for d in descriptors]).tolist()
        *self._offsets, self.nbytes = ends
        """Size of its workspace."""
        self._workspace = 0
        self.steps = self._in_order()
        """Primitives to execute with their arguments: copies in, the primitive, copies out."""

    def _in_order(self) -> list[tuple[Handle, Any]]:
        primitive = self.primitive
        used = {o.argument: m for o, m in zip(primitive.operands, self._memories, strict=True)}
        for number, (memory, _) in self._laid_out.items():
            used[primitive.operands[number].argument] = memory
        if len(self._inner) > len(self._copies):
            used[SCRATCHPAD] = self._inner[-1]
        before: list[tuple[Handle, Any]] = []
        after: list[tuple[Handle, Any]] = []
        for copy, inner in zip(self._copies, self._inner, strict=False):
            outer = self._memories[copy.operand]
            used[primitive.operands[copy.operand].argument] = inner
            ends = (inner, outer) if copy.is_result else (outer, inner)
            step = copy.copies, _arguments({SOURCE: ends[0], TARGET: ends[1]})
            (after if copy.is_result else before).append(step)
        return [*before, (primitive.handle, _arguments(used)), *after]

    def _copied(self, copy: _Copy) -> tuple[Handle, Array]:
        """A constant operand in the layout that the primitive requires, with its memory."""
        dnnl = library()
        memory, array = dnnl.memory(copy.descriptor), new_bytes(dnnl.nbytes(copy.descriptor))
        dnnl.set_address(memory, array.ctypes.data)
        arguments = _arguments({SOURCE: self._memories[copy.operand], TARGET: memory})
        dnnl.execute(copy.copies, self.stream, arguments)
        return memory, array

    def place(self, number: int, address: int) -> None:
        """The array of operand ``number`` is at ``address`` from now on."""
        if address != self._addresses[number]:
            library().set_address(self._memories[number], address)
            self._addresses[number] = address

    def run(self) -> None:
        """Compute the result from the operands, where they were placed."""
        dnnl = library()
        dnnl.use_threads(self.primitive.n_threads)
        if self.nbytes:
            self.place_workspace(WORKSPACE.address(self.nbytes))
        for primitive, arguments in self.steps:
            dnnl.execute(primitive, self.stream, arguments)

    def place_workspace(self, workspace: int) -> None:
        """Use the `nbytes` bytes at this address for its workspace from now on."""
        if workspace != self._workspace:
            for memory, offset in zip(self._inner, self._offsets, strict=True):
                library().set_address(memory, workspace + offset)
            self._workspace = workspace


def _arguments(memories: dict[int, Handle]) -> Any:
    return (ExecutionArgument * len(memories))(
        *[ExecutionArgument(argument, memory.address) for argument, memory in memories.items()]
    )
