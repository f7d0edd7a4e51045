"""Programs that give the same values in flowrt and in TensorFlow: `results(tf)` is a dict of arrays.

FLOWRT_TENSORFLOW names an interpreter with TensorFlow; the two meet in files only.
"""
