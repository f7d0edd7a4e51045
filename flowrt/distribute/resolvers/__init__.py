"""Where the description of a cluster comes from: one module per source, in the order in which they are asked.

source, ports                            what a source says; ports that all tasks derive alike
flowrt_variables, tf_config, torchrun    command line and FLOWRT_*; TF_CONFIG; torchrun
slurm, kubernetes, open_mpi              launchers
order                                    the order, and that sources agree
cluster_resolver                         TensorFlow's classes over these
"""

from flowrt.distribute.resolvers.order import ALONE, VARIABLES, resolve
from flowrt.distribute.resolvers.source import ResolvedCluster

__all__ = ["ALONE", "VARIABLES", "ResolvedCluster", "resolve"]
