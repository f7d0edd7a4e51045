"""Formats of files that TensorFlow's tools write and read: bytes in, values out. Below the graph, which has
operations on such files.

durable_files    files written atomically, and typed file errors
file_kinds       what a file is that was given in place of a model
checksums        masked CRC-32C
records          TFRecord files: byte strings with checksums
plain_records    lines, records of one length and whole files, with keys
varints          integers of variable length
snappy           decompression
sstable          sorted tables: the index of a checkpoint
tensor_slices    parts of tensors, and the keys of their values
tensor_bundle    checkpoints of TensorFlow, version 2: a table of tensors and files of their bytes
slice_checkpoint checkpoints of TensorFlow, version 1: a table with the bytes of tensors
tensor_files     tensors of a checkpoint of either version by name, written, read and merged

A reader takes no word of a file for granted: sizes are held against what is there before memory is taken,
and anything that is not valid is a `DataLossError` that names the file. Nothing is executed.
"""
