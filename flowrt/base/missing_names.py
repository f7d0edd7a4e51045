"""What TensorFlow has and flowrt has not: each with the nearest thing that flowrt has.

`missing_from` makes a public module's ``__getattr__``: its error is an `UnimplementedError` where the name is
TensorFlow's, so that a script's author reads what to use instead; always an ``AttributeError`` too, so that
``hasattr`` answers. A name that flowrt has elsewhere is named with its module.
"""

from __future__ import annotations

import difflib
import functools
import opcode
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

from flowrt.errors import UnimplementedError

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
_EXAMPLES = (
    "the tutorials of TensorFlow and their data are not there. Nearest: flowrt.data, over arrays as those of "
    "sklearn.datasets.load_digits (examples/digits.py)"
)
_EAGER = "there is no eager execution. Nearest: Session.run"
_STORAGE = "the format is TensorFlow's own. Nearest: train.Saver, train.write_graph"
_POOLS = "a session's devices have pools of their own. Nearest: Session.devices and their pool.stats()"
_VIRTUAL = "devices are a session's. Nearest: GPUOptions.experimental.virtual_devices, device_count"
_MESSAGES = "clusters are described by no messages. Nearest: train.ClusterSpec"
_DISTRIBUTIONS = "there are no distributions. Nearest: flowrt.random_normal and its like"
_PARTITIONERS = (
    "variables are kept whole. Nearest: train.replica_device_setter, which spreads them over servers"
)
_FILES = "no operation reads or writes files. Nearest: gfile.GFile in a py_func, or flowrt.data"
_LISTING = "no operation lists files. Nearest: gfile.Glob"
_LIBRARIES = "no compiled operations are loaded. Nearest: py_func, custom_gradient"
_QUANTIZED = "there are no quantized dtypes. Nearest: round, clip_by_value and cast"
_NUMPY = "there is no such operation. Nearest: NumPy's or SciPy's in a py_func"
_HASHES = "strings are not hashed. Nearest: hashlib in a py_func"
_SEGMENTS = "it gathers and adds up in one. Nearest: segment_sum of gather"
_SAMPLERS = "this sampler is not there. Nearest: nn.uniform_candidate_sampler"
_LOOPS = "there is no such loop. Nearest: train.MonitoredTrainingSession"
_CHECKPOINTS = "checkpoints are those of savers. Nearest: train.Saver, train.latest_checkpoint"
_TPUS = "there are no TPUs. Nearest: distribute.MirroredStrategy"

_EXPERIMENTAL = "this strategy is among the experimental ones. Nearest: distribute.experimental."
_SETTLED = ("MirroredStrategy", "OneDeviceStrategy")
_NO_CLOUD = "flowrt asks no cloud's API. Nearest: distribute.cluster_resolver.SimpleClusterResolver"
_POD = "pods are found from inside, or by a client. Nearest: KubernetesClusterResolver(override_client=...)"
_STEPS = "a step is a function. Nearest: Strategy.experimental_run(fn, iterator, steps_per_loop)"
_ALL_WORKERS = "this is its earlier name. Nearest: distribute.MultiWorkerMirroredStrategy"

_SPARSE_OPS = """
SparseTensorSpec RaggedTensor RaggedTensorSpec ragged sets convert_to_tensor_or_sparse_tensor edit_distance
deserialize_many_sparse serialize_many_sparse serialize_sparse sparse_add sparse_concat sparse_fill_empty_rows
sparse_mask sparse_matmul sparse_maximum sparse_merge sparse_minimum sparse_reduce_max
sparse_reduce_max_sparse sparse_reduce_sum_sparse sparse_reorder sparse_reset_shape sparse_reshape
sparse_retain sparse_slice sparse_softmax sparse_split sparse_to_indicator sparse_transpose string_split
"""
_RECORD_OPS = """
FixedLenSequenceFeature FixedLengthRecordReader IdentityReader LMDBReader ReaderBase decode_compressed
decode_json_example parse_single_sequence_example parse_tensor serialize_tensor
"""
_QUANTIZED_OPS = """
QUANTIZED_DTYPES qint8 qint16 qint32 quint8 quint16 quantization quantize quantize_v2 quantized_concat
dequantize fake_quant_with_min_max_args fake_quant_with_min_max_args_gradient fake_quant_with_min_max_vars
fake_quant_with_min_max_vars_gradient fake_quant_with_min_max_vars_per_channel
fake_quant_with_min_max_vars_per_channel_gradient
"""
_NUMPY_OPS = """
audio betainc bitcast decode_base64 encode_base64 extract_volume_patches fft fft2d fft3d
histogram_fixed_width_bins ifft ifft2d ifft3d igamma igammac lbeta matrix_solve_ls matrix_square_root signal
spectral zeta
"""
_HASH_OPS = """
fingerprint string_to_hash_bucket string_to_hash_bucket_fast string_to_hash_bucket_strong
"""

