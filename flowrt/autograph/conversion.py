"""The adapter of diastatic-malt, which converts the source of a Python function (extra ``autograph``).

The library replaces the control flow in a function's source by calls to functions in `branches`, `loops`,
`variables` and here. The user's functions that a converted function calls are converted too, but not those of
flowrt, the standard library or installed packages. Code that cannot be converted runs unchanged, with a
warning that gives its location; in it a tensor in an ``if`` is an error. Converted code has the user's line
numbers, so tracebacks, warnings and operations show the user's file, and debuggers stop in it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from flowrt.autograph import branches, loops, variables
from flowrt.autograph.experimental import LEFT_ALONE, set_loop_options
from flowrt.autograph.outer_names import functions_in, is_users_code
from flowrt.autograph.python_functions import OVERLOADS
from flowrt.errors import DTypeError, UnimplementedError


def convert(func: Callable[..., Any]) -> Callable[..., Any]:
    """``func`` with its control flow converted; ``func`` itself, with a `RuntimeWarning`, where it cannot be.

    Raises `UnimplementedError` where diastatic-malt is not installed.
    """
    transpiler = _transpiler()
    if isinstance(func, functools.partial):
        return functools.partial(convert(func.func), *func.args, **func.keywords)
    if inspect.ismethod(func):
        return types.MethodType(convert(func.__func__), func.__self__)
    if not inspect.isfunction(func) or func in LEFT_ALONE:
        return func
    reason = _obstacle(func)
    if reason is None:
        try:
            return transpiler(func)
        except Exception as error:  # noqa: BLE001 (the library may raise anything)
            reason = " ".join(str(error).split()) or type(error).__name__
    _warn(func, reason)
    return func


def _obstacle(func: types.FunctionType) -> str | None:
    """The reason why the library cannot convert ``func`` correctly, or None."""
    if inspect.isgeneratorfunction(func) or inspect.iscoroutinefunction(func):
        return "generators and coroutines are not converted"
    if "__class__" in func.__code__.co_freevars:
        return "super() without arguments is not converted"
    return None


def _warn(func: types.FunctionType, reason: str) -> None:
    code = func.__code__
    warnings.warn_explicit(
        f"autograph: {func.__qualname__} ({code.co_filename}:{code.co_firstlineno}) is not converted:"
        f" {reason:.200}",
        RuntimeWarning,
        code.co_filename,
        code.co_firstlineno,
    )


@functools.cache
def _transpiler() -> Callable[[types.FunctionType], Callable[..., Any]]:
    """A function that converts one function and caches the result."""
    try:
        from malt.converters import conditional_expressions
        from malt.core import converter
        from malt.impl import api
        from malt.lang import directives
    except ImportError as error:
        raise UnimplementedError(
            "autograph: expected the package diastatic-malt; it is not installed. Run pip install"
            " diastatic-malt, or install flowrt with the extra 'autograph'"
        ) from error

    class Transpiler(api.PyToPy):  # type: ignore[misc]
        def get_extra_locals(self) -> dict[str, Any]:
            return {"ag__": names}

        def transform_ast(self, node: ast.AST, ctx: Any) -> ast.AST:
            if any(isinstance(part, ast.NamedExpr) for part in ast.walk(node)):
                # the library does not see that these change a variable
                raise UnimplementedError("assignment expressions (:=) are not converted")
            ctx.info.namespace[_LOOP_OPTIONS] = directives.set_loop_options
            _name_directives(node, ctx.info.namespace)
            converted: ast.AST = super().transform_ast(node, ctx)
            while any(isinstance(part, ast.IfExp) for part in ast.walk(converted)):  # one inside another
                converted = conditional_expressions.transform(converted, ctx)
            return converted

    names = types.SimpleNamespace(
        **{**vars(variables), **vars(branches), **vars(loops)},
        converted_call=converted_call,
        autograph_artifact=_artifact,
        ConversionOptions=lambda **_: None,
        Feature=converter.Feature,
    )

    transpiler = Transpiler()
    codes: dict[tuple[str, str], types.CodeType] = {}
    feature = converter.Feature
    features = (feature.EQUALITY_OPERATORS, feature.ASSERT_STATEMENTS, feature.BUILTIN_FUNCTIONS)
    options = converter.ConversionOptions(recursive=True, user_requested=True, optional_features=features)
    context = converter.ProgramContext(options=options)

    def transpile(func: types.FunctionType) -> Callable[..., Any]:
        converted: Callable[..., Any]
        converted, module, origins = transpiler.transform_function(func, context)
        key = (module.__file__, func.__code__.co_filename)
        if key not in codes:
            lines = {line.lineno: origin.loc.lineno for line, origin in origins.items()}
            codes[key] = relocated(converted.__code__, inspect.getsource(module), lines, func.__code__)
        converted.__code__ = codes[key]
        return converted

    return transpile


_LOOP_OPTIONS = "ag__loop_options"
"""The library's directive for `set_loop_options`, by a name that it resolves in every function."""


