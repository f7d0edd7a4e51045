"""``flowrt.contrib.cluster_resolver``: the resolvers of `flowrt.distribute.cluster_resolver`."""

from typing import Any

from flowrt.distribute.resolvers.cluster_resolver import (
    ClusterResolver,
    KubernetesClusterResolver,
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    UnionResolver,
)
from flowrt.errors import UnimplementedError
from flowrt.graph.source import misuse
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "ClusterResolver", "KubernetesClusterResolver", "SimpleClusterResolver", "SlurmClusterResolver",
    "TFConfigClusterResolver", "TPUClusterResolver", "UnionResolver",
]  # fmt: skip


def TPUClusterResolver(*args: Any, **kwargs: Any) -> Any:
    """Raise `UnimplementedError`: there are no TPUs to be found."""
    raise misuse("TPUClusterResolver: expected use_tpu=False; there are no TPUs", UnimplementedError)


__getattr__ = missing_from("contrib.cluster_resolver")
