"""The host's compiler: from LLVM IR of a loop to a function of this process. The only module that imports
llvmlite.

    text -> object code -> linked machine code -> two built-in functions
            12 ms, or      0.2 ms
            0.1 from disk

Measured on 2 cores for a fused exp (0.5 KB of IR, 2 KB of object code). A loop that is already compiled and
in use is shared as one `CompiledLoop`.

Only one thread at a time uses LLVM. A fork waits for that thread: in the child LLVM is consistent, compiled
code can be called, and more can be compiled.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, final
from weakref import WeakValueDictionary

from flowrt.device.llvm import host_call
from flowrt.device.llvm.code_cache import code_cache
from flowrt.device.llvm.host_call import Library, LoopAddress, LoopCall, built_in
from flowrt.errors import FailedPreconditionError, InternalError
from flowrt.loops.llvm_text import FUNCTION

LOGGER = logging.getLogger(__name__)

OLDEST_LLVM = (20,)  # llvmlite 0.45: before, pointers had types

SHOWN_LINES = 8
"""Number of lines of a text that LLVM rejects shown in the error."""


@final
class CompiledLoop:
    """A loop's machine code, freed with this object and its two functions.

    ``call`` releases the GIL (60 ns plus the loop); ``call_holding_gil`` does not (30 ns): reacquiring the
    GIL can take 5 ms if another thread computes in Python, so it is for loops below about 20 us. Thread-safe,
    for separate ranges and operands.
    """

    __slots__ = ("__weakref__", "call", "call_holding_gil")

    def __init__(self, call: LoopCall, call_holding_gil: LoopCall) -> None:
        self.call = call
        self.call_holding_gil = call_holding_gil

    @property
    def address(self) -> int:
        """Address of the machine code."""
        return self.call.__self__


def compile_loop(text: str) -> CompiledLoop:
    """The function of ``text``: LLVM IR of one ``void @flowrt_loop(ptr table, i64 begin, i64 end)``.

    It may call the C and math libraries. Thread-safe. Raises `InternalError`, with LLVM's message, for
    invalid text; `FailedPreconditionError` if `is_available` is false.
    """
    key = hashlib.sha256(text.encode()).digest()
    loop = _loops.get(key)
    if loop is None:
        with _lock:
            loop = _loops.get(key)
            if loop is None:
                loop = _loops[key] = _compiler().compile(text, (FUNCTION,))[FUNCTION]
    return loop


def compile_functions(text: str, names: Sequence[str]) -> dict[str, CompiledLoop]:
    """The functions of LLVM IR that contains several, with a loop's arguments. Like `compile_loop`, but kept
    as long as the process, for all threads that ask for it at once.
    """
    with _lock:
        found = _functions.get(text)
        if found is None:
            found = _functions[text] = _compiler().compile(text, names)
        return found


def is_available() -> bool:
    """Whether this process can compile. The first call loads LLVM, 60 ms, or logs why it cannot:
    as a warning where llvmlite is installed.
    """
    return why_unavailable() is None


@cache
def why_unavailable() -> str | None:
    """Reason why this process cannot compile, or None."""
    with _lock:  # a fork waits: its child would find half of the package
        reason = _what_is_wrong() if is_installed() else "expected the package; it is not installed"
    if reason is None:
        return None
    told = f"llvmlite: {reason}. Install flowrt[jit]"
    LOGGER.log(logging.WARNING if is_installed() else logging.INFO, "loops are not compiled: %s", told)
    return told


def why_unusable() -> str | None:
    """Reason why the installed llvmlite cannot be used, or None."""
    return why_unavailable() if is_installed() else None


def is_installed() -> bool:
    return find_spec("llvmlite") is not None


def _what_is_wrong() -> str | None:
    try:
        import llvmlite.binding as llvm

        llvm.check_jit_execution()
        found = llvm.llvm_version_info
    except Exception as error:  # noqa: BLE001 (a broken installation may raise anything)
        return f"expected to load it; {' '.join(str(error).split())}"
    if found >= OLDEST_LLVM:
        return None
    return f"expected version 0.45 or newer; got one with LLVM {'.'.join(map(str, found))}"


@cache
def vector_registers() -> tuple[int, int]:
    """Vector registers of this processor: the number of float32 in one, and of registers. Raises
    `FailedPreconditionError` if `is_available` is false.
    """
    features = _processor()
    if features.get("avx512f"):
        return 16, 32
    return (8, 16) if features.get("avx") else (4, 32 if features.get("neon") else 16)


@cache
def has_masks() -> bool:
    """Whether vector instructions of this processor have masks, for elements of every size. Raises as
    `vector_registers`.
    """
    features = _processor()
    return bool(features.get("avx512bw") and features.get("avx512vl"))


def _processor() -> Any:
    """The features of this processor, under LLVM's names."""
    with _lock:
        return _load_llvm().get_host_cpu_features()


