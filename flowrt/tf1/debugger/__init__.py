"""``tensorflow.python.debug``: sessions that look into their runs.

dumps       tensors of a run, in memory or as files
watching    which tensors of a run are fetched besides
prompt      the commands that a user types
sessions    wrappers of sessions, and hooks
"""

from flowrt.tf1.debugger.dumps import DebugDumpDir, DebugTensorDatum, has_inf_or_nan
from flowrt.tf1.debugger.sessions import (
    DumpingDebugHook,
    DumpingDebugWrapperSession,
    LocalCLIDebugHook,
    LocalCLIDebugWrapperSession,
)
from flowrt.tf1.debugger.watching import WatchOptions
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "DebugDumpDir", "DebugTensorDatum", "DumpingDebugHook", "DumpingDebugWrapperSession", "LocalCLIDebugHook",
    "LocalCLIDebugWrapperSession", "WatchOptions", "has_inf_or_nan",
]  # fmt: skip

__getattr__ = missing_from("python.debug")
