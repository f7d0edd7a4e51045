"""Variables made ready, saved and restored.

durable_files      files that are whole or absent
checkpoint_format  manifest and shards; pure
checkpoint         the store
checkpoint_state   which checkpoints a directory has
graph_files        `write_graph`
saver              `Saver`
scaffold           `Scaffold`: init ops, local init ops, saver
"""
