"""Machine code as built-in functions of Python.

A call through `ctypes` takes 390 ns; a built-in function takes 30, or 60 if it releases the GIL (Python
3.11). So the wrapper that Python calls is machine code too, compiled once: it unpacks the arguments from
their Python objects and calls the loop, with its address as the function's ``self``. It uses only CPython's
stable ABI.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Mapping
from string import Template
from typing import Any, Protocol, final

from flowrt.loops.llvm_text import with_fields


class LoopCall(Protocol):
    """A loop as a built-in function. For arguments other than three 64-bit integers it calls nothing, and
    raises `TypeError`, `OverflowError` or `SystemError`.
    """

    __self__: LoopAddress

    def __call__(self, table_address: int, begin: int, end: int, /) -> None: ...


METHODS = ("without_gil", "holding_gil")
"""The two `PyMethodDef` that `TEXT` defines: structures that a built-in function is made of."""

_PYTHON = (
    "PyErr_BadArgument",
    "PyErr_Occurred",
    "PyEval_RestoreThread",
    "PyEval_SaveThread",
    "PyLong_AsLongLong",
    "PyLong_AsVoidPtr",
    "Py_IncRef",
)

_HEAD = """
@_Py_NoneStruct = external global i8
@name = private constant [5 x i8] c"call\\00"
declare void @PyErr_BadArgument()
declare ptr @PyErr_Occurred()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyEval_SaveThread()
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare void @Py_IncRef(ptr)
"""

# 128 is METH_FASTCALL: the arguments are passed as an array.
_METHOD = Template(
    with_fields("""
@$method = global { ptr, ptr, i32, ptr } { ptr @name, ptr @call_$method, i32 128, ptr null }

define ptr @call_$method(ptr %self, ptr %arguments, i64 %count) nounwind {
  %is_three = icmp eq i64 %count, 3
  br i1 %is_three, label %convert, label %refuse
refuse:
  call void @PyErr_BadArgument()
  ret ptr null
convert:
  %loop = call ptr @PyLong_AsVoidPtr(ptr %self)
  %argument0 = load ptr, ptr %arguments
  %table = call ptr @PyLong_AsVoidPtr(ptr %argument0)
  %argument1 = field ptr, ptr, ptr %arguments, i64 1
  %begin = call i64 @PyLong_AsLongLong(ptr %argument1)
  %argument2 = field ptr, ptr, ptr %arguments, i64 2
  %end = call i64 @PyLong_AsLongLong(ptr %argument2)
  %error = call ptr @PyErr_Occurred()
  %is_fine = icmp eq ptr %error, null
  br i1 %is_fine, label %run, label %raise
raise:
  ret ptr null
run:
  $before
  call void %loop(ptr %table, i64 %begin, i64 %end)
  $after
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
}
""")
)

TEXT = (
    _HEAD
    + _METHOD.substitute(method="holding_gil", before="", after="")
    + _METHOD.substitute(
        method="without_gil",
        before="%thread = call ptr @PyEval_SaveThread()",
        after="call void @PyEval_RestoreThread(ptr %thread)",
    )
)
"""LLVM IR that defines `METHODS`, and needs `python_symbols`."""


def python_symbols() -> dict[str, int]:
    """The addresses of the CPython symbols that `TEXT` uses."""
    functions = {name: getattr(ctypes.pythonapi, name) for name in _PYTHON}
    addresses = {name: ctypes.cast(found, ctypes.c_void_p).value or 0 for name, found in functions.items()}
    return addresses | {"_Py_NoneStruct": id(None)}


@final
class Library:
    """Linked machine code, by a ``number``: the addresses of its symbols, there as long as the ``compiler``
    that it keeps. At its end ``dropped`` gets the number. What LLVM has of it is not here: garbage that is a
    cycle is finalised in any order, by any thread.
    """

    def __init__(self, number: int, addresses: Mapping[str, int], compiler: Any, dropped: deque[int]) -> None:
        self._number, self._addresses = number, addresses
        self._compiler, self._dropped = compiler, dropped

    def __getitem__(self, symbol: str) -> int:
        return self._addresses[symbol]

    def __del__(self) -> None:
        self._dropped.append(self._number)


@final
class LoopAddress(int):
    """The address of a loop: an integer that keeps the library there."""

    library: Library

    @classmethod
    def of(cls, library: Library, symbol: str) -> LoopAddress:
        address = cls(library[symbol])
        address.library = library
        return address


def built_in(method_address: int, loop: LoopAddress) -> LoopCall:
    """The built-in function for ``loop``, which it keeps, by the `PyMethodDef` at ``method_address``."""
    return _new_function(method_address, loop, None)


_new_function: Any = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)
