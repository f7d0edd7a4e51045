"""Paths inside TensorFlow, such as ``tensorflow.python.framework.ops``, as modules of flowrt without files.

A table has a line ``package: modules -> sources`` for modules of the same sources: paths below flowrt in the
order of looking up, "flowrt" for flowrt. The modules look up names when they are asked for them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from flowrt.tf1.missing_names import missing_name

Renamed = Mapping[str, Mapping[str, str]]
"""Names of a path that differ from those of its sources."""

_ABSENT = object()


class InnerPath(ModuleType):
    """One path below flowrt: a module with the names of ``sources``."""

    def __init__(self, path: str, sources: str, renamed: Mapping[str, str]) -> None:
        super().__init__(f"flowrt.{path}", f"Names of {sources or 'the modules below'}.")
        self.__path__: list[str] = []  # makes it a package: imports of missing paths reach the finders
        self._path, self._sources, self._renamed = path, sources.split(), renamed

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return dir(self)
        if not name.startswith("__") or name == "__version__":
            wanted = self._renamed.get(name, name)
            for source in self._found():
                try:
                    return getattr(source, wanted)
                except (AttributeError, ImportError):  # the latter from a source, in "from path import name"
                    continue
        raise missing_name(self._path, name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function that has the path's own last name: TensorFlow's package has it in the place of
        the module, as with ``from tensorflow.contrib.framework.python.ops import arg_scope``.
        """
        return getattr(self, self._path.rpartition(".")[2])(*arguments, **options)

    def __dir__(self) -> list[str]:
        names = {
            name for source in self._found() for name in getattr(source, "__all__", None) or dir(source)
        } | self.__dict__.keys()
        return sorted(n for n in names | self._renamed.keys() if not n.startswith("_"))

    def _found(self) -> Iterator[Any]:
        """The sources that there are."""
        for source in self._sources:
            found: Any = sys.modules["flowrt"]
            for part in source.split(".") if source != "flowrt" else ():
                found = getattr(found, part, _ABSENT)
            if found is not _ABSENT:
                yield found


def read_paths(table: str) -> dict[str, str]:
    """The sources of each path of ``table``; packages have none."""
    sources: dict[str, str] = {}
    for line in table.replace("\n    ", " ").strip().splitlines():
        package, modules, found = re.split(r":|->", line)
        sources.setdefault(package, "")
        sources |= {f"{package}.{module}".lstrip("."): found.strip() for module in modules.split()}
    sources.pop("", None)
    return sources


def make_paths(root: str, sources: Mapping[str, str], renamed: Renamed) -> None:
    """Put every path below ``flowrt.root``, or below flowrt, into `sys.modules` and into its package."""
    for path, found in sorted(sources.items()):
        module = InnerPath(f"{root}.{path}".lstrip("."), found, renamed.get(path, {}))
        parent, _, last = module.__name__.rpartition(".")
        sys.modules[module.__name__] = module
        setattr(sys.modules[parent], last, module)
        vars(sys.modules[parent]).setdefault("__path__", [])  # for imports by another name, tensorflow's
