"""flowrt: a TensorFlow-style dataflow runtime.

A script builds a `Graph` of operations and runs parts of it in a `Session`; the names are those of
TensorFlow 1. See README.md for a first script and ARCHITECTURE.md for the way of a step through the
packages.
"""

import importlib as _importlib
import os as _os
from types import ModuleType as _ModuleType
from typing import Any as _Any

from flowrt import bitwise, debugging, dtypes, errors, linalg, math, nn, random, strings
from flowrt.base.in_notebook import CARD as _CARD
from flowrt.base.user_traceback import install as _install_tracebacks
from flowrt.control_flow import case, cond, switch_case, while_loop
from flowrt.control_flow.signatures import TensorSpec
from flowrt.dataflow.accumulators import (
    ConditionalAccumulator,
    ConditionalAccumulatorBase,
    SparseConditionalAccumulator,
)
from flowrt.dataflow.queues import FIFOQueue, PaddingFIFOQueue, PriorityQueue, QueueBase, RandomShuffleQueue
from flowrt.dataflow.readers import *
from flowrt.device.spec import DeviceSpec
from flowrt.dtypes import *
from flowrt.dtypes import bool_ as bool
from flowrt.errors import OpError
from flowrt.executor.session.clusters import CLUSTERS as _CLUSTERS
from flowrt.executor.session.default_session import get_default_session
from flowrt.functions.autodiff import hessian, hvp, jacfwd, jacrev, jvp, vjp
from flowrt.functions.functional_ops import foldl, foldr, map_fn, scan
from flowrt.functions.jacobians import hessians, jacobian
from flowrt.functions.parsing import *
from flowrt.functions.recompute import recompute, recompute_grad, recompute_sequential
from flowrt.functions.sequence_examples import *
from flowrt.functions.sparse_arithmetic import *
from flowrt.functions.sparse_forms import (
    sparse_mask,
    sparse_merge,
    sparse_reset_shape,
    sparse_split,
    sparse_to_indicator,
)
from flowrt.functions.sparse_functions import *
from flowrt.functions.sparse_reductions import *
from flowrt.functions.tensor_array import TensorArray
from flowrt.functions.vectorization import vectorized_map
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant, placeholder, placeholder_with_default
from flowrt.graph.construction.conversions import register_tensor_conversion_function
from flowrt.graph.construction.graph import Graph, Operation, Tensor, get_default_graph, reset_default_graph
from flowrt.graph.derivatives.custom_gradient import custom_gradient, custom_jvp
from flowrt.graph.derivatives.forward_mode import forward_gradients
from flowrt.graph.derivatives.gradients import RegisterGradient, UnconnectedGradients, gradients
from flowrt.graph.ops.array.bitcast import bitcast
from flowrt.graph.ops.array.concat_and_split import concat, split, stack, unstack
from flowrt.graph.ops.array.gather_scatter import *
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.array.ranges import lin_space, linspace, one_hot, range, sequence_mask
from flowrt.graph.ops.array.reductions import *
from flowrt.graph.ops.array.scans import cumprod, cumsum
from flowrt.graph.ops.array.segments import *
from flowrt.graph.ops.array.selection import *
from flowrt.graph.ops.array.slicing import slice, strided_slice
from flowrt.graph.ops.array.sorting import argsort, searchsorted, setdiff1d, sort, unique, unique_with_counts
from flowrt.graph.ops.array.statistics import (
    argmax,
    argmin,
    bincount,
    confusion_matrix,
    count_nonzero,
    histogram_fixed_width,
    reduce_logsumexp,
)
from flowrt.graph.ops.array.tile_and_reverse import *
from flowrt.graph.ops.base.filling import *
from flowrt.graph.ops.base.identities import *
from flowrt.graph.ops.base.indexed_slices import IndexedSlices, IndexedSlicesValue
from flowrt.graph.ops.base.shape_manipulation import *
from flowrt.graph.ops.base.sparse_tensor import SparseTensor, SparseTensorValue
from flowrt.graph.ops.elementwise.arithmetic import *
from flowrt.graph.ops.elementwise.comparison import *
from flowrt.graph.ops.elementwise.complex_parts import abs, angle, complex, conj, imag, real
from flowrt.graph.ops.elementwise.division import *
from flowrt.graph.ops.elementwise.incomplete import betainc, igamma, igammac
from flowrt.graph.ops.elementwise.math import *
from flowrt.graph.ops.elementwise.special import digamma, erf, erfc, lgamma, polygamma, zeta
from flowrt.graph.ops.linalg.decompositions import *
from flowrt.graph.ops.linalg.einsum import einsum
from flowrt.graph.ops.linalg.fourier import fft, fft2d, fft3d, ifft, ifft2d, ifft3d
from flowrt.graph.ops.linalg.matmul import cross, matmul, tensordot
from flowrt.graph.ops.linalg.matrix_parts import *
from flowrt.graph.ops.linalg.matrix_powers import matrix_square_root
from flowrt.graph.ops.linalg.spectral import self_adjoint_eig, self_adjoint_eigvals, svd
from flowrt.graph.ops.nn.fake_quant import *
from flowrt.graph.ops.nn.norms import *
from flowrt.graph.ops.random.random_ops import *
from flowrt.graph.ops.random.sampling import *
from flowrt.graph.ops.state.session_tensors import (
    TensorHandle,
    delete_session_tensor,
    get_session_handle,
    get_session_tensor,
)
from flowrt.graph.ops.surface import all as _all_ops
from flowrt.graph.ops.surface import operators as _operators
from flowrt.graph.ops.text.assertions import *
from flowrt.graph.ops.text.assertions import add_check_numerics_ops
from flowrt.graph.ops.text.edit_distance import *
from flowrt.graph.ops.text.files import *
from flowrt.graph.ops.text.formatting import as_string
from flowrt.graph.ops.text.hashing import string_to_hash_bucket_fast
from flowrt.graph.ops.text.python_calls import *
from flowrt.graph.ops.text.python_calls import print_ as print
from flowrt.graph.ops.text.python_calls import tuple_ as tuple
from flowrt.graph.ops.text.strings import *
from flowrt.graph.shapes import Dimension, TensorShape
from flowrt.initializers import (
    constant_initializer,
    glorot_normal_initializer,
    glorot_uniform_initializer,
    ones_initializer,
    orthogonal_initializer,
    random_normal_initializer,
    random_uniform_initializer,
    truncated_normal_initializer,
    uniform_unit_scaling_initializer,
    variance_scaling_initializer,
    zeros_initializer,
)
from flowrt.linalg.matrix_functions import matrix_solve_ls
from flowrt.tf1.aliases import *
from flowrt.tf1.missing_names import missing_from as _missing_from
from flowrt.tf1.missing_names import missing_name as _missing_name
from flowrt.variables.get_variable import get_local_variable
from flowrt.variables.get_variable import get_variable as get_variable  # the function; see `device` below
from flowrt.variables.graph_scopes import *
from flowrt.variables.graph_scopes import (
    device as device,
)  # the function; the package of this name stays importable by its full name
from flowrt.variables.partitioners import (
    fixed_size_partitioner,
    min_max_variable_partitioner,
    variable_axis_size_partitioner,
)
from flowrt.variables.template import make_template
from flowrt.variables.variable import *
from flowrt.variables.variable_creators import variable_creator_scope
from flowrt.variables.variable_scope import *
from flowrt.version import VERSION as _VERSION

