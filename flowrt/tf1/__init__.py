"""Names that exist for programs written for TensorFlow 1.

aliases          older names of functions
layer_arguments  helpers for writers of layers
training         queue runners' inputs, Supervisor, SyncReplicasOptimizer
"""
