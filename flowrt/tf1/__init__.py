"""Names that exist for programs written for TensorFlow 1.

aliases   older names of functions
training  queue runners' inputs, Supervisor, SyncReplicasOptimizer
"""
