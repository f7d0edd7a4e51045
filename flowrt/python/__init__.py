"""``flowrt.python``: TensorFlow's internal paths that scripts import from, as in ``from
flowrt.python.framework import ops`` or ``import flowrt.python.ops.array_ops``.

`_PATHS` is the complete list; the modules have no files (`flowrt.tf1.inner_paths`).
"""

from flowrt.config import device_listing
from flowrt.dataflow import staging
from flowrt.tf1 import (
    debugger,
    decorators,
    defun,
    deprecation,
    events_writer,
    file_io,
    inner_names,
    inplace_ops,
    inspection,
    layer_arguments,
)
from flowrt.tf1.inner_paths import make_paths, read_paths
from flowrt.tf1.missing_names import missing_from

_PATHS = """
: pywrap_tensorflow -> train tf1.events_writer
: tf2 -> tf1.inner_names
autograph: autograph -> autograph
autograph.impl: api -> autograph autograph.experimental
: debug -> tf1.debugger
debug: lib wrappers -> tf1.debugger
debug.lib: debug_data -> tf1.debugger
debug.wrappers: dumping_wrapper framework hooks local_cli_wrapper -> tf1.debugger
: keras -> keras
keras: layers -> keras.layers
keras: utils -> keras.utils
client: session client_lib -> flowrt
client: device_lib -> config.device_listing
client: timeline -> profiler.timeline
data: ->
data.ops: dataset_ops iterator_ops readers -> data
data.util: nest -> nest
estimator: estimator model_fn run_config -> estimator
estimator: export -> estimator.export
estimator.export: export export_lib export_output -> estimator.export
estimator.inputs: numpy_io pandas_io -> estimator.inputs
eager: context function -> flowrt
framework: function -> flowrt tf1.defun
framework: common_shapes constant_op importer ops tensor_spec tensor_util -> flowrt
framework: smart_cond -> tf1.layer_arguments
framework: device -> flowrt graph.construction.scopes
framework: dtypes -> flowrt dtypes
framework: errors errors_impl -> errors
framework: graph_util graph_util_impl -> graph_util
framework: op_def_registry -> graph.op_def
framework: random_seed -> flowrt random
framework: sparse_tensor -> flowrt sparse
framework: tensor_shape -> flowrt graph.shapes tf1.inner_names
framework: test_util -> test tf1.inner_names
framework: versions -> compat.v1
keras: activations -> keras.activations
keras: backend -> keras.backend
keras: callbacks -> keras.callbacks
keras: constraints -> keras.constraints
keras: initializers -> keras.initializers
keras: losses -> keras.losses
keras: metrics -> keras.metrics
keras: models -> keras.models
keras: optimizers -> keras.optimizers
keras: regularizers -> keras.regularizers
keras: engine -> keras keras.layers keras.utils
keras.engine: base_layer input_layer input_spec network sequential topology training -> keras keras.layers
    keras.utils
keras.layers: advanced_activations convolutional convolutional_recurrent core cudnn_recurrent embeddings local
    merge noise normalization pooling recurrent wrappers -> keras.layers
keras.preprocessing: image -> keras.preprocessing.image
keras.preprocessing: sequence -> keras.preprocessing.sequence
keras.preprocessing: text -> keras.preprocessing.text
keras.utils: data_utils generic_utils io_utils layer_utils np_utils vis_utils -> keras.utils
keras.utils: conv_utils -> keras.lengths
layers: base convolutional core layers normalization pooling -> layers
layers: utils -> tf1.layer_arguments
lib: ->
lib.io: file_io -> tf1.file_io gfile io
lib.io: python_io tf_record -> python_io io
ops: array_grad array_ops check_ops clip_ops confusion_matrix functional_ops gen_array_ops
    gen_control_flow_ops gen_data_flow_ops gen_logging_ops gen_state_ops gen_string_ops gradients
    gradients_impl gradients_util histogram_ops io_ops logging_ops manip_ops map_fn parsing_ops
    resource_variable_ops script_ops session_ops state_ops template tensor_array_ops
    variable_scope while_v2 -> flowrt
ops: partitioned_variables variables -> flowrt variables.partitioners
ops: math_ops gen_math_ops standard_ops -> flowrt math
ops: constant_op custom_gradient -> flowrt
ops: data_flow_ops -> flowrt dataflow.staging
ops: control_flow_ops -> flowrt graph.ops.text.python_calls
ops: batch_norm_util candidate_sampling_ops ctc_ops embedding_ops gen_nn_ops nn nn_grad nn_impl nn_ops rnn
    sparse_ops -> nn flowrt sparse
ops: rnn_cell rnn_cell_impl -> nn.rnn_cell contrib.rnn
ops.rnn: rnn_cell_impl -> nn.rnn_cell contrib.rnn
ops: random_ops gen_random_ops stateless_random_ops -> flowrt random
ops: image_ops image_ops_impl gen_image_ops -> image
ops: linalg_ops gen_linalg_ops linalg_grad -> flowrt linalg
ops: summary_ops summary_ops_v2 -> summary
ops: nccl_ops -> contrib.nccl
ops: bitwise_ops -> bitwise
ops: init_ops init_ops_v2 -> flowrt initializers
ops: inplace_ops -> tf1.inplace_ops
ops: lookup_ops -> flowrt lookup
ops: metrics metrics_impl -> metrics
ops: resources -> tf1.inner_names
ops: string_ops -> flowrt strings
ops.linalg: linalg linalg_impl -> linalg
ops.losses: losses losses_impl util -> losses
platform: app -> app
platform: benchmark googletest test -> test
platform: flags -> flags
platform: gfile -> gfile
platform: resource_loader -> resource_loader
platform: tf_logging -> logging
profiler: model_analyzer option_builder profiler -> profiler
saved_model: builder constants loader signature_constants signature_def_utils tag_constants -> saved_model
summary: summary -> summary
summary: summary_iterator -> train
summary.writer: writer writer_cache -> summary
training: adadelta adagrad adagrad_da adam basic_session_run_hooks checkpoint_management checkpoint_utils
    coordinator device_setter ftrl gradient_descent input learning_rate_decay momentum monitored_session
    optimizer proximal_adagrad proximal_gradient_descent queue_runner queue_runner_impl rmsprop saver
    server_lib session_manager session_run_hook supervisor sync_replicas_optimizer training
    training_util -> train
training: slot_creator -> train.optimizers.slot_creator
training: moving_averages -> train.optimizers.moving_averages train
util: compat -> compat
util: deprecation -> tf1.deprecation tf1.inner_names
util: function_utils tf_inspect -> tf1.inspection
util: tf_contextlib tf_decorator -> tf1.decorators
util: nest -> nest
"""

_CONVOLUTIONS = ("Conv1D", "Conv2D", "Conv2DTranspose", "Conv3D", "Conv3DTranspose", "SeparableConv2D")
_RENAMED: dict[str, dict[str, str]] = {
    "data.ops.dataset_ops": {"DatasetV1": "Dataset", "DatasetV2": "Dataset"},
    "framework.tensor_util": {"constant_value": "get_static_value", "MakeNdarray": "make_ndarray"},
    "framework.test_util": {"TensorFlowTestCase": "TestCase"},
    "layers.convolutional": {name.replace("Conv", "Convolution"): name for name in _CONVOLUTIONS},
}


def source_names() -> dict[str, str]:
    """The sources of each path; packages have none."""
    return read_paths(_PATHS)


make_paths("python", source_names(), _RENAMED)
__getattr__ = missing_from("python")
