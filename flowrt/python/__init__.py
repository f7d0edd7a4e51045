"""``flowrt.python``: the few of TensorFlow's inner paths that scripts import from."""
