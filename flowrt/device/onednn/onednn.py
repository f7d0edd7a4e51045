"""oneDNN, a library of convolutions and matrix products, through its C API of version 3: the only module that
loads it.

It is part of the package ``onednn-cpu-gomp`` (extra ``onednn``) and is loaded when a plan first needs it. It
is optional, and not used in another version or with ``FLOWRT_ONEDNN=off``.

Its threads are those of OpenMP (libgomp), `flowrt.device.llvm.host_pool.num_threads` of them. Their waiting
policy affects everything else (2 cores): if they spin forever, a NumPy product between two convolutions takes
4.0 ms instead of 1.4; if they sleep at once, waking them takes as long as a small product. So they spin for
0.1 ms, unless the user's environment overrides it. OpenBLAS's threads, by default
(`flowrt.device.host.host_blas`), spin for 25 ms after a product, and a following convolution takes 6.8 ms
instead of 3.2: this is why oneDNN computes matrix products too.

The names here are the library's: a primitive is a prepared computation, a descriptor its parameters.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, TypeAlias, final

from flowrt.device.llvm.host_pool import num_threads
from flowrt.errors import FailedPreconditionError, InternalError, InvalidArgumentError, ResourceExhaustedError

LOGGER = logging.getLogger(__name__)

PACKAGE, LIBRARY = "onednn-cpu-gomp", "libdnnl.so.3"
VERSION = 3
"""The C API changed from 2 to 3; within 3 it only grows."""

VARIABLE = "FLOWRT_ONEDNN"
SWITCH = {"on": True, "off": False, "1": True, "0": False}
"""Whether oneDNN may be used, by the variable's value, case-insensitively."""

SPINS = "5000"
"""Number of spins of a waiting libgomp thread before it sleeps: 0.1 ms."""

SUCCESS, OUT_OF_MEMORY, INVALID_ARGUMENTS, UNIMPLEMENTED = range(4)
"""dnnl_status_t"""

CPU, IN_ORDER, FLOAT32, ANY_LAYOUT, USER_SCRATCHPAD = 1, 1, 3, 1, 1
"""Values of dnnl_engine_kind_t, dnnl_stream_flags_t, dnnl_data_type_t, dnnl_format_tag_t,
dnnl_scratchpad_mode_t.
"""

QUERY_IMPLEMENTATION, QUERY_SCRATCHPAD, QUERY_ARGUMENT = 8, 136, 255
"""Values of dnnl_query_t: impl_info_str, scratchpad_md, exec_arg_md."""

ARGUMENT_OF_POST_OP, SECOND_SOURCE = 1 << 15, 2
"""DNNL_ARG_ATTR_MULTIPLE_POST_OP_BASE, DNNL_ARG_SRC_1"""

MAX_RANK = 12

MIN_SHARED = 1 << 23
"""Multiplications that threads share: 0.1 ms of one. On a busy machine they wait for each other: an LSTM of
half as large products took 110 ms where they were shared, and BLAS 53.
"""

Address: TypeAlias = "int | None"

_ORDER, _SIZE, _SCALAR, _MATRIX = (
    ctypes.c_char,
    ctypes.c_int64,
    ctypes.c_float,
    (ctypes.c_void_p, ctypes.c_int64),
)

SGEMM = (_ORDER, _ORDER, _SIZE, _SIZE, _SIZE, _SCALAR, *_MATRIX, *_MATRIX, _SCALAR, *_MATRIX)
"""dnnl_sgemm(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)"""


class Unsupported(Exception):
    """The library has no such primitive."""


class ExecutionArgument(ctypes.Structure):
    """dnnl_exec_arg_t: which argument of a primitive a memory is."""

    _fields_ = (("argument", ctypes.c_int), ("memory", ctypes.c_void_p))


class _Version(ctypes.Structure):
    """dnnl_version_t"""

    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int))


@final
class Handle:
    """An object of the library, destroyed with this one."""

    __slots__ = ("_destroy", "address")

    def __init__(self, address: Address, destroy: Callable[[Address], object]) -> None:
        self.address, self._destroy = address, destroy

    def __del__(self) -> None:
        self._destroy(self.address)


