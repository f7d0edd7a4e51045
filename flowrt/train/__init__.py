"""``flowrt.train``: optimizers, schedules, moving averages, checkpoints.

optimizer, optimizers   gradients of a loss, and the update of each variable (the rules are ops: graph/ops/training)
saver                   variables to checkpoints and back
checkpoint*             the files: safetensors shards, a JSON manifest with checksums, atomic replacement
"""

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
from flowrt.train.saver import Saver
