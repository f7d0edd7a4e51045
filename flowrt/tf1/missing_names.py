"""Names that TensorFlow has and flowrt lacks, each with what to use instead.

`missing_from` creates a public module's ``__getattr__``: its error is an `UnimplementedError` if the name is
TensorFlow's, so that a script's author learns what to use instead; it is always an ``AttributeError`` too, so
that ``hasattr`` works. A name that flowrt has elsewhere is given with its module.
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

_MISSING = """\
this part of Keras is not supported. Instead: keras.Model, estimator.Estimator with a model_fn
    keras.experimental keras.mixed_precision
    keras.utils.multi_gpu_model
this estimator is not supported. Instead: estimator.Estimator with a model_fn
    estimator.MultiLabelHead estimator.MultiHead estimator.LogisticRegressionHead
    estimator.PoissonRegressionHead estimator.VocabInfo contrib.estimator.multi_label_head
    contrib.estimator.multi_head contrib.estimator.logistic_regression_head
    contrib.estimator.poisson_regression_head contrib.estimator.RNNClassifier
    contrib.estimator.RNNEstimator
    contrib.distribute.run_standard_tensorflow_server contrib.distribute.estimator
these boosted trees are not supported. Instead: estimator.BoostedTreesClassifier, or scikit-learn's forests
    contrib.boosted_trees
this factorization is not supported. Instead: contrib.factorization.KMeans, or estimator.Estimator
    contrib.factorization.GMM contrib.factorization.GmmAlgorithm contrib.factorization.gmm
    contrib.factorization.WALSMatrixFactorization contrib.factorization.WALSModel
    contrib.factorization.KMC2_INIT
this function of sparse tensors is not supported. Instead: sparse_tensor_to_dense, or gather
    SparseFeature SparseTensorSpec RaggedTensorSpec
    deserialize_many_sparse serialize_many_sparse
    serialize_sparse sparse_matmul
    train.sdca_fprint train.sdca_optimizer train.sdca_shrink_l1
this split of strings is not supported. Instead: strings.split, or str.split in a py_func
    strings.ngrams strings.unicode_decode
    strings.unicode_decode_with_offsets strings.unicode_split strings.unicode_split_with_offsets
there are no conversions of Unicode. Instead: str.encode or bytes.decode in a py_func
    strings.unicode_encode strings.unicode_script strings.unicode_transcode unicode_script unicode_transcode
tables are objects. Instead: lookup.StaticHashTable, lookup.index_table_from_tensor
    hash_table
this reader is not supported. Instead: data.TFRecordDataset, data.TextLineDataset, Dataset.from_generator
    LMDBReader decode_compressed decode_json_example parse_tensor
    serialize_tensor
    io.parse_sequence_example parse_sequence_example io.match_filenames_once
this image operation is not supported. Instead: py_func, or the map of a flowrt.data.Dataset
    image.extract_glimpse image.non_max_suppression_overlaps
    image.generate_bounding_box_proposals image.decode_jxl image.decode_webp image.extract_patches
no variable keeps the names of files. Instead: matching_files
    train.match_filenames_once
variables cannot be partitioned. Instead: get_variable, or a LayoutStrategy, which spreads them over devices
    create_partitioned_variables
there are no quantized dtypes. Instead: round, clip_by_value and cast
    QUANTIZED_DTYPES qint8 qint16 qint32 quint8 quint16 quantize quantize_v2 quantized_concat dequantize
    nn.quantized_avg_pool nn.quantized_conv2d nn.quantized_max_pool nn.quantized_relu_x
    train.do_quantize_training_on_graphdef
there is no such operation. Instead: NumPy's or SciPy's in a py_func
    extract_volume_patches histogram_fixed_width_bins
    lbeta nn.dilation2d nn.erosion2d
    nn.fractional_avg_pool nn.fractional_max_pool
there is one hash of strings. Instead: strings.to_hash_bucket_fast
    fingerprint string_to_hash_bucket string_to_hash_bucket_strong
    strings.to_hash_bucket strings.to_hash_bucket_strong