def is_switched_on() -> bool:
    """Whether ``FLOWRT_ONEDNN`` lets oneDNN be used; by default it does. Raises `InvalidArgumentError`."""
    said = os.environ.get(VARIABLE) or "on"
    if said.lower() not in SWITCH:
        raise InvalidArgumentError(f"{VARIABLE}: expected one of {', '.join(SWITCH)}; got {said!r}")
    return SWITCH[said.lower()]


def is_available() -> bool:
    """Whether oneDNN can be used. The first call loads it (20 ms), or logs why it cannot: as a
    warning where the package is installed.
    """
    return why_unavailable() is None


@cache
def why_unavailable() -> str | None:
    """Reason why oneDNN is not used, or None. Raises as `is_switched_on`."""
    if not is_switched_on():
        return f"{VARIABLE}={os.environ[VARIABLE]} switches it off"
    try:
        library()
    except (FailedPreconditionError, InternalError) as error:
        level = logging.WARNING if is_installed() else logging.INFO
        LOGGER.log(level, "convolutions and products are computed without oneDNN: %s", error)
        return str(error)
    return None


def why_unusable() -> str | None:
    """Reason why oneDNN, installed and switched on, cannot be used, or None. Raises as `is_switched_on`."""
    return why_unavailable() if is_switched_on() and is_installed() else None


def is_installed() -> bool:
    try:
        distribution(PACKAGE)
    except PackageNotFoundError:
        return False
    return True


def version() -> str:
    """Version of the library, as "3.2.0". Raises `FailedPreconditionError` if there is none."""
    return library().version


@cache
def library() -> Library:
    """oneDNN, loaded once. Raises `FailedPreconditionError` where it is not there or not to be used."""
    path = _path()
    try:
        with _short_spins():
            return Library(path)
    except (OSError, AttributeError) as error:
        raise FailedPreconditionError(f"oneDNN: expected a library of version {VERSION}; {error}") from error


def _path() -> str:
    """Path of the library in the package, which is not on the library search path."""
    try:
        files = distribution(PACKAGE).files or ()
    except PackageNotFoundError:
        raise FailedPreconditionError(
            f"oneDNN: expected the package {PACKAGE}; it is not installed. Install flowrt[onednn]"
        ) from None
    found = [Path(str(file.locate())) for file in files if file.name == LIBRARY]
    if not found:
        raise FailedPreconditionError(
            f"oneDNN: expected {LIBRARY} in the package {PACKAGE}; it has none. Reinstall flowrt[onednn]"
        )
    return str(found[0].resolve())


@contextmanager
def _short_spins() -> Iterator[None]:
    """libgomp reads its environment when it is loaded."""
    if "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = SPINS
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]


