"""All that the stub of `flowrt` has; versions are TensorFlow's."""

from types import SimpleNamespace

from flowrt import *

__version__: str
version: SimpleNamespace