compiled operations cannot be loaded. Instead: py_func, custom_gradient
    load_op_library load_library load_file_system_library user_ops sysconfig
operations are created by public functions only. Instead: the functions of flowrt and flowrt.nn
    raw_ops
TensorFlow 2 is not supported. Instead: compat.v1
    compat.v2
TensorFlow's formats are not supported. Instead: train.Saver, train.write_graph
    lite
there is no debugger over the network. Instead: python.debug.DumpingDebugWrapperSession
    python.debug.TensorBoardDebugWrapperSession python.debug.TensorBoardDebugHook
    python.debug.GrpcDebugWrapperSession python.debug.GrpcDebugHook
there are no TPUs. Instead: distribute.MirroredStrategy
    tpu distribute.TPUStrategy distribute.experimental.TPUStrategy
    distribute.cluster_resolver.TPUClusterResolver contrib.distribute.TPUStrategy
    contrib.distribute.initialize_tpu_system contrib.tpu.shard contrib.tpu.replicate
    contrib.tpu.batch_parallel contrib.tpu.rewrite
functions are always traced. Instead: function
    wrap_function
there is no eager execution. Instead: Session.run
    GradientTape contrib.eager Module
there are no state savers. Instead: nn.static_rnn with initial_state
    nn.static_state_saving_rnn contrib.rnn.static_state_saving_rnn
this sampler is not supported. Instead: nn.uniform_candidate_sampler
    nn.all_candidate_sampler nn.fixed_unigram_candidate_sampler nn.learned_unigram_candidate_sampler
only the two-dimensional one is supported. Instead: nn.conv2d_transpose
    nn.conv1d_transpose nn.conv_transpose nn.atrous_conv2d_transpose
there is no such loop. Instead: train.MonitoredTrainingSession
    train.basic_train_loop train.LooperThread
only savers write checkpoints. Instead: train.Saver, train.latest_checkpoint
    train.Checkpoint train.CheckpointManager
    train.VocabInfo train.generate_checkpoint_state_proto
    train.get_checkpoint_mtimes
there are no cluster messages. Instead: train.ClusterSpec
    train.ClusterDef train.JobDef train.ServerDef
this strategy is experimental. Instead: distribute.experimental.CentralStorageStrategy
    distribute.CentralStorageStrategy
this strategy is experimental. Instead: distribute.experimental.ParameterServerStrategy
    distribute.ParameterServerStrategy
this name was replaced. Instead: distribute.MultiWorkerMirroredStrategy
    distribute.CollectiveAllReduceStrategy distribute.experimental.CollectiveAllReduceStrategy
it is not experimental. Instead: distribute.MirroredStrategy
    distribute.experimental.MirroredStrategy
it is not experimental. Instead: distribute.OneDeviceStrategy
    distribute.experimental.OneDeviceStrategy
cloud APIs are not supported. Instead: distribute.cluster_resolver.SimpleClusterResolver
    distribute.cluster_resolver.GCEClusterResolver
pods are found from inside the cluster or by a client. Instead: KubernetesClusterResolver(override_client=...)
    distribute.cluster_resolver.KubernetesExecutableLocation
there are no step objects. Instead: Strategy.experimental_run(fn, iterator, steps_per_loop)
    contrib.distribute.Monitor contrib.distribute.StandardInputStep contrib.distribute.StandardSingleLossStep
    contrib.distribute.Step
this cell is not supported. Instead: nn.rnn_cell.LSTMCell, or a subclass of nn.rnn_cell.RNNCell
    contrib.rnn.PhasedLSTMCell contrib.rnn.GridLSTMCell contrib.rnn.GLSTMCell
    contrib.rnn.AttentionCellWrapper contrib.rnn.CoupledInputForgetGateLSTMCell
    contrib.cudnn_rnn.CudnnRNNTanh contrib.cudnn_rnn.CudnnRNNRelu