def _load_llvm() -> Any:
    reason = why_unavailable()
    if reason is not None:
        raise FailedPreconditionError(f"host JIT: expected LLVM; {reason}")
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@final
class _Compiler:
    """LLVM for this machine's processor. All calls are under `_lock`."""

    def __init__(self) -> None:
        self._llvm = _load_llvm()
        self._cpu, self._features = self._llvm.get_host_cpu_name(), _features(self._llvm)
        self._target = self._llvm.Target.from_default_triple().create_target_machine(
            cpu=self._cpu, features=self._features, opt=3, reloc="pic"
        )
        self._jit = self._llvm.create_lljit_compiler(self._target, use_jit_link=True)
        self._python = self._link(host_call.TEXT, host_call.METHODS, host_call.python_symbols(), self._jit)

    def compile(self, text: str, names: Sequence[str]) -> dict[str, CompiledLoop]:
        while _dropped:
            _linked.pop(_dropped.pop())[0].close()
        library = self._link(text, names, {}, self)  # and so the way into its functions
        return {name: self._callable(LoopAddress.of(library, name)) for name in names}

    def _callable(self, loop: LoopAddress) -> CompiledLoop:
        without_gil, holding_gil = (built_in(self._python[method], loop) for method in host_call.METHODS)
        return CompiledLoop(without_gil, holding_gil)

    def _link(self, text: str, exported: Sequence[str], imported: dict[str, int], compiler: Any) -> Library:
        """``text`` as machine code in memory. What it needs the process has, or is in ``imported``."""
        builder = self._llvm.JITLibraryBuilder().add_object_img(self._object_code(text))
        for name in exported:
            builder.export_symbol(name)
        for name, address in imported.items():
            builder.import_symbol(name, address)
        number = next(_numbers)
        try:
            tracker = builder.link(self._jit, f"loop {number}")
        except RuntimeError as error:
            raise _refused(text, error) from error
        _linked[number] = tracker, self._jit
        return Library(number, {name: tracker[name] for name in exported}, compiler, _dropped)

    def _object_code(self, text: str) -> bytes:
        """Object code from disk, otherwise compiled and stored there."""
        key = self._key(text)
        code = code_cache().get(key)
        if code is None:
            code = self._optimised(text)
            code_cache().put(key, code)
        return code

    def _key(self, text: str) -> str:
        """A digest of all that the object code is made of."""
        llvm = self._llvm
        passes = _OPTIMISATIONS, SLOW_PASSES
        parts = (llvm.llvm_version_info, self._target.triple, self._cpu, self._features, passes, text)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def _optimised(self, text: str) -> bytes:
        """Object code of ``text``. Raises `InternalError`."""
        llvm = self._llvm
        try:
            # A separate context: the global one would keep every constant of every loop.
            with llvm.create_context() as context, llvm.parse_assembly(text, context) as module:
                module.triple, module.data_layout = self._target.triple, str(self._target.target_data)
                module.verify()
                builder = llvm.create_pass_builder(self._target, self._options())
                builder.getModulePassManager().run(module, builder)
                with _without_slow_passes(llvm):
                    code: bytes = self._target.emit_object(module)
        except RuntimeError as error:
            raise _refused(text, error) from error
        return code

    def _options(self) -> Any:
        options = self._llvm.create_pipeline_tuning_options()
        for name, value in _OPTIMISATIONS.items():
            setattr(options, name, value)
        return options


_OPTIMISATIONS = {
    "speed_level": 1,
    "loop_interleaving": True,
    "loop_unrolling": False,
    "loop_vectorization": True,
    "slp_vectorization": False,
}
"""The passes that pay for loops, which compute each value once already. With level 3, SLP and strength
reduction the 62 longest loops of BERT-tiny and a transformer run no faster (median 0.997), and compile 1.6
times as long. Unrolled, loops of 3 to 65,536 elements run no faster either (median 0.996), and compile 1.12
times as long.
"""

SLOW_PASSES = {"-disable-lsr": (True, False), "-enable-misched": (False, True)}
"""LLVM's options for passes that are left out, with their values for loops and for others.

Strength reduction of loops turns products of the index into sums: a third of the time that code generation
takes. Processors add a scaled index to an address for nothing. The scheduler orders instructions, as
processors do themselves: a tenth of that time, and the 112 calls of loops in the two models' steps that take
more than 5 us run as fast without it (median 0.99).
"""


@contextmanager
def _without_slow_passes(llvm: Any) -> Iterator[None]:
    """A context without the passes. The options are the process's, so other users of LLVM get them back."""

    def choose(place: int) -> None:
        for option, values in SLOW_PASSES.items():
            llvm.set_option("flowrt", f"{option}={str(values[place]).lower()}")

    choose(0)
    try:
        yield
    finally:
        choose(1)


def _features(llvm: Any) -> str:
    """Features of the processor, under LLVM's names.

    LLVM uses 256 of 512 bits even on processors without a slowdown for wide vectors. Those from Ice Lake on
    have none: a fused exp of 65,536 floats takes 10.9 us with 512 bits and 15.5 with 256.
    """
    features = llvm.get_host_cpu_features()
    wide = ",-prefer-256-bit" if features.get("avx512vbmi2") else ""
    return str(features.flatten()) + wide


def _refused(text: str, error: RuntimeError) -> InternalError:
    lines = text.strip().splitlines()
    shown = "\n".join([f"  {line}" for line in lines[:SHOWN_LINES]])
    return InternalError(
        f"host JIT: expected LLVM IR of one function {FUNCTION}; LLVM says: {error}\n"
        f"The first of {len(lines)} lines:\n{shown}"
    )


# --- state of the process

_lock = threading.RLock()
_loops: WeakValueDictionary[bytes, CompiledLoop] = WeakValueDictionary()
_functions: dict[str, dict[str, CompiledLoop]] = {}
_numbers = itertools.count()
_linked: dict[int, tuple[Any, Any]] = {}
"""LLVM's handles of each library, and the compiler's session that it belongs to, by number."""
_dropped: deque[int] = deque()
"""Unused machine code, freed by the next compile: freeing it at once would make the releasing thread wait for
a running compile.
"""


@cache
def _compiler() -> _Compiler:
    return _Compiler()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