__version__ = _VERSION
newaxis = None
VERSION = "1.15.0"  # the TensorFlow version that defines these names
GIT_VERSION = COMPILER_VERSION = "unknown"

# What a first import need not pay for.
_LAZY_MODULES = (
    "app", "audio", "autograph", "compat", "config", "contrib", "core", "data", "distribute", "distributions",
    "estimator", "examples", "experimental", "feature_column",
    "flags", "gfile", "graph_util", "image", "initializers",
    "io", "keras", "layers", "logging", "lookup", "losses", "metrics", "nest", "profiler", "python",
    "python_io", "ragged", "resource_loader", "saved_model", "sets", "signal", "sparse", "summary",
    "test",
    "train", "viz",
)  # fmt: skip
_LAZY_NAMES = {
    "executor.ends.config": ("ConfigProto", "GPUOptions", "GraphOptions", "OptimizerOptions", "RunOptions"),
    "executor.session.session": ("InteractiveSession", "Session"),
    "functions.function": ("function",),
    "ragged": ("RaggedTensor",),
    "tf1.graph_import.import_graph_def": ("import_graph_def",),
    "tf1.second_names": ("manip", "quantization", "queue", "spectral"),
    "protos.graph_pb2": ("AttrValue", "GraphDef", "NameAttrList", "NodeDef"),
    "protos.meta_graph_pb2": ("MetaGraphDef", "TensorInfo"),
    "protos.step_stats_pb2": ("RunMetadata",),
    "protos.event_pb2": ("Event", "HistogramProto", "SessionLog", "Summary", "SummaryMetadata"),
}


def __getattr__(name: str) -> _Any:
    """Import modules, and the modules of these names, on first use; explain names that flowrt lacks."""
    if name in _LAZY_MODULES:
        return _importlib.import_module(f"flowrt.{name}")
    for module, names in _LAZY_NAMES.items():
        if name in names:
            found = globals()[name] = getattr(_importlib.import_module(f"flowrt.{module}"), name)
            return found
    raise _missing_name("", name)


def _cluster(target: str, config: _Any) -> _Any:
    """The cluster runtime for a session, imported only when needed."""
    return __getattr__("distribute").ClusterRuntime(target, config)


_CLUSTERS["grpc"] = _cluster


def _card(value: object) -> str:
    """The HTML of ``value`` for a notebook: the module is imported only when needed."""
    return str(__getattr__("viz").card(value))


_CARD.append(_card)

for _name, _module in {"dtypes": dtypes, "errors": errors}.items():
    vars(_module)["__getattr__"] = _missing_from(_name)  # which is built on them


_NAMESPACES = {
    *_LAZY_MODULES,
    "bitwise",
    "debugging",
    "dtypes",
    "errors",
    "linalg",
    "math",
    "nn",
    "random",
    "strings",
}


def __dir__() -> list[str]:
    """The public names, and no internal packages that happen to be loaded."""
    lazy = (name for names in _LAZY_NAMES.values() for name in names)
    here = (
        name
        for name, value in globals().items()
        if not name.startswith("_") and (name in _NAMESPACES or not isinstance(value, _ModuleType))
    )
    return sorted({"__version__", *here, *_LAZY_MODULES, *lazy})


__all__ = [_name for _name in __dir__() if _name != "__version__"]  # "import *" has lazy names too

_install_tracebacks()
if {"FLOWRT_LOG", "FLOWRT_LOG_FORMAT", "FLOWRT_LOG_DIR"} & _os.environ.keys():
    _importlib.import_module("flowrt.logging")  # which reads it
if _os.environ.get("FLOWRT_TRACE"):
    _importlib.import_module("flowrt.profiler.always_on").start(_os.environ["FLOWRT_TRACE"])
