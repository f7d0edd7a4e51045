"""Importing this module defines every op."""

import importlib as _i
import pkgutil as _p

import flowrt.graph.ops as _ops

for _m in _p.iter_modules(_ops.__path__):
    if _m.name != "all":
        _i.import_module("flowrt.graph.ops." + _m.name)
