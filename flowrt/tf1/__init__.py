"""Names that exist for programs written for TensorFlow 1.

aliases          older names of functions
deprecation      decorators for deprecated functions and arguments
file_io          `gfile` under older names
layer_arguments  helpers for writers of layers
training         queue runners' inputs, Supervisor, SyncReplicasOptimizer
"""