def _name_directives(node: ast.AST, namespace: dict[str, Any]) -> None:
    """Have calls of `set_loop_options` in ``node`` call the library's directive."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and _value(part.func, namespace) is set_loop_options:
            part.func = ast.Name(_LOOP_OPTIONS, ast.Load())


def _value(name: ast.expr, namespace: dict[str, Any]) -> Any:
    """The value of a name, or of a name in a module; None if known only at run time."""
    if isinstance(name, ast.Name):
        return namespace.get(name.id)
    if isinstance(name, ast.Attribute):
        owner = _value(name.value, namespace)
        return getattr(owner, name.attr, None) if inspect.ismodule(owner) else None
    return None


def _artifact(function: Any) -> Any:
    LEFT_ALONE.add(function)
    return function


def to_graph(
    entity: Callable[..., Any],
    recursive: bool = True,
    arg_values: Any = None,
    arg_types: Any = None,
    experimental_optional_features: Any = None,
) -> Callable[..., Any]:
    """The function ``entity`` with Python's ``if``, ``while`` and ``for`` over tensors as `cond` and
    `while_loop`; of an object that is called, its ``__call__``. What it calls is always converted, too; the
    other arguments are accepted.

    Raises `DTypeError` for what is no function, `UnimplementedError` without diastatic-malt.
    """
    if isinstance(entity, type) or not callable(entity):
        raise DTypeError(f"to_graph: expected a function; got {entity!r:.80}")
    return convert(entity) if inspect.isroutine(entity) else _callee(entity)


def converted_call(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, scope: Any = None) -> Any:
    """A call in converted code; the user's functions are converted."""
    return _callee(f)(*args, **(kwargs or {}))


def _callee(f: Any) -> Any:
    if isinstance(f, functools.partial):
        return functools.partial(_callee(f.func), *f.args, **f.keywords)
    if isinstance(f, types.BuiltinFunctionType | type):
        return OVERLOADS.get(f, f)
    if _is_the_users(f):
        return convert(f)
    call = getattr(type(f), "__call__", None)  # noqa: B004 (the method, not whether there is one)
    if inspect.isfunction(call) and _is_the_users(call):
        return types.MethodType(convert(call), f)
    return f


def _is_the_users(f: Any) -> bool:
    """Whether it is a function (or method) that the user has written, and not converted yet."""
    code = getattr(f, "__code__", None)
    if not isinstance(code, types.CodeType) or getattr(f, "__func__", f) in LEFT_ALONE:
        return False
    return is_users_code(code)


def relocated(
    code: types.CodeType, text: str, lines: Mapping[int, int], user: types.CodeType
) -> types.CodeType:
    """``code``, a function of the module ``text``, as if compiled from the file of ``user``, under its name.

    ``lines`` has the user's line for each line of ``text`` that has one. Added code gets the line before it,
    and there are no columns: those of ``text`` are not the user's.
    """
    tree = ast.parse(text)
    found = _filled_in(lines, user.co_firstlineno, text.count("\n") + 1)
    for node in ast.walk(tree):
        if "lineno" in node._attributes:
            place = vars(node)
            place["lineno"] = place["end_lineno"] = found[place["lineno"]]
            place["col_offset"] = place["end_col_offset"] = -1
    module = compile(tree, user.co_filename, "exec", dont_inherit=True)
    (again,) = (inner for inner in functions_in(module) if inner.co_qualname == code.co_qualname)
    return again.replace(co_name=user.co_name, co_qualname=user.co_qualname)


def _filled_in(lines: Mapping[int, int], first: int, count: int) -> dict[int, int]:
    found, line = {}, first
    for number in range(1, count + 1):
        found[number] = line = lines.get(number, line)
    return found
