"""Devices: names, memory, streams, and transfers between them.

    spec                              `DeviceSpec`: ``/job:worker/task:0/device:CPU:1``
    stream_executor                   `StreamExecutor`, `Stream`, `Event`, `DeviceMemory`: the device API
    deadline, interruptible           deadlines of waits; waits that respond to Ctrl-C
    event_manager                     callbacks on device events
    bfc, memory_pool, workspace       `BFCAllocator`, pure; a device's pool; per-thread scratch buffers
    host_memory                       anonymous mappings as arrays
    memory_ranges                     whether arrays overlap
    transfer                          `TransferManager`: copies in and out
    matmul_precision                  precision of float32 products on GPUs
    device, device_kinds              `Device`; kinds of devices as data
    local_devices                     the devices of a session
    null                              a simulated device that records calls and keeps a virtual clock

    llvm     the host's loop compiler
    host     NumPy; onednn: oneDNN's kernels; cuda: GPUs through CuPy

Bytes come in regions from a `StreamExecutor` (``mmap``, ``cudaMalloc``). A `MemoryPool` divides them;
everything else holds `DeviceMemory` from the pool: a plan's arena, a variable, a value of dynamic size. It
returns to the pool when its last holder drops it, or explicitly.

The executor gets memory from a `Device`, arrays over it, the array module ``xp`` that kernels are called
with, and streams. The graph depends only on device names and kinds.
"""
