"""``flowrt.contrib``: the parts of TensorFlow 1's contrib that scripts use most.

cluster_resolver    which tasks a job has
compiler            what XLA is to compile
crf                 conditional random fields over tags
cudnn_rnn           networks of LSTM and GRU with cuDNN's formulas
data                transformations of datasets
distributions       probability distributions
distribute          strategies, under their older names
layers              layers with variables called weights and biases; rarer_layers; optimize_loss
factorization       points put into groups
estimator           heads, hooks and exports of estimators
feature_columns     feature columns of `layers`
learn               estimators of before `estimator`; documents as numbers
lookup              tables
legacy_seq2seq      sequences as lists of steps
losses              losses with the predictions first
framework           arg_scope, the global step, nest; assignments: values of variables
rnn                 recurrent cells and networks
seq2seq             decoders with attention, beam search; `sequence_loss`
metrics             metrics with predictions before labels
mixed_precision     loss scales by managers
nccl                sums over devices
summarize           summaries of outputs and collections
predictor           models as functions of arrays
opt                 optimizers with decay, averages, lazy rows; SciPy's
named_outputs       outputs of layers under their names
slim                layers under the name used by model zoos; model_analyzer
training            losses that train, evaluations of checkpoints, hyperparameters
tensor_forest       random forests
tensorboard         files for TensorBoard's plugins
tpu                 infeed and outfeed, on any device; estimators for TPUs, without them
"""

from typing import Any

from flowrt.contrib import (
    cluster_resolver,
    compiler,
    crf,
    cudnn_rnn,
    data,
    distribute,
    distributions,
    estimator,
    factorization,
    framework,
    layers,
    learn,
    legacy_seq2seq,
    lookup,
    losses,
    metrics,
    mixed_precision,
    nccl,
    opt,
    predictor,
    rnn,
    seq2seq,
    slim,
    tensor_forest,
    tensorboard,
    tpu,
    training,
)
from flowrt.dataflow import staging as _staging
from flowrt.tf1.inner_paths import make_paths, read_paths
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "cluster_resolver", "compiler", "crf", "cudnn_rnn", "data", "distribute", "distributions", "estimator",
    "factorization", "framework", "layers", "learn", "legacy_seq2seq", "lookup", "losses", "metrics",
    "mixed_precision", "nccl", "opt", "predictor", "rnn", "seq2seq", "slim", "tensor_forest", "tensorboard",
    "tpu", "training",
]  # fmt: skip

_PATHS = """
compiler: jit -> contrib.compiler
layers: python -> contrib.layers
layers.python: layers -> contrib.layers
layers.python.layers: initializers layers optimizers regularizers -> contrib.layers
layers.python.layers: utils -> contrib.named_outputs
learn: estimators -> contrib.learn
learn: utils -> contrib.learn contrib.learn.io
learn: python -> contrib.learn
learn.python: learn -> contrib.learn
learn.python.learn: datasets -> contrib.learn.data_files
learn.python.learn: estimators utils -> contrib.learn contrib.learn.io
learn.python.learn: experiment export_strategy metric_spec -> contrib.learn
learn.python.learn: learn_io -> contrib.learn.io
learn.python.learn: learn_runner -> contrib.learn.learn_runner
learn.python.learn: monitors -> contrib.learn.monitors
learn.python.learn: preprocessing -> contrib.learn.preprocessing
learn.python.learn.datasets: base -> contrib.learn.data_files
learn.python.learn.datasets: mnist -> examples.tutorials.mnist.input_data
learn.python.learn.estimators: constants dnn dnn_linear_combined estimator head linear metric_key model_fn
    prediction_key run_config -> contrib.learn
learn.python.learn.utils: input_fn_utils saved_model_export_utils -> contrib.learn contrib.learn.io
learn.estimators: estimator model_fn run_config -> contrib.learn
learn.utils: input_fn_utils saved_model_export_utils -> contrib.learn contrib.learn.io
learn: datasets -> contrib.learn.data_files
learn.datasets: base -> contrib.learn.data_files
learn.datasets: mnist -> examples.tutorials.mnist.input_data
framework: python -> contrib.framework
framework.python: framework ops -> contrib.framework
framework.python.ops: add_arg_scope arg_scope variables -> contrib.framework
rnn: python -> contrib.rnn
rnn.python: ops -> contrib.rnn
rnn.python.ops: core_rnn core_rnn_cell rnn rnn_cell -> contrib.rnn nn nn.rnn_cell
seq2seq: python -> contrib.seq2seq
seq2seq.python: ops -> contrib.seq2seq
seq2seq.python.ops: attention_wrapper basic_decoder beam_search_decoder beam_search_ops decoder helper loss
    -> contrib.seq2seq
legacy_seq2seq: python -> contrib.legacy_seq2seq
legacy_seq2seq.python: ops -> contrib.legacy_seq2seq
legacy_seq2seq.python.ops: seq2seq -> contrib.legacy_seq2seq
factorization: python -> contrib.factorization
factorization.python: ops -> contrib.factorization
factorization.python.ops: clustering_ops kmeans -> contrib.factorization
metrics: python -> contrib.metrics
metrics.python: ops -> contrib.metrics
metrics.python.ops: metric_ops set_ops -> contrib.metrics
keras: python -> keras
keras.python: keras -> keras
slim: python -> contrib.slim
slim.python: slim -> contrib.slim
slim.python.slim: nets -> contrib.slim.nets
slim.python.slim: data evaluation learning queues summaries -> contrib.slim.data contrib.slim.evaluation
    contrib.slim.learning contrib.slim.queues contrib.slim.summaries
slim.python.slim.nets: alexnet inception inception_v1 inception_v2 inception_v3 overfeat vgg
    -> contrib.slim.nets.alexnet contrib.slim.nets.inception contrib.slim.nets.overfeat contrib.slim.nets.vgg
slim.python.slim.nets: resnet_utils -> contrib.slim.nets.resnet_utils
slim.python.slim.nets: resnet_v1 -> contrib.slim.nets.resnet_v1
slim.python.slim.nets: resnet_v2 -> contrib.slim.nets.resnet_v2
opt: python -> contrib.opt
opt.python: training -> contrib.opt
opt.python.training: external_optimizer lazy_adam_optimizer moving_average_optimizer nadam_optimizer
    weight_decay_optimizers -> contrib.opt
tensor_forest: client python -> contrib.tensor_forest
tensor_forest.client: eval_metrics random_forest -> contrib.tensor_forest
tensor_forest.python: tensor_forest -> contrib.tensor_forest
training: python -> contrib.training
training.python: training -> contrib.training
training.python.training: hparam training -> contrib.training
"""

_sources = {path: found for path, found in read_paths(_PATHS).items() if "." in path}
make_paths("contrib", {"keras": "keras", "staging": "dataflow.staging", **_sources}, {})
__getattr__ = missing_from("contrib")
