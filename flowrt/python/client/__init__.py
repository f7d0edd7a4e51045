"""``flowrt.python.client``: `device_lib`, as ``from tensorflow.python.client import device_lib`` has it."""