devices belong to a session. Instead: GPUOptions.experimental.virtual_devices, device_count
    config.list_logical_devices config.set_logical_device_configuration config.set_visible_devices
    config.experimental.list_logical_devices config.experimental.set_virtual_device_configuration
    config.experimental.get_virtual_device_configuration config.experimental.VirtualDeviceConfiguration
    config.experimental.set_visible_devices
each session's devices have separate pools. Instead: Session.devices and their pool.stats()
    config.experimental.get_memory_info config.experimental.get_memory_usage
    config.experimental.reset_memory_stats
"""
"""Reasons, and below each the names that are missing for it, as a script writes them after ``flowrt.``."""


def _reasons() -> dict[str, dict[str, str]]:
    """Namespace -> name -> why it is missing."""
    found: dict[str, dict[str, str]] = {}
    reason = ""
    for line in _MISSING.splitlines():
        if not line.startswith(" "):
            reason = line
            continue
        for path in line.split():
            namespace, _, name = path.rpartition(".")
            found.setdefault(namespace, {})[name] = reason
    return found


_REASONS = _reasons()

PUBLIC_NAMESPACES = [
    "nn", "train", "layers", "losses", "image", "sparse", "python_io", "estimator", "estimator.inputs",
    "estimator.tpu", "metrics", "math", "linalg", "strings", "random", "debugging", "bitwise", "data",
    "initializers", "summary", "nn.rnn_cell", "data.experimental", "io", "io.gfile", "gfile", "graph_util",
    "saved_model", "logging", "app", "flags", "nest", "resource_loader", "test", "profiler", "config",
    "config.experimental", "distribute", "distribute.experimental", "distribute.cluster_resolver",
    "experimental", "experimental.dtensor", "autograph", "contrib", "train.experimental", "contrib.layers",
    "contrib.framework", "contrib.rnn", "contrib.seq2seq", "contrib.slim", "contrib.training", "contrib.tpu",
    "contrib.learn", "contrib.losses", "contrib.cluster_resolver", "contrib.data", "contrib.distribute",
    "contrib.mixed_precision", "distributions", "contrib.distributions", "lookup", "contrib.lookup",
    "contrib.legacy_seq2seq", "contrib.crf", "contrib.learn.preprocessing", "contrib.learn.monitors",
    "contrib.learn.io", "contrib.estimator", "estimator.experimental", "signal",
    "feature_column", "audio", "contrib.metrics", "contrib.opt", "contrib.predictor", "contrib.cudnn_rnn",
    "contrib.slim.nets",
    "contrib.slim.learning", "contrib.slim.evaluation", "contrib.slim.queues", "contrib.slim.summaries",
    "contrib.factorization", "ragged", "sets", "contrib.distributions.bijectors",
]  # fmt: skip
"""The modules that a hint may name, most likely first, after the top level."""

_OTHER_MODULES = {
    "app.flags", "compat", "contrib.framework.nest", "core", "dtypes", "errors", "examples", "keras", "manip",
    "python", "quantization", "queue", "spectral", "train.queue_runner", "viz",
}  # fmt: skip
"""Modules that scripts find in a namespace, but that no hint names."""

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
    "inv": "reciprocal", "select": "where", "complex_abs": "abs", "pack": "stack", "unpack": "unstack",
    "listdiff": "setdiff1d", "concat_v2": "concat", "batch_matmul": "matmul", "batch_cholesky": "cholesky",
    "batch_matrix_inverse": "matrix_inverse", "batch_matrix_solve": "matrix_solve",
    "SummaryWriter": "summary.FileWriter", "scalar_summary": "summary.scalar",
    "histogram_summary": "summary.histogram", "image_summary": "summary.image",
    "merge_summary": "summary.merge",
    "merge_all_summaries": "summary.merge_all",
}  # fmt: skip
"""Names in other frameworks, or other TensorFlows, of functions that flowrt has under another name."""


class MissingNameError(UnimplementedError, AttributeError):
    """TensorFlow has this name, but flowrt does not support it."""


class UnknownNameError(AttributeError):
    """flowrt has no such name. The text is made on demand: its hint needs all public modules, which
    ``hasattr`` should not import.
    """

    def __init__(self, namespace: str, name: str) -> None:
        super().__init__(namespace, name)
        self._namespace, self._name = namespace, name

    def __str__(self) -> str:
        full = ".".join(filter(None, ("flowrt", self._namespace, self._name)))
        found = hints(self._namespace, self._name)
        return f"{full}: flowrt has no such name.{' Nearest: ' + ', '.join(found) if found else ''}"


def missing_from(namespace: str) -> Callable[[str], NoReturn]:
    """The ``__getattr__`` of the module ``flowrt.namespace``."""

    def __getattr__(name: str) -> NoReturn:
        raise missing_name(namespace, name)

    return __getattr__


def missing_name(namespace: str, name: str) -> AttributeError | ImportError:
    """The error for ``name``, missing in ``flowrt.namespace``: an ``ImportError`` for
    ``from flowrt.namespace import name``, because Python drops the text of any other error there.
    """
    reason = _REASONS.get(namespace, {}).get(name) or _REASONS[""].get(name)  # TensorFlow repeats top names
    full = ".".join(filter(None, ("flowrt", namespace, name)))
    error = UnknownNameError(namespace, name) if reason is None else MissingNameError(f"{full}: {reason}")
    if full not in sys.modules and _is_imported_from():
        return ImportError(str(error))
    return error


def _is_imported_from() -> bool:
    """Whether the name is requested by an ``import``, according to the caller's current instruction."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name in ("missing_name", "__getattr__"):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_code[frame.f_lasti] == opcode.opmap["IMPORT_FROM"]


