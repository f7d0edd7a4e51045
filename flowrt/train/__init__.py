"""``flowrt.train``: optimizers, checkpoints and training loops.

    optimizers     gradients of a loss and updates of variables; schedules, moving averages
    checkpoints    variables to safetensors shards and back; `Scaffold`
    coordination   threads with a common stop, queue runners
    hooks          callbacks around the steps of a monitored session
    sessions       sessions that start ready and recover if a task is lost
    elastic        training that goes on when workers leave or come

Queue-based input, `Supervisor` and `SyncReplicasOptimizer` are in `flowrt.tf1.training`.
"""

import importlib
from typing import Any

from flowrt.distribute.cluster.cluster_spec import ClusterSpec
from flowrt.distribute.server import Server
from flowrt.protos.example_pb2 import BytesList as BytesList
from flowrt.protos.example_pb2 import Example as Example
from flowrt.protos.example_pb2 import Feature as Feature
from flowrt.protos.example_pb2 import FeatureList as FeatureList
from flowrt.protos.example_pb2 import FeatureLists as FeatureLists
from flowrt.protos.example_pb2 import Features as Features
from flowrt.protos.example_pb2 import FloatList as FloatList
from flowrt.protos.example_pb2 import Int64List as Int64List
from flowrt.protos.example_pb2 import SequenceExample as SequenceExample
from flowrt.protos.meta_graph_pb2 import SaverDef as SaverDef
from flowrt.summary.event_file import read_events as summary_iterator
from flowrt.tf1.missing_names import missing_name
from flowrt.train.checkpoints.checkpoint_state import *
from flowrt.train.checkpoints.export_meta_graph import export_meta_graph
from flowrt.train.checkpoints.foreign_files import Transposed, load_safetensors
from flowrt.train.checkpoints.graph_file import write_graph
from flowrt.train.checkpoints.import_meta_graph import import_meta_graph
from flowrt.train.checkpoints.new_checkpoints import checkpoints_iterator
from flowrt.train.checkpoints.open_checkpoint import checkpoint_exists, remove_checkpoint
from flowrt.train.checkpoints.open_checkpoint import open_checkpoint as NewCheckpointReader
from flowrt.train.checkpoints.saver import Saver
from flowrt.train.checkpoints.scaffold import Scaffold
from flowrt.train.checkpoints.warm_start import init_from_checkpoint
from flowrt.train.checkpoints.warm_start_settings import warm_start
from flowrt.train.coordination import queue_runner as queue_runner
from flowrt.train.coordination.coordinator import Coordinator
from flowrt.train.coordination.queue_runner import QueueRunner, add_queue_runner, start_queue_runners
from flowrt.train.hooks.basic_session_run_hooks import *
from flowrt.train.hooks.basic_session_run_hooks import ProgressHook
from flowrt.train.hooks.recording_hooks import *
from flowrt.train.hooks.recording_hooks import ProfilerHook
from flowrt.train.hooks.session_run_hook import *
from flowrt.train.optimizers.global_step import *
from flowrt.train.optimizers.global_step import (
    global_step as global_step,  # the function, over the module of this name
)
from flowrt.train.optimizers.gradient_accumulator import GradientAccumulator
from flowrt.train.optimizers.moving_averages import ExponentialMovingAverage
from flowrt.train.optimizers.optimizer import Optimizer
from flowrt.train.optimizers.proximal_optimizers import *
from flowrt.train.optimizers.schedules import *
from flowrt.train.optimizers.schedules import piecewise_constant as piecewise_constant_decay
from flowrt.train.optimizers.standard_optimizers import *
from flowrt.train.sessions.device_setter import replica_device_setter
from flowrt.train.sessions.monitored_session import *
from flowrt.train.sessions.session_manager import (
    ChiefSessionCreator,
    SessionCreator,
    SessionManager,
    WorkerSessionCreator,
)

_OLDER = {
    "input_batches": "batch batch_join maybe_batch maybe_batch_join maybe_shuffle_batch "
    "maybe_shuffle_batch_join shuffle_batch shuffle_batch_join",
    "input_producers": "input_producer limit_epochs range_input_producer slice_input_producer "
    "string_input_producer",
    "supervisor": "Supervisor",
    "sync_replicas_optimizer": "SyncReplicasOptimizer",
}
"""Names that only older programs use, by module in `flowrt.tf1.training`, which builds on this package."""


_ELASTIC = {"ElasticJob": "elastic_job", "run_elastic": "elastic_run"}
"""Names by module in `flowrt.train.elastic`, which builds on strategies: loaded on first use."""


def __getattr__(name: str) -> Any:
    if name == "experimental":
        return importlib.import_module("flowrt.train.optimizers.experimental")
    if name in _ELASTIC:
        return getattr(importlib.import_module(f"flowrt.train.elastic.{_ELASTIC[name]}"), name)
    for module, names in _OLDER.items():
        if name in names.split():
            return getattr(importlib.import_module(f"flowrt.tf1.training.{module}"), name)
    raise missing_name("train", name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_ELASTIC, "experimental", *" ".join(_OLDER.values()).split()})
