"""Strings, and operations that interact with the host.

strings, formatting  ops on strings; numbers as text
splitting, hashing   parts of strings; numbers that stand for strings
edit_distance        distances of sequences in edits
crossing             combinations of categories, and their hashes
words                splitting strings, dropping and counting words
python_calls         py_func, print, group, tuple
assertions           checks at run time and at build time
numerics             a check for NaN and infinity after each operation
checkpoint_files     checkpoints of TensorFlow's, written and read
csv_lines            comma-separated values
examples             `Example` messages, parsed
sequence_steps       steps of `SequenceExample` messages
image_codecs         images decoded and encoded
files                files read and written
wave_files           sounds decoded and encoded
summaries            values reported to TensorBoard
"""