@final
class Library:
    """The functions of the library that flowrt uses, and an engine: the processor.

    Creating functions raise `Unsupported` for unsupported parameters; all others, and all of them when memory
    is short, a flowrt error.
    """

    def __init__(self, path: str) -> None:
        self._functions, self._quick = ctypes.CDLL(path), ctypes.PyDLL(path)
        """The library twice: the first releases the GIL during a call, which costs 0.1 us, or up to 5 ms if
        another thread computes in Python.
        """
        self.version = _checked_version(self._functions)
        self._set_threads = ctypes.PyDLL(path).omp_set_num_threads
        self._quick.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
        self._quick.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        self._execute = self._functions.dnnl_primitive_execute
        self._execute.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
        self._set_address = self._quick.dnnl_memory_set_data_handle
        self._set_address.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self._sgemm = self._functions.dnnl_sgemm
        self._sgemm.argtypes = SGEMM
        self._engine = self.create("engine", CPU, ctypes.c_size_t(0))
        self._attributes = self._new_attributes()

    # --- objects

    def create(self, kind: str, *arguments: Any) -> Handle:
        """The result of ``dnnl_<kind>_create(&object, *arguments)``. Handles are passed as their objects."""
        return self._made(f"dnnl_{kind}_create", f"dnnl_{kind}_destroy", arguments)

    def descriptor(self, shape: Sequence[int], strides: Sequence[int] | None) -> Handle:
        """Descriptor of a float32 array; without ``strides``, in elements, the library chooses the layout."""
        rank, destroy = len(shape), "dnnl_memory_desc_destroy"
        if strides is None:
            arguments: tuple[Any, ...] = (rank, numbers(shape), FLOAT32, ANY_LAYOUT)
            return self._made("dnnl_memory_desc_create_with_tag", destroy, arguments)
        arguments = (rank, numbers(shape), FLOAT32, numbers(strides))
        return self._made("dnnl_memory_desc_create_with_strides", destroy, arguments)

    def primitive_descriptor(
        self, kind: str, *arguments: Any, post_ops: Sequence[tuple[str, Sequence[Any]]] = ()
    ) -> Handle:
        """Descriptor of a ``kind`` of primitive with a scratchpad from the caller, on this processor.
        ``post_ops`` follow it: a kind, and its parameters, each.
        """
        create, destroy = f"dnnl_{kind}_primitive_desc_create", "dnnl_primitive_desc_destroy"
        attributes = self._new_attributes(post_ops) if post_ops else self._attributes
        return self._made(create, destroy, (self._engine, *arguments, attributes))

    def _new_attributes(self, post_ops: Sequence[tuple[str, Sequence[Any]]] = ()) -> Handle:
        attributes = self.create("primitive_attr")
        address = ctypes.c_void_p(attributes.address)
        mode = self._quick.dnnl_primitive_attr_set_scratchpad_mode
        _check("scratchpad mode", mode(address, USER_SCRATCHPAD))
        if post_ops:
            chain = self.create("post_ops")
            for kind, parameters in post_ops:
                self._append(chain, kind, parameters)
            set_chain = self._quick.dnnl_primitive_attr_set_post_ops
            _check("post-ops", set_chain(address, ctypes.c_void_p(chain.address)))
        return attributes

    def _append(self, chain: Handle, kind: str, parameters: Sequence[Any]) -> None:
        append = getattr(self._quick, f"dnnl_post_ops_append_{kind}")
        taken = [ctypes.c_void_p(p.address) if isinstance(p, Handle) else p for p in parameters]
        status = append(ctypes.c_void_p(chain.address), *taken)
        if status in (INVALID_ARGUMENTS, UNIMPLEMENTED):
            raise Unsupported(kind)
        _check(kind, status)

    def reorder_descriptor(self, source: Address, target: Address) -> Handle:
        """Descriptor of a primitive that copies from one layout to another."""
        ends = ctypes.c_void_p(source), self._engine, ctypes.c_void_p(target), self._engine
        return self._made(
            "dnnl_reorder_primitive_desc_create", "dnnl_primitive_desc_destroy", (*ends, self._attributes)
        )

    def memory(self, descriptor: Address) -> Handle:
        """A memory object without memory: see `set_address`."""
        return self.create("memory", ctypes.c_void_p(descriptor), self._engine, None)

    def stream(self) -> Handle:
        return self.create("stream", self._engine, IN_ORDER)

    def _made(self, create: str, destroy: str, arguments: Sequence[Any]) -> Handle:
        made = ctypes.c_void_p()
        taken = [ctypes.c_void_p(a.address) if isinstance(a, Handle) else a for a in arguments]
        status = getattr(self._functions, create)(ctypes.byref(made), *taken)
        if status in (INVALID_ARGUMENTS, UNIMPLEMENTED):
            raise Unsupported(create)
        _check(create, status)
        end = getattr(self._quick, destroy)
        end.argtypes = (ctypes.c_void_p,)
        return Handle(made.value, end)

    # --- questions

    def argument_descriptor(self, primitive_descriptor: Handle, argument: int) -> Address:
        """The layout of one of a primitive's arguments, which belongs to the descriptor."""
        return self._query(primitive_descriptor, QUERY_ARGUMENT, argument)

    def scratchpad_descriptor(self, primitive_descriptor: Handle) -> Address:
        return self._query(primitive_descriptor, QUERY_SCRATCHPAD, 0)

    def _query(self, primitive_descriptor: Handle, what: int, index: int) -> Address:
        query = self._quick.dnnl_primitive_desc_query_md
        return query(ctypes.c_void_p(primitive_descriptor.address), what, index)

    def implementation(self, primitive_descriptor: Handle) -> str:
        """The name of the library's code for it: "jit:avx512_core", "ref:any"."""
        name = ctypes.c_char_p()
        query = self._quick.dnnl_primitive_desc_query
        address = ctypes.c_void_p(primitive_descriptor.address)
        _check("query", query(address, QUERY_IMPLEMENTATION, 0, ctypes.byref(name)))
        return (name.value or b"").decode()

    def nbytes(self, descriptor: Address) -> int:
        return self._quick.dnnl_memory_desc_get_size(ctypes.c_void_p(descriptor))

    def are_equal(self, one: Address, other: Address) -> bool:
        equal = self._quick.dnnl_memory_desc_equal
        return bool(equal(ctypes.c_void_p(one), ctypes.c_void_p(other)))

    # --- work

    def set_address(self, memory: Handle, address: int) -> None:
        status = self._set_address(memory.address, address)
        if status:
            _check("dnnl_memory_set_data_handle", status)

    def execute(self, primitive: Handle, stream: Handle, arguments: Any) -> None:
        """Run a primitive, without the GIL. ``arguments``: a ctypes array of `ExecutionArgument`."""
        status = self._execute(primitive.address, stream.address, len(arguments), arguments)
        if status:
            self.check_execution(status)

    def check_execution(self, status: int) -> None:
        """Raise the error that a primitive's ``status`` is."""
        _check("dnnl_primitive_execute", status)

    @property
    def execute_address(self) -> int:
        """The address of dnnl_primitive_execute, for machine code."""
        return ctypes.cast(self._execute, ctypes.c_void_p).value or 0

    def multiply(self, *arguments: Iterable[Any]) -> None:
        """Run dnnl_sgemm, which is BLAS's for matrices by rows, without the GIL, as often as there are values
        of its ``arguments``.
        """
        _check("dnnl_sgemm", max(map(self._sgemm, *arguments), default=SUCCESS))

    def use_threads(self, count: int) -> None:
        """Make primitives created or run by this thread use ``count`` threads, from this call on: others set
        the number, too, such as the end of a ``threadpoolctl.threadpool_limits``, of whatever library.
        """
        self._set_threads(count)


