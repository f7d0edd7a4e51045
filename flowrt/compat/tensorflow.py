"""The name ``tensorflow`` for flowrt: programs written for TensorFlow 1 run with no line changed.

    flowrt.compat.tensorflow.install()
    import tensorflow as tf                        # a view of flowrt, with the names of before TensorFlow 1.0
    from tensorflow.python.framework import ops    # flowrt.python.framework.ops itself

    from keras.layers.core import Dense            # flowrt.keras.layers.Dense, where Keras is not installed

``flowrt-tf1 script.py`` does the same for a script from the command line. Nothing else installs the finder,
and one process has either TensorFlow or the alias. A module `flowrt.x` is `tensorflow.x` itself; only the
modules that had other names before TensorFlow 1.0 are views, so that flowrt's own stay without them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from flowrt.compat import before_one
from flowrt.errors import AlreadyExistsError
from flowrt.train.checkpoints.saver import Saver

__all__ = ["install", "uninstall"]

ROOT, KERAS = "tensorflow", "keras"


def install() -> None:
    """Make ``import tensorflow``, and imports of what is below it, find flowrt; again it does nothing.

    Raises `AlreadyExistsError` if TensorFlow itself is imported.
    """
    if _FINDER in sys.meta_path:
        return
    if ROOT in sys.modules:
        where = getattr(sys.modules[ROOT], "__file__", None)
        raise AlreadyExistsError(
            f"install: expected a process without TensorFlow; it is imported from {where}"
        )
    sys.meta_path.insert(0, _FINDER)  # before the one that would look for files below flowrt
    Saver.writes_meta_graphs = True


def uninstall() -> None:
    """Undo `install`: later imports find TensorFlow, if it is there. What was imported stays usable."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
        Saver.writes_meta_graphs = False
        for name in [name for name in sys.modules if _is_below(name)]:
            del sys.modules[name]


def _is_below(name: str) -> bool:
    """Whether ``name`` is TensorFlow's, or Keras's where that is not installed."""
    top = name.partition(".")[0]
    return top == ROOT or (top == KERAS and not _is_installed(KERAS))


@functools.cache
def _is_installed(name: str) -> bool:
    """Whether there is a module ``name``: a folder without an ``__init__.py`` is none."""
    spec = PathFinder.find_spec(name)
    return spec is not None and spec.loader is not None


class View(ModuleType):
    """``tensorflow``, or a module below it: the names of ``before_one`` and those of flowrt's module."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{ROOT}.{path}".strip("."), f"flowrt.{path}".strip("."))
        self.__path__: list[str] = []
        self._path = path
        if not path:
            self.__version__ = before_one.look_up(
                ""
            ).VERSION  # without "+flowrt": scripts make integers of its parts

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        path = f"{self._path}.{name}".strip(".")
        if path in before_one.NAMES:
            return _view(path)
        found = before_one.NAMES[self._path].get(name)
        if found is None:
            return getattr(before_one.look_up(self._path), name)
        return before_one.look_up(found) if isinstance(found, str) else found

    def __dir__(self) -> list[str]:
        return sorted({*dir(before_one.look_up(self._path)), *before_one.NAMES[self._path]})


@functools.cache
def _view(path: str) -> View:
    """The view of ``flowrt.path``: one in a process, however it is reached."""
    return View(path)


class _Finder(MetaPathFinder, Loader):
    """Finds `tensorflow` and what is below it; the loaded module is flowrt's own, or a `View`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if _is_below(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = _module(module.__name__)  # which the import system then returns


def _module(name: str) -> ModuleType:
    """The module for the import of ``name``. Raises `ModuleNotFoundError` that says what is nearest."""
    if name == KERAS:
        return before_one.look_up("python.keras")
    path = name.removeprefix(ROOT).lstrip(".")
    if path in before_one.NAMES:
        return _view(path)
    parent, _, last = name.rpartition(".")
    try:
        found = getattr(sys.modules[parent], last)
    except (AttributeError, ImportError) as error:
        raise ModuleNotFoundError(str(error), name=name) from None
    if not isinstance(found, ModuleType):
        raise ModuleNotFoundError(f"{name}: expected a module; it is {found!r:.60}", name=name)
    return found


_FINDER = _Finder()
