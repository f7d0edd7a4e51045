"""What TensorFlow has and flowrt has not: each with the nearest thing that flowrt has.

`missing_name` makes the error for a module's ``__getattr__``: an `UnimplementedError` where the name is
TensorFlow's, so that a script's author reads what to use instead; always an ``AttributeError`` too, so that
``hasattr`` answers.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowrt.errors import UnimplementedError
from flowrt.graph.op_def import nearest

_CELLS = "this cell is not there. Nearest: nn.rnn_cell.LSTMCell, or a subclass of nn.rnn_cell.RNNCell"
_DECODERS = "there are no decoders. Nearest: nn.raw_rnn"
_STATE_SAVERS = "there are no state savers. Nearest: nn.static_rnn with initial_state"
_KERAS = "there is no Keras. Nearest: flowrt.layers"
_ESTIMATOR = "there are no estimators. Nearest: a training loop over Session.run with flowrt.data"
_QUEUES = "there is no such module. Nearest: FIFOQueue and its like"
_SPARSE = "there are no sparse tensors. Nearest: gather and IndexedSlices, or dense tensors"
_TABLES = "there are no lookup tables. Nearest: a dict through flowrt.data.Dataset.map or py_func"
_PARSING = "there are no parsers of records. Nearest: flowrt.data.Dataset.from_generator"
_IMAGES = "there are no image operations. Nearest: py_func, or the map of a flowrt.data.Dataset"
_EAGER = "there is no eager execution. Nearest: Session.run"
_STORAGE = "the format is TensorFlow's own. Nearest: train.Saver, train.write_graph"
_POOLS = "a session's devices have pools of their own. Nearest: Session.devices and their pool.stats()"
_VIRTUAL = "devices are a session's. Nearest: GPUOptions.experimental.virtual_devices, device_count"
_MESSAGES = "clusters are described by no messages. Nearest: train.ClusterSpec"
_TPUS = "there are no TPUs. Nearest: distribute.MirroredStrategy"

_EXPERIMENTAL = "this strategy is among the experimental ones. Nearest: distribute.experimental."
_SETTLED = ("MirroredStrategy", "OneDeviceStrategy")
_NO_CLOUD = "flowrt asks no cloud's API. Nearest: distribute.cluster_resolver.SimpleClusterResolver"
_POD = "pods are found from inside, or by a client. Nearest: KubernetesClusterResolver(override_client=...)"
_STEPS = "a step is a function. Nearest: Strategy.experimental_run(fn, iterator, steps_per_loop)"
_ALL_WORKERS = "this is its earlier name. Nearest: distribute.MultiWorkerMirroredStrategy"

_REASONS: dict[str, dict[str, str]] = {
    "": dict.fromkeys(("keras",), _KERAS)
    | dict.fromkeys(("estimator", "feature_column"), _ESTIMATOR)
    | dict.fromkeys(("queue",), _QUEUES)
    | dict.fromkeys(
        ("SparseTensor", "SparseTensorValue", "sparse_placeholder", "sparse_tensor_dense_matmul"), _SPARSE
    )
    | dict.fromkeys(("sparse_reduce_sum", "sparse_tensor_to_dense", "sparse", "SparseFeature"), _SPARSE)
    | dict.fromkeys(("lookup", "hash_table"), _TABLES)
    | dict.fromkeys(("parse_example", "parse_single_example", "FixedLenFeature", "VarLenFeature"), _PARSING)
    | dict.fromkeys(
        ("TFRecordReader", "WholeFileReader", "TextLineReader", "python_io", "decode_csv"), _PARSING
    )
    | dict.fromkeys(("image", "read_file", "write_file"), _IMAGES)
    | dict.fromkeys(("GradientTape", "contrib.eager", "Module"), _EAGER)
    | dict.fromkeys(("saved_model",), _STORAGE),
    "nn": dict.fromkeys(("static_state_saving_rnn",), _STATE_SAVERS)
    | dict.fromkeys(("embedding_lookup_sparse", "safe_embedding_lookup_sparse", "ctc_loss"), _SPARSE),
    "train": dict.fromkeys(("match_filenames_once",), "no operation lists files. Nearest: gfile.Glob")
    | dict.fromkeys(("Example", "Features", "Feature", "Int64List", "FloatList", "BytesList"), _PARSING)
    | dict.fromkeys(("export_meta_graph", "import_meta_graph"), _STORAGE)
    | dict.fromkeys(("ClusterDef", "JobDef", "ServerDef"), _MESSAGES),
    "data": dict.fromkeys(("TFRecordDataset", "FixedLengthRecordDataset"), _PARSING),
    "distribute": dict.fromkeys(("TPUStrategy",), _TPUS)
    | {name: _EXPERIMENTAL + name for name in ("CentralStorageStrategy", "ParameterServerStrategy")}
    | dict.fromkeys(("CollectiveAllReduceStrategy",), _ALL_WORKERS),
    "distribute.experimental": dict.fromkeys(("TPUStrategy",), _TPUS)
    | dict.fromkeys(("CollectiveAllReduceStrategy",), _ALL_WORKERS)
    | {name: f"it is no experiment. Nearest: distribute.{name}" for name in _SETTLED},
    "distribute.cluster_resolver": dict.fromkeys(("TPUClusterResolver",), _TPUS)
    | {"GCEClusterResolver": _NO_CLOUD, "KubernetesExecutableLocation": _POD},
    "contrib.distribute": dict.fromkeys(("TPUStrategy", "initialize_tpu_system"), _TPUS)
    | dict.fromkeys(("Monitor", "StandardInputStep", "StandardSingleLossStep", "Step"), _STEPS)
    | dict.fromkeys(("run_standard_tensorflow_server", "estimator"), _ESTIMATOR),
    "contrib": dict.fromkeys(("seq2seq",), _DECODERS)
    | dict.fromkeys(("cudnn_rnn",), _CELLS)
    | dict.fromkeys(("learn", "estimator"), _ESTIMATOR)
    | dict.fromkeys(("eager",), _EAGER)
    | dict.fromkeys(("lookup",), _TABLES),
    "contrib.rnn": dict.fromkeys(
        ("NASCell", "UGRNNCell", "PhasedLSTMCell", "GridLSTMCell", "GLSTMCell", "AttentionCellWrapper"),
        _CELLS,
    )
    | dict.fromkeys(
        ("CoupledInputForgetGateLSTMCell", "LSTMBlockFusedCell", "GRUBlockCell", "GRUBlockCellV2"), _CELLS
    )
    | dict.fromkeys(("static_state_saving_rnn",), _STATE_SAVERS),
    "contrib.tpu": dict.fromkeys(
        ("shard", "replicate", "batch_parallel", "rewrite", "cross_replica_sum", "CrossShardOptimizer"),
        _TPUS,
    )
    | dict.fromkeys(("TPUEstimator", "TPUEstimatorSpec", "RunConfig", "TPUConfig"), _ESTIMATOR),
    "config": dict.fromkeys(
        ("list_logical_devices", "set_logical_device_configuration", "set_visible_devices"), _VIRTUAL
    ),
    "config.experimental": dict.fromkeys(
        ("get_memory_info", "get_memory_usage", "reset_memory_stats"), _POOLS
    )
    | dict.fromkeys(
        (
            "list_logical_devices",
            "set_virtual_device_configuration",
            "get_virtual_device_configuration",
            "VirtualDeviceConfiguration",
            "set_visible_devices",
        ),
        _VIRTUAL,
    ),
}


class MissingNameError(UnimplementedError, AttributeError):
    """TensorFlow has this name; flowrt has not."""


def missing_name(namespace: str, name: str, names: Iterable[str]) -> AttributeError:
    """The error for ``name`` of ``flowrt.namespace``, which has ``names``."""
    full = ".".join(filter(None, ("flowrt", namespace, name)))
    reason = _REASONS.get(namespace, {}).get(name)
    if reason is not None:
        return MissingNameError(f"{full}: {reason}")
    public = dict.fromkeys(n for n in names if not n.startswith("_"))
    return AttributeError(f"{full}: flowrt has no such name.{nearest(name, public)}")
