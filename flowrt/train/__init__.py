"""``flowrt.train``: optimizers, schedules, moving averages, checkpoints.

optimizer, optimizers       gradients of a loss, and the update of each variable (rules: graph/ops/training)
schedules, global_step      learning rates that follow the step that `minimize` counts
gradient_accumulator        one update from the gradients of several steps
moving_averages             averages of variables, and the names under which to restore them
saver                       variables to checkpoints and back
checkpoint*                 the files: safetensors shards, a JSON manifest with checksums, atomic replacement
coordinator, queue_runner   threads that stop together, and those that fill queues
input_producers, _batches   queues of the parts of tensors; batches of what threads make
sync_replicas_optimizer     workers that train as one, through accumulators and a queue of tokens
graph_files                 a graph as a file
scaffold, session_manager   sessions whose variables have their values: restored, initialized or waited for
monitored_session           the session of a training loop: session_creator makes it, hooked_session runs it
*_hooks                     the hooks; session_run_hook says when they are called
supervisor                  what loops had before monitored sessions
device_setter               between-graph replication: variables on parameter servers
"""

from typing import Any

from flowrt.distribute.cluster_spec import ClusterSpec
from flowrt.distribute.server import Server
from flowrt.missing_names import missing_name
from flowrt.summary.event_file import read_events as summary_iterator
from flowrt.train.basic_session_run_hooks import (
    FeedFnHook,
    FinalOpsHook,
    GlobalStepWaiterHook,
    LoggingTensorHook,
    NanLossDuringTrainingError,
    NanTensorHook,
    SecondOrStepTimer,
    StopAtStepHook,
)
from flowrt.train.checkpoint import CheckpointReader as NewCheckpointReader
from flowrt.train.checkpoint import checkpoint_exists, remove_checkpoint
from flowrt.train.checkpoint_state import (
    CheckpointState,
    get_checkpoint_state,
    latest_checkpoint,
    list_variables,
    load_checkpoint,
    load_variable,
    update_checkpoint_state,
)
from flowrt.train.coordinator import Coordinator
from flowrt.train.device_setter import replica_device_setter
from flowrt.train.global_step import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
)
from flowrt.train.global_step import global_step as global_step  # the function, over the module of this name
from flowrt.train.gradient_accumulator import GradientAccumulator
from flowrt.train.graph_files import write_graph
from flowrt.train.input_batches import (
    batch,
    batch_join,
    maybe_batch,
    maybe_batch_join,
    maybe_shuffle_batch,
    maybe_shuffle_batch_join,
    shuffle_batch,
    shuffle_batch_join,
)
from flowrt.train.input_producers import (
    input_producer,
    limit_epochs,
    range_input_producer,
    slice_input_producer,
    string_input_producer,
)
from flowrt.train.monitored_session import (
    MonitoredSession,
    MonitoredTrainingSession,
    SingularMonitoredSession,
)
from flowrt.train.moving_averages import ExponentialMovingAverage
from flowrt.train.optimizer import Optimizer
from flowrt.train.optimizers import (
    AdadeltaOptimizer,
    AdagradOptimizer,
    AdamOptimizer,
    AdamWOptimizer,
    FtrlOptimizer,
    GradientDescentOptimizer,
    LAMBOptimizer,
    LARSOptimizer,
    MomentumOptimizer,
    RMSPropOptimizer,
)
from flowrt.train.profiler_hook import ProfilerHook
from flowrt.train.progress_hook import ProgressHook
from flowrt.train.queue_runner import QueueRunner, add_queue_runner, start_queue_runners
from flowrt.train.recording_hooks import (
    CheckpointSaverHook,
    CheckpointSaverListener,
    StepCounterHook,
    SummarySaverHook,
)
from flowrt.train.saver import Saver
from flowrt.train.scaffold import Scaffold
from flowrt.train.schedules import (
    cosine_decay,
    cosine_decay_restarts,
    exponential_decay,
    inverse_time_decay,
    linear_cosine_decay,
    natural_exp_decay,
    piecewise_constant,
    polynomial_decay,
)
from flowrt.train.session_creator import ChiefSessionCreator, SessionCreator, WorkerSessionCreator
from flowrt.train.session_manager import SessionManager
from flowrt.train.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from flowrt.train.supervisor import Supervisor
from flowrt.train.sync_replicas_optimizer import SyncReplicasOptimizer

piecewise_constant_decay = piecewise_constant


def __getattr__(name: str) -> Any:
    raise missing_name("train", name, globals())
