"""device knows bytes: names of devices, memory and streams on each, and what crosses between them.

    spec              `DeviceSpec`: a named device, ``/job:worker/task:0/device:CPU:1``; parse, format, merge
    stream_executor   `StreamExecutor`, `Stream`, `Event`, `DeviceMemory`: the seam, and its checks
    host, null, cuda  its three implementations: NumPy; nothing but a record and a clock; CuPy (its one door)
    host_memory       regions of the host's memory, and of zeros that take none (host, null)
    cuda_stream, cuda_graph, event_manager   a GPU's queues; work captured and launched again; who polls
    matmul_precision, cuda_blas   how exactly GPUs multiply matrices, a setting of the process; the products
    onednn            convolutions and pooling by oneDNN, where it is installed (its one door)
    deadline          the time by which a wait of this thread must end
    bfc               `BFCAllocator`, pure: best fit with coalescing over integer offsets
    memory_pool       `MemoryPool`: BFC over a device's regions, with owners, a limit and a report
    transfer          `TransferManager`: to the device, to the host, in which stream, copied or not
    device            `Device`: a name, an executor, a pool, transfers
    local_devices     the devices of a session, by request

    loops             `LoopProgram`: what a loop over the elements of arrays computes, as data
    loop_math, loop_formats   its functions as arithmetic; the polynomials of float32 and float64
    loop_stages               how many passes over a row it needs
    llvm_loops, llvm_iteration, llvm_text   its LLVM IR, as text; of a nest over scalars; of one value
    llvm_convolution, llvm_product, llvm_rows   LLVM IR of convolutions, products, rows by number, as text
    cuda_loops, cuda_text     a loop's CUDA C, as text; of one value
    host_jit          machine code of the text (the one door to llvmlite); code_cache keeps it on disk
    host_call, host_team, host_pool   machine code as functions of Python; threads that share a loop
    call_sequence, call_program       compiled calls one behind the other; with loops and branches around them
    host_blas                 how OpenBLAS's threads wait for work
    onednn, primitives        oneDNN (its one door); convolutions, mean pooling and products with it
    onednn_blas               large products with it
    workspace                 memory for what a kernel needs only while it runs

Bytes come in regions from a `StreamExecutor` (``mmap``, ``cudaMalloc``), a `MemoryPool` cuts them up, and
everybody else has `DeviceMemory` from the pool: the arena of a plan, a variable, a value of a size that only
the step knew. It goes back to the pool when its last holder lets go of it, or by hand.

The executor asks a `Device` for memory, arrays over it, the array module ``xp`` with which every kernel is
called, and the streams that its programs run on. The graph takes only the names.
"""
