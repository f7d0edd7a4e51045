"""What is aimed at: the largest ratio of flowrt's median to a peer's that counts as good."""

from __future__ import annotations

import importlib.metadata
from typing import NamedTuple

from benchmarks.timing import MEMORY


class Bar(NamedTuple):
    """flowrt takes at most ``limit`` times what the fastest of ``peers`` takes."""

    limit: float
    peers: tuple[str, ...]


def lenet_limit() -> float:
    """Stricter where oneDNN is installed, which TensorFlow brings along: without it convolutions are matrix
    products of copied windows.
    """
    try:
        importlib.metadata.distribution("onednn-cpu-gomp")
    except importlib.metadata.PackageNotFoundError:
        return 2.4
    return 1.05


def _tf(limit: float) -> Bar:
    return Bar(limit, ("tensorflow",))


def _torch(limit: float) -> Bar:
    return Bar(limit, ("torch",))


def _jax(limit: float) -> Bar:
    return Bar(limit, ("jax",))


BARS: dict[tuple[str, str], tuple[Bar, ...]] = {
    ("noop_run", "run"): (_tf(0.08),),
    ("add_feed_fetch", "run"): (_tf(0.035),),
    ("add_callable", "run"): (Bar(1.0, ("torch",)),),
    ("chain_1000_small_ops", "run"): (Bar(1.0, ("jax", "torch_compile")),),
    ("while_10k", "run"): (_tf(0.004), _jax(2.0)),
    ("while_nested", "run"): (_tf(0.004), _jax(2.0)),
    ("while_cond_1k", "run"): (_tf(0.03), _jax(1.0)),
    ("hops_1000_two_cpus", "run"): (_tf(0.3),),
    ("graph_50k", "build"): (_tf(0.06),),
    ("graph_50k", "first_run"): (_tf(0.1),),
    ("graph_50k", "run"): (_tf(0.9),),
    ("mlp_adam", "step"): (_tf(0.85), _jax(1.0)),
    ("lenet_sgd", "step"): (_tf(lenet_limit()),),
    ("lstm_while_train", "step"): (_tf(0.65), _jax(0.8)),
    ("lstm_tensor_array", "step"): (_tf(0.65),),
    ("lstm_fed_rows", "step"): (_tf(1.1),),
    ("gpt_adam", "first_step"): (_tf(1.0),),
    ("gpt_adam", "step"): (Bar(1.0, ("torch", "torch_compile")),),
    ("resnet20_momentum", "step"): (_tf(1.0),),
    ("resnet20_momentum", MEMORY): (_tf(1.0),),
    ("bert_tiny_adam", "first_20"): (_tf(1.0),),
    ("bert_tiny_adam", "step"): (_tf(0.7),),
    ("bert_tiny_adam", MEMORY): (_tf(1.0),),
    ("transformer_6x128", "first_20"): (_tf(0.7),),
    ("transformer_6x128", MEMORY): (_tf(1.0),),
    ("gelu_sum_16m", "run"): (_jax(0.8),),
    ("softmax_short_rows", "run"): (_tf(1.0), _jax(1.0)),
    ("records_4_kib", "run"): (_tf(0.6),),
    ("matmul_2048", "run"): (_tf(1.05),),
    ("cluster_grpc", "64_mib"): (_tf(1.0),),
    ("cluster_grpc", "hop"): (_tf(1.2),),
    ("cluster_same_host", "64_mib"): (_tf(0.33),),
    ("cluster_same_host", "scalar"): (_tf(0.4),),
    ("cluster_same_host", "hop"): (_tf(0.5),),
    ("cluster_same_host", "remote_noop"): (_tf(0.4),),
    ("data_parallel_mirrored", "step"): (_tf(1.0),),
    ("data_parallel_multi_worker", "step"): (_tf(0.75), _torch(1.0)),
    ("data_parallel_layouts", "step"): (_tf(0.75), _torch(1.0)),
    ("all_reduce_2_ranks", "4_b"): (_torch(1.0),),
    ("all_reduce_2_ranks", "1_mb"): (_torch(1.0),),
    ("all_reduce_2_ranks", "25_mb"): (_torch(0.5),),
    ("all_reduce_2_ranks", "64_mb"): (_torch(0.5),),
    ("all_reduce_4_ranks", "4_b"): (_torch(1.0),),
    ("all_reduce_4_ranks", "1_mb"): (_torch(1.0),),
    ("all_reduce_4_ranks", "25_mb"): (_torch(0.5),),
    ("all_reduce_4_ranks", "64_mb"): (_torch(0.5),),
    ("layouts_gpt_dp_2", "step"): (_jax(1.0), _torch(1.0)),
    ("layouts_gpt_tp_2", "step"): (_jax(1.0), _torch(0.6)),
    ("layouts_gpt_dp_4", "step"): (_jax(1.0),),
    ("layouts_gpt_tp_4", "step"): (_jax(1.0),),
    ("layouts_gpt_tp_2", "first_step"): (_jax(1.0),),
    ("sharded_mlp_dp", "step"): (_torch(1.0),),
    ("sharded_mlp_stage3", "step"): (_torch(0.6),),
    ("sharded_gpt_dp", "step"): (_torch(1.0),),
    ("sharded_gpt_stage3", "step"): (_torch(0.85),),
    ("pipeline_gpt_gpipe_2", "step"): (_torch(0.8),),
    ("pipeline_gpt_1f1b_2", "step"): (_torch(0.8),),
    ("pipeline_gpt_interleaved_2", "step"): (_torch(0.8),),
    ("pipeline_gpt_zbv_2", "step"): (_torch(0.8),),
    ("pipeline_sleep_gpipe_2", "step"): (_torch(1.0),),
    ("pipeline_sleep_1f1b_2", "step"): (_torch(1.0),),
    ("pipeline_sleep_interleaved_2", "step"): (_torch(1.0),),
    ("pipeline_sleep_gpipe_4", "step"): (_torch(1.0),),
    ("pipeline_sleep_1f1b_4", "step"): (_torch(1.0),),
    ("pipeline_sleep_interleaved_4", "step"): (_torch(1.0),),
    ("redistribute_16_mib", "rows_to_whole"): (_torch(1.0),),
    ("redistribute_16_mib", "rows_to_columns"): (_torch(1.0),),
    ("redistribute_16_mib", "sum_to_whole"): (_torch(1.0),),
    ("redistribute_16_mib", "sum_to_rows"): (_torch(1.0),),
    ("redistribute_16_mib", "whole_to_rows"): (_torch(1.0),),
    ("checkpoint_256_mib", "save"): (_torch(0.8),),
    ("checkpoint_256_mib", "load_rows"): (_torch(0.8),),
    ("checkpoint_256_mib", "load_columns"): (_torch(0.8),),
    ("checkpoint_256_mib", "load_rows_4"): (_torch(0.8),),
}
"""By case and measure."""
