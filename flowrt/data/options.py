"""`Options` of a dataset, under TensorFlow's names."""

from __future__ import annotations

from typing import Any


class _Choices:
    """Settings with None for "not chosen". An attribute that is no setting raises `AttributeError`."""

    _NAMES: tuple[str, ...] = ()

    def __init__(self) -> None:
        for name in self._NAMES:
            object.__setattr__(self, name, None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._NAMES:
            raise AttributeError(f"{type(self).__name__}: expected one of {list(self._NAMES)}; got {name!r}")
        object.__setattr__(self, name, value)


class DistributeOptions(_Choices):
    """The division of a dataset between workers. `Dataset.with_options` takes only the default."""

    _NAMES = ("auto_shard", "num_devices")


class ThreadingOptions(_Choices):
    """Threads of a dataset. Accepted: threads are those of `Dataset.map` and `Dataset.prefetch`."""

    _NAMES = ("max_intra_op_parallelism", "private_threadpool_size")


class OptimizationOptions(_Choices):
    """Rewrites of a dataset. Accepted: flowrt's never change the elements."""

    _NAMES = (
        "apply_default_optimizations", "autotune", "autotune_algorithm", "autotune_buffers",
        "autotune_cpu_budget", "filter_fusion", "filter_with_random_uniform_fusion", "hoist_random_uniform",
        "map_and_batch_fusion", "map_and_filter_fusion", "map_fusion", "map_parallelization",
        "map_vectorization", "noop_elimination", "parallel_batch", "shuffle_and_repeat_fusion",
    )  # fmt: skip


class Options(_Choices):
    """Options for `Dataset.with_options`.

    They change no element: a dataset is read in a certain order whatever ``experimental_deterministic`` says.

    Example:
        >>> options = tf.data.Options()
        >>> options.experimental_deterministic = False
        >>> tf.data.Dataset.range(3).with_options(options)
        <Dataset of int64[]>
    """

    _NAMES = (
        "experimental_deterministic", "experimental_distribute", "experimental_optimization",
        "experimental_slack", "experimental_stateful_whitelist", "experimental_stats",
        "experimental_threading",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.experimental_distribute = DistributeOptions()
        self.experimental_optimization = OptimizationOptions()
        self.experimental_threading = ThreadingOptions()
