"""A session's settings: `ConfigProto`, `RunOptions` and their parts, under TensorFlow's names.

They are plain records. A field without effect in flowrt is accepted if scripts commonly set it
(``gpu_options``, ``inter_op_parallelism_threads``) and documented as such; an unknown field is an error that
names the nearest one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from flowrt.device.device_kinds import KINDS
from flowrt.device.local_devices import DeviceRequest
from flowrt.errors import InvalidArgumentError, nearest


class _Record:
    """Fields with defaults, set by keyword or attribute, nothing else; a value is of its default's kind."""

    _defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, **fields: Any) -> None:
        for name, default in self._defaults.items():
            value = default() if callable(default) else default
            object.__setattr__(self, name, value)
        for name, value in fields.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            known = ", ".join(self._defaults)
            raise InvalidArgumentError(
                f"{type(self).__name__}: expected a field among {known}; got {name!r}.{self._hint(name)}"
            )
        _check_field(type(self).__name__, name, self._defaults[name], value)
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Called for missing attributes only."""
        raise AttributeError(f"{type(self).__name__} has no field {name!r}.{self._hint(name)}")

    def _hint(self, name: str) -> str:
        return nearest(name, self._defaults)

    def __repr__(self) -> str:
        changed = {n: getattr(self, n) for n in self._defaults}
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in changed.items())})"


_KINDS: dict[type, tuple[str, tuple[type, ...]]] = {
    bool: ("True or False", (bool, np.bool_)),
    int: ("an integer", (int, np.integer)),
    float: ("a number", (int, float, np.number)),
    str: ("a string", (str,)),
    dict: ("a dict like {'CPU': 2}", (dict,)),
    list: ("a list", (list, tuple)),
}


def _check_field(record: str, name: str, default: Any, value: Any) -> None:
    """Raise `InvalidArgumentError` for a value that field ``name`` cannot have. A default None allows all."""
    kind = default if isinstance(default, type) else type(default)
    expected, allowed = _KINDS.get(kind, (f"a {kind.__name__}", (kind,)))
    fits = isinstance(value, allowed) and (kind is bool or not isinstance(value, bool))
    if fits and name in _RULES:
        expected, is_kept = _RULES[name]
        fits = is_kept(value)
    if default is not None and not fits:
        raise InvalidArgumentError(f"{record} {name}: expected {expected}; got {value!r}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_count(device_type: Any, count: Any) -> bool:
    return isinstance(device_type, str) and _is_integer(count) and bool(count >= (device_type == "CPU"))


def _is_divided(gpu: Any) -> bool:
    """Whether ``gpu`` partitions a GPU into several devices."""
    return isinstance(gpu, VirtualDevices) and len(gpu.priority) in (0, len(gpu.memory_limit_mb))


_COUNT: tuple[str, Callable[[Any], bool]] = ("an integer of at least 0", lambda n: bool(n >= 0))

_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "intra_op_parallelism_threads": _COUNT,
    "operation_timeout_in_ms": _COUNT,
    "timeout_in_ms": _COUNT,
    "device_count": (
        "a dict like {'CPU': 2}",
        lambda counts: all(_is_count(*item) for item in counts.items()),
    ),
    "trace_level": ("a level of RunOptions, NO_TRACE (0) to FULL_TRACE (3)", lambda level: level in range(4)),
    "allocator_type": ("'BFC', or '' for the same", lambda name: name in ("", "BFC")),
    "per_process_gpu_memory_fraction": ("a number above 0, up to 1", lambda share: bool(0 < share <= 1)),
    "memory_limit_mb": (
        "a list of integers of at least 1",
        lambda limits: all(_is_integer(n) and n >= 1 for n in limits),
    ),
    "cpu_memory_limit_mb": (
        "a list of integers of at least 0",
        lambda limits: all(_is_integer(n) and n >= 0 for n in limits),
    ),
    "priority": ("a list of integers", lambda priorities: all(map(_is_integer, priorities))),
    "virtual_devices": (
        "a list of VirtualDevices, each with as many priorities as limits or none",
        lambda gpus: all(map(_is_divided, gpus)),
    ),
}
"""Additional conditions on the value of a field, for fields of any record."""


class VirtualDevices(_Record):
    """The devices that one GPU is divided into: ``memory_limit_mb``, the limit of each in MiB."""

    _defaults: ClassVar[Mapping[str, Any]] = {"memory_limit_mb": list, "priority": list}


class GPUExperimental(_Record):
    """``virtual_devices[i]`` divides GPU i, so that several replicas can run on one. ``capture_steps``:
    launch a step that allows it as one CUDA graph.
    """

    VirtualDevices = VirtualDevices
    _defaults: ClassVar[Mapping[str, Any]] = {"virtual_devices": list, "capture_steps": True}


class GPUOptions(_Record):
    """``per_process_gpu_memory_fraction`` bounds a GPU's pool, which grows on demand, and
    ``visible_device_list`` selects CUDA devices to use, ``"1,0"``; empty for all.
    """

    Experimental = GPUExperimental

    _defaults: ClassVar[Mapping[str, Any]] = {
        "per_process_gpu_memory_fraction": 1.0,
        "allow_growth": True,
        "allocator_type": "BFC",
        "visible_device_list": "",
        "force_gpu_compatible": False,
        "polling_active_delay_usecs": 0,
        "deferred_deletion_bytes": 0,
        "experimental": GPUExperimental,
    }


class OptimizerOptions(_Record):
    """``opt_level`` of `L0` (-1) switches the graph optimisations off, `L1` (0) leaves them on."""

    L0, L1 = -1, 0
    OFF, ON_1, ON_2 = -1, 1, 2
    _defaults: ClassVar[Mapping[str, Any]] = {
        "opt_level": L1,
        "do_common_subexpression_elimination": True,
        "do_constant_folding": True,
        "do_function_inlining": True,
        "global_jit_level": 0,
    }


class GraphOptions(_Record):
    """``optimizer_options`` choose the passes; the other fields are accepted and have no effect."""

    _defaults: ClassVar[Mapping[str, Any]] = {
        "optimizer_options": OptimizerOptions,
        "rewrite_options": None,
        "enable_recv_scheduling": False,
        "build_cost_model": 0,
        "infer_shapes": True,
        "place_pruned_graph": True,
        "enable_bfloat16_sendrecv": False,
        "timeline_step": 0,
    }


class Experimental(_Record):
    """``cpu_memory_limit_mb[i]`` bounds the pool of CPU device i in MiB (0: all memory), so that a program
    for devices of little memory can be tried without them.
    """

    _defaults: ClassVar[Mapping[str, Any]] = {"cpu_memory_limit_mb": list}


class ConfigProto(_Record):
    """A session's settings, as keyword arguments.

    Args:
        device_count: The number of devices per type, ``{"CPU": 2}``; the default is one CPU.
        intra_op_parallelism_threads: Threads of BLAS and of loops (process-wide; 0 leaves them unchanged).
        inter_op_parallelism_threads: The maximum number of streams per device, used where that is estimated
            to pay (0: one); 1 also interleaves several CPU devices on the calling thread.
        allow_soft_placement: Whether an op is moved to another device of its job and task if its device does
            not exist or has no kernel for it.
        log_device_placement: Whether each op's device is printed to standard error when a plan is made: in a
            cluster, by the task that the session's target names.
        operation_timeout_in_ms: The deadline, in milliseconds, of runs that set none (0: none).

    Example:
        >>> config = tf.ConfigProto(device_count={'CPU': 2}, intra_op_parallelism_threads=1)
        >>> with tf.Graph(), tf.Session(config=config) as own:
        ...     with tf.device('/cpu:1'):
        ...         value = own.run(tf.constant(2.0) * 3.0)
        >>> value
        np.float32(6.0)
    """

    Experimental = Experimental

    _defaults: ClassVar[Mapping[str, Any]] = {
        "experimental": Experimental,
        "device_count": dict,
        "intra_op_parallelism_threads": 0,
        "inter_op_parallelism_threads": 0,
        "use_per_session_threads": False,
        "allow_soft_placement": False,
        "log_device_placement": False,
        "gpu_options": GPUOptions,
        "graph_options": GraphOptions,
        "operation_timeout_in_ms": 0,
        "isolate_session_state": False,
        "device_filters": list,
    }


class RunOptions(_Record):
    """One run's settings: ``trace_level`` (`NO_TRACE` … `FULL_TRACE`) and ``timeout_in_ms`` (0: none)."""

    NO_TRACE, SOFTWARE_TRACE, HARDWARE_TRACE, FULL_TRACE = range(4)
    _defaults: ClassVar[Mapping[str, Any]] = {
        "trace_level": NO_TRACE,
        "timeout_in_ms": 0,
        "output_partition_graphs": False,
        "inter_op_thread_pool": 0,
        "report_tensor_allocations_upon_oom": False,
    }


def device_request(config: ConfigProto) -> DeviceRequest:
    """The devices requested by ``config``, with types in any case. Raises `InvalidArgumentError` for unknown
    types.
    """
    counts = {kind.upper(): count for kind, count in config.device_count.items()}
    unknown = counts.keys() - KINDS.keys()
    if unknown:
        *types, last = KINDS
        got = ", ".join(sorted(unknown))
        raise InvalidArgumentError(
            f"device_count: expected the types {', '.join(types)} and {last}; got {got}"
        )
    gpu = config.gpu_options
    virtual = gpu.experimental.virtual_devices
    return DeviceRequest(
        counts=counts,
        cpu_memory_limit_mb=config.experimental.cpu_memory_limit_mb,
        num_streams=max(1, config.inter_op_parallelism_threads),
        visible_gpus=gpu.visible_device_list,
        gpu_memory_fraction=gpu.per_process_gpu_memory_fraction,
        virtual_gpu_mb=[v.memory_limit_mb for v in virtual],
        captures_gpu_steps=gpu.experimental.capture_steps,
    )
