"""Sources of the cluster description: one module each, in order of precedence.

source                                   information from a source
flowrt_variables, tf_config, torchrun    command line and FLOWRT_*; TF_CONFIG; torchrun
slurm, kubernetes, open_mpi              launchers
order                                    precedence, and consistency of sources
cluster_resolver                         TensorFlow's classes over these
"""

from flowrt.distribute.resolvers.order import ALONE, VARIABLES, resolve
from flowrt.distribute.resolvers.source import ResolvedCluster

__all__ = ["ALONE", "VARIABLES", "ResolvedCluster", "resolve"]
