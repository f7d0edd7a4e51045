"""Initializing, saving and restoring variables.

graph_file         `write_graph`
stored_arrays      the form of an array in a shard
pieces             blocks of tensors, and which process writes which
checkpoint_format  the manifest, without file access
shard_file         safetensors files, written from memory and read in part
together           processes that save or restore together
checkpoint         the checkpoint store
stored_tensor      a tensor in files, read in part
checkpoint_reader  `CheckpointReader`
shard_reader       checkpoints of flowrt
tensorflow_reader  checkpoints of TensorFlow
tensorflow_writer  and how they are written
open_checkpoint    which of them there is
checkpoint_state   the list of a directory's checkpoints
new_checkpoints    waiting for the next one
variable_pieces    variables of a session as pieces
saver_nodes        nodes that save and restore, for other programs
export_meta_graph  `export_meta_graph`
saver              `Saver`
graph_saver        the saver of an imported graph
import_meta_graph  `import_meta_graph`
foreign_files      `load_safetensors`
warm_start         `init_from_checkpoint`
warm_start_settings  `warm_start`
scaffold           `Scaffold`: init ops, local init ops, saver
"""
