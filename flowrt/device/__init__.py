"""device knows bytes: device names, memory and streams, and transfers between them.

    spec                              `DeviceSpec`: ``/job:worker/task:0/device:CPU:1``
    stream_executor                   `StreamExecutor`, `Stream`, `Event`, `DeviceMemory`: the seam
    deadline, interruptible           how long a thread may wait; waits that notice Ctrl-C
    event_manager                     callbacks on device events
    bfc, memory_pool, workspace       `BFCAllocator`, pure; a device's pool; per-thread scratch buffers
    host_memory                       anonymous mappings as arrays
    transfer                          `TransferManager`: copies in and out
    matmul_precision                  how exactly GPUs multiply float32
    device, local_devices             `Device`; the devices of a session
    null                              a device that computes nothing: a record and a clock

    loops    what a loop over array elements computes, as data
    llvm     the host's loop compiler
    host     NumPy; onednn: oneDNN's kernels; cuda: GPUs through CuPy

Bytes come in regions from a `StreamExecutor` (``mmap``, ``cudaMalloc``). A `MemoryPool` divides them;
everything else holds `DeviceMemory` from the pool: a plan's arena, a variable, a value whose size only the
step knew. It returns to the pool when its last holder drops it, or explicitly.

The executor asks a `Device` for memory, arrays over it, the array module ``xp`` that kernels are called
with, and streams. The graph knows only the names.
"""
