"""Names that exist for programs written for TensorFlow 1.

aliases          older names of functions
composed_ops     ops that functions of flowrt say, for imported graphs
debugger         `python.debug`: sessions that show the tensors of their runs
decorators       tools for writers of decorators
deprecation      decorators for deprecated functions and arguments
defun            `Defun`, a decorator for functions of tensors
events_writer    event files, as an inner class writes them
file_io          `gfile` under older names
graph_import     GraphDefs read, with TensorFlow 1's control flow
inplace_ops      rows replaced or added to
inspection       arguments of functions
io_gfile         `gfile` under the names of TensorFlow 2
inner_names      small functions of TensorFlow's inner modules
inner_paths      modules for paths inside TensorFlow
layer_arguments  helpers for writers of layers
message_files    protobuf messages in files
missing_names    names that TensorFlow has and flowrt lacks
second_names     namespaces of functions that are elsewhere, too
training         queue runners' inputs, Supervisor, SyncReplicasOptimizer
"""