def threads_to_use(work: int) -> int:
    """Number of threads for ``work`` multiplications of this thread. After a fork, libgomp waits forever for
    the parent's threads if the surviving thread requests more than one.
    """
    return 1 if work < MIN_SHARED or threading.get_ident() == _forked_thread else num_threads()


def numbers(values: Sequence[int]) -> Any:
    """dnnl_dims_t. Raises `Unsupported` for more than `MAX_RANK`."""
    if len(values) > MAX_RANK:
        raise Unsupported("rank")
    return (ctypes.c_int64 * MAX_RANK)(*values)


def _checked_version(functions: Any) -> str:
    get = functions.dnnl_version
    get.restype = ctypes.POINTER(_Version)
    found = get().contents
    if found.major != VERSION:
        raise FailedPreconditionError(f"oneDNN: expected version {VERSION}; got {found.major}.{found.minor}")
    return f"{found.major}.{found.minor}.{found.patch}"


def _check(what: str, status: int) -> None:
    if status == OUT_OF_MEMORY:
        raise ResourceExhaustedError(f"oneDNN: expected memory for {what}; got none")
    if status != SUCCESS:
        raise InternalError(f"oneDNN: expected {what} to succeed; got status {status}")


_forked_thread: int | None = None


def _begin_in_child() -> None:
    global _forked_thread  # noqa: PLW0603 (one per process)
    if library.cache_info().currsize:
        _forked_thread = threading.get_ident()


os.register_at_fork(after_in_child=_begin_in_child)
