"""device knows bytes: names of devices, and memory and an array module on each.

    spec   `DeviceSpec`: a named device, ``/job:worker/task:0/device:CPU:1``; parse, format, merge
    host   `HostDevice`: NumPy, and buffers aligned to 64 bytes

The executor asks a device for memory (``empty``) and for its array module (``xp``), with which every kernel
is called; that is all it knows of it. The graph takes only the names.
"""