_REASONS: dict[str, dict[str, str]] = {
    "": dict.fromkeys(("keras",), _KERAS)
    | dict.fromkeys(("estimator", "feature_column"), _ESTIMATOR)
    | dict.fromkeys(("queue",), _QUEUES)
    | dict.fromkeys(("examples",), _EXAMPLES)
    | dict.fromkeys(
        ("SparseTensor", "SparseTensorValue", "sparse_placeholder", "sparse_tensor_dense_matmul"), _SPARSE
    )
    | dict.fromkeys(("sparse_reduce_sum", "sparse_tensor_to_dense", "sparse", "SparseFeature"), _SPARSE)
    | dict.fromkeys(("lookup", "hash_table"), _TABLES)
    | dict.fromkeys(("parse_example", "parse_single_example", "FixedLenFeature", "VarLenFeature"), _PARSING)
    | dict.fromkeys(
        ("TFRecordReader", "WholeFileReader", "TextLineReader", "python_io", "decode_csv"), _PARSING
    )
    | dict.fromkeys(("image",), _IMAGES)
    | dict.fromkeys(("read_file", "write_file"), _FILES)
    | dict.fromkeys(("matching_files",), _LISTING)
    | dict.fromkeys(("distributions",), _DISTRIBUTIONS)
    | dict.fromkeys(
        ("fixed_size_partitioner", "min_max_variable_partitioner", "variable_axis_size_partitioner"),
        _PARTITIONERS,
    )
    | dict.fromkeys(("create_partitioned_variables",), _PARTITIONERS)
    | dict.fromkeys(_SPARSE_OPS.split(), _SPARSE)
    | dict.fromkeys(("sparse_segment_mean", "sparse_segment_sqrt_n", "sparse_segment_sum"), _SEGMENTS)
    | dict.fromkeys(_RECORD_OPS.split(), _PARSING)
    | dict.fromkeys(_QUANTIZED_OPS.split(), _QUANTIZED)
    | dict.fromkeys(_NUMPY_OPS.split(), _NUMPY)
    | dict.fromkeys(_HASH_OPS.split(), _HASHES)
    | dict.fromkeys(("load_op_library", "load_library", "load_file_system_library"), _LIBRARIES)
    | dict.fromkeys(("MetaGraphDef", "TensorInfo", "lite"), _STORAGE)
    | dict.fromkeys(("tpu",), _TPUS)
    | dict.fromkeys(("wrap_function",), "a graph is traced. Nearest: function")
    | dict.fromkeys(("GradientTape", "contrib.eager", "Module"), _EAGER)
    | dict.fromkeys(("saved_model",), _STORAGE),
    "nn": dict.fromkeys(("static_state_saving_rnn",), _STATE_SAVERS)
    | dict.fromkeys(("embedding_lookup_sparse", "safe_embedding_lookup_sparse", "ctc_loss"), _SPARSE)
    | dict.fromkeys(("ctc_beam_search_decoder", "ctc_greedy_decoder"), _SPARSE)
    | dict.fromkeys(
        ("all_candidate_sampler", "fixed_unigram_candidate_sampler", "learned_unigram_candidate_sampler"),
        _SAMPLERS,
    )
    | dict.fromkeys(("quantized_avg_pool", "quantized_conv2d", "quantized_max_pool"), _QUANTIZED)
    | dict.fromkeys(("quantized_relu_x",), _QUANTIZED)
    | dict.fromkeys(("dilation2d", "erosion2d", "fractional_avg_pool", "fractional_max_pool"), _NUMPY)
    | dict.fromkeys(("max_pool_with_argmax",), "maxima have no places. Nearest: nn.max_pool, argmax")
    | dict.fromkeys(("conv1d_transpose", "conv_transpose"), "Nearest: nn.conv2d_transpose")
    | dict.fromkeys(("atrous_conv2d_transpose",), "Nearest: nn.conv2d_transpose"),
    "layers": dict.fromkeys(("InputSpec",), "layers check inputs in build. Nearest: layers.Layer"),
    "train": dict.fromkeys(("match_filenames_once",), _LISTING)
    | dict.fromkeys(("basic_train_loop", "LooperThread"), _LOOPS)
    | dict.fromkeys(("Checkpoint", "CheckpointManager", "SaverDef", "checkpoints_iterator"), _CHECKPOINTS)
    | dict.fromkeys(("init_from_checkpoint", "warm_start", "VocabInfo"), _CHECKPOINTS)
    | dict.fromkeys(("generate_checkpoint_state_proto", "get_checkpoint_mtimes"), _CHECKPOINTS)
    | dict.fromkeys(("noisy_linear_cosine_decay",), "Nearest: train.linear_cosine_decay")
    | dict.fromkeys(("sdca_fprint", "sdca_optimizer", "sdca_shrink_l1"), _SPARSE)
    | dict.fromkeys(("do_quantize_training_on_graphdef",), _QUANTIZED)
    | dict.fromkeys(("SequenceExample", "FeatureList", "FeatureLists"), _PARSING)
    | dict.fromkeys(("Example", "Features", "Feature", "Int64List", "FloatList", "BytesList"), _PARSING)
    | dict.fromkeys(("export_meta_graph", "import_meta_graph"), _STORAGE)
    | dict.fromkeys(("ClusterDef", "JobDef", "ServerDef"), _MESSAGES),
    "data": dict.fromkeys(("TFRecordDataset", "FixedLengthRecordDataset"), _PARSING)
    | dict.fromkeys(("Options",), "pipelines have no options. Nearest: the arguments of Dataset.map"),
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
    "contrib.seq2seq": dict.fromkeys(("AttentionWrapper", "BasicDecoder", "dynamic_decode"), _DECODERS),
    "contrib": dict.fromkeys(("cudnn_rnn",), _CELLS)
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


_PUBLIC = """
nn train layers losses metrics math linalg strings random debugging bitwise data initializers summary
nn.rnn_cell data.experimental io gfile graph_util logging app flags nest test profiler config
config.experimental distribute distribute.experimental distribute.cluster_resolver autograph contrib
contrib.layers contrib.framework contrib.rnn contrib.seq2seq contrib.slim contrib.training contrib.tpu
contrib.distribute
"""
"""The modules that a hint may name, the likeliest first; the top level is before all."""

_MEANT = {
    "sum": "reduce_sum", "mean": "reduce_mean", "max": "reduce_max", "min": "reduce_min",
    "prod": "reduce_prod", "any": "reduce_any", "all": "reduce_all", "amax": "reduce_max",
    "amin": "reduce_min", "dot": "tensordot", "mm": "matmul", "bmm": "matmul", "mul": "multiply",
    "sub": "subtract", "div": "divide", "neg": "negative", "cat": "concat", "concatenate": "concat",
    "permute": "transpose", "view": "reshape", "arange": "range", "var": "nn.moments",
    "tensor": "constant", "array": "constant", "optimizers": "train.AdamOptimizer",
    "Adam": "train.AdamOptimizer", "SGD": "train.GradientDescentOptimizer",
    "RMSprop": "train.RMSPropOptimizer", "Adagrad": "train.AdagradOptimizer",
    "Optimizer": "train.Optimizer", "mse": "losses.mean_squared_error", "Linear": "layers.Dense",
    "Sequential": "layers.Layer", "cross_entropy": "nn.softmax_cross_entropy_with_logits",
}  # fmt: skip
"""What other frameworks, or later TensorFlows, call what flowrt has under another name."""


class MissingNameError(UnimplementedError, AttributeError):
    """TensorFlow has this name; flowrt has not."""


class _AbsentNameError(AttributeError):
    """No such name. Its text is made when it is read: a hint loads the public modules, ``hasattr`` need
    not.
    """

    def __init__(self, namespace: str, name: str) -> None:
        super().__init__(namespace, name)
        self._namespace, self._name = namespace, name

    def __str__(self) -> str:
        full = ".".join(filter(None, ("flowrt", self._namespace, self._name)))
        found = hints(self._namespace, self._name)
        return f"{full}: flowrt has no such name.{' Nearest: ' + ', '.join(found) if found else ''}"


def missing_from(namespace: str) -> Callable[[str], NoReturn]:
    """The ``__getattr__`` of the module ``flowrt.namespace``, in which all names are."""

    def __getattr__(name: str) -> NoReturn:
        raise missing_name(namespace, name)

    return __getattr__


def missing_name(namespace: str, name: str) -> AttributeError | ImportError:
    """The error for ``name``, which ``flowrt.namespace`` has not: an ``ImportError`` for
    ``from flowrt.namespace import name``, in which Python drops the text of any other.
    """
    reason = _REASONS.get(namespace, {}).get(name)
    full = ".".join(filter(None, ("flowrt", namespace, name)))
    error = _AbsentNameError(namespace, name) if reason is None else MissingNameError(f"{full}: {reason}")
    if full not in sys.modules and _is_imported_from():
        return ImportError(str(error))
    return error


def _is_imported_from() -> bool:
    """Whether an ``import`` asked for the name, by the instruction at which the caller of ``__getattr__``
    is.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name in ("missing_name", "__getattr__"):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_code[frame.f_lasti] == opcode.opmap["IMPORT_FROM"]


def hints(namespace: str, name: str) -> list[str]:
    """What ``name`` of ``namespace`` may mean, as a script writes it after ``flowrt.``: flowrt's word for it,
    the same name elsewhere, or names spelled alike, the module's own before others.
    """
    if name in _MEANT:
        return [_MEANT[name]]
    known = _public_names()
    if name in known:
        return [known[name]]
    own = {other: f"{namespace}.{other}".strip(".") for other in _names_of(namespace)}
    for paths in (own, known):
        plain = {_plain(other): path for other, path in reversed(paths.items())}
        if _plain(name) in plain:
            return [plain[_plain(name)]]
    close = difflib.get_close_matches(name, own, n=3, cutoff=0.6)
    if close:
        return [own[other] for other in close]
    return [known[other] for other in difflib.get_close_matches(name, known, n=3, cutoff=0.8)]


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


@functools.cache
def _public_names() -> dict[str, str]:
    """Where each public name is, in the likeliest of its modules."""
    found = dict[str, str]()
    for namespace in ("", *_PUBLIC.split()):
        for name in _names_of(namespace):
            found.setdefault(name, f"{namespace}.{name}".strip("."))
    return found


def _names_of(namespace: str) -> list[str]:
    module = sys.modules["flowrt"]
    for part in filter(None, namespace.split(".")):
        module = getattr(module, part)
    names = vars(module).get("__all__") or dir(module)
    return [name for name in names if _is_public(namespace, name, module)]


def _is_public(namespace: str, name: str, module: Any) -> bool:
    """Whether scripts may use it: no helper, no library that the module imports, no module that is not
    public.
    """
    if name.startswith("_"):
        return False
    found = getattr(module, name)
    if isinstance(found, types.ModuleType):
        path = f"{namespace}.{name}".strip(".")
        return path.startswith("python.") or path in _PUBLIC.split()
    return str(getattr(found, "__module__", type(found).__module__)).startswith("flowrt")