def hints(namespace: str, name: str) -> list[str]:
    """Suggestions for ``name`` of ``namespace``, as written after ``flowrt.``: flowrt's own name, the same
    name elsewhere, or names with similar spelling, the module's own first.
    """
    if name in _MEANT:
        return [_MEANT[name]]
    known = _public_names()
    if name in known:
        return [known[name]]
    own = {other: f"{namespace}.{other}".strip(".") for other in public_names(namespace)}
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
    """The path of each public name; the most likely one if several modules have it."""
    found = dict[str, str]()
    for namespace in ("", *PUBLIC_NAMESPACES):
        for name in public_names(namespace):
            found.setdefault(name, f"{namespace}.{name}".strip("."))
    return found


def public_names(namespace: str) -> list[str]:
    """The names that scripts may use after ``flowrt.namespace.``."""
    module = sys.modules["flowrt"]
    for part in filter(None, namespace.split(".")):
        module = getattr(module, part)
    names = vars(module).get("__all__") or dir(module)
    return [name for name in names if _is_public(namespace, name, module)]


def is_public(namespace: str) -> bool:
    """Whether scripts may import from the module ``flowrt.namespace``."""
    return namespace.split(".")[0] in ("core", "examples", "python") or namespace in PUBLIC_NAMESPACES


def _is_public(namespace: str, name: str, module: Any) -> bool:
    """Whether scripts may use it: not a helper, an imported library or an internal module."""
    if name.startswith("_"):
        return False
    found = getattr(module, name)
    if isinstance(found, types.ModuleType):
        path = f"{namespace}.{name}".strip(".")
        return is_public(path) or path in _OTHER_MODULES
    if found is None or isinstance(found, (str, int, float)):  # a constant
        return name.isupper() or name == "newaxis"
    return str(getattr(found, "__module__", type(found).__module__)).startswith("flowrt")


class _MissingModules:
    """The last finder: an import of a missing module of flowrt raises an error with the reason or a hint."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        plain = name.replace("flowrt.compat.v1.", "flowrt.")
        parent, _, last = plain.rpartition(".")
        if plain != name and last in dir(sys.modules["flowrt"]):
            return  # it is there, but no module of compat.v1
        namespace = parent.partition(".")[2]
        if parent == "flowrt" or (parent.startswith("flowrt.") and is_public(namespace)):
            raise ModuleNotFoundError(str(missing_name(namespace, last)))


sys.meta_path.append(_MissingModules)
