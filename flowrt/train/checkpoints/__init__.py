"""Initializing, saving and restoring variables.

durable_files      files written atomically; `write_graph`
checkpoint_format  manifest and shards, without file access
checkpoint         the checkpoint store
checkpoint_state   the list of a directory's checkpoints
saver              `Saver`
scaffold           `Scaffold`: init ops, local init ops, saver
"""
