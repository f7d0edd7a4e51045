"""CUDA C on the host: a kernel's text is compiled as C++, and its threads take turns on one of the host's.

Each thread of a block is a coroutine that runs up to a barrier. The order in which they go on turns around at
each barrier, so that a barrier that is missing shows as a wrong result.
"""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

STACK_BYTES = 32768
MAX_THREADS = 1024

_SHIM = f"""
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#define __global__
#define __device__
#define __shared__ static
#define __restrict__ __restrict
#define __launch_bounds__(n)
extern "C" {{
#define BOTH(name) float name##f(float); double name(double);
BOTH(exp) BOTH(expm1) BOTH(log) BOTH(log1p) BOTH(tanh) BOTH(erf) BOTH(sin) BOTH(cos) BOTH(sqrt) BOTH(fabs)
BOTH(floor) BOTH(ceil) BOTH(rint) BOTH(trunc)
float powf(float, float); double pow(double, double); float fmodf(float, float); double fmod(double, double);
float copysignf(float, float); double copysign(double, double);
float fmaf(float, float, float); double fma(double, double, double);
}}
static float rsqrtf(float x) {{ return (float)(1 / sqrt((double)x)); }}
static double rsqrt(double x) {{ return 1 / sqrt(x); }}
template <typename To, typename From> To same_bits(From x) {{ To y; memcpy(&y, &x, sizeof y); return y; }}
static float __int_as_float(int x) {{ return same_bits<float>(x); }}
static int __float_as_int(float x) {{ return same_bits<int>(x); }}
static double __longlong_as_double(long long x) {{ return same_bits<double>(x); }}
static long long __double_as_longlong(double x) {{ return same_bits<long long>(x); }}

struct Place {{ unsigned x; }};
static Place blockIdx, places[{MAX_THREADS}];
static ucontext_t host, contexts[{MAX_THREADS}];
static bool is_done[{MAX_THREADS}];
static char *stacks;
static int now;
static void (*kernel_of_all)(void **);
static void **arguments_of_all;
#define threadIdx places[now]
static void __syncthreads() {{ int me = now; swapcontext(&contexts[me], &host); }}
static void run_thread() {{ kernel_of_all(arguments_of_all); is_done[now] = true; }}

static int run_blocks(int blocks, int threads) {{
  if (!stacks) stacks = (char *)malloc((size_t){MAX_THREADS} * {STACK_BYTES});
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {{
    for (int t = 0; t < threads; t++) {{
      getcontext(&contexts[t]);
      contexts[t].uc_stack.ss_sp = stacks + (size_t)t * {STACK_BYTES};
      contexts[t].uc_stack.ss_size = {STACK_BYTES};
      contexts[t].uc_link = &host;
      makecontext(&contexts[t], run_thread, 0);
      places[t].x = t;
      is_done[t] = false;
    }}
    for (int phase = 0, left = threads; left; phase++) {{
      int ended = 0;
      for (int t = 0; t < threads; t++) {{
        now = phase % 2 ? threads - 1 - t : t;
        swapcontext(&host, &contexts[now]);
        ended += is_done[now];
      }}
      if (ended != 0 && ended != threads) return 1;  // some have met a barrier that others have not
      left -= ended;
    }}
  }}
  return 0;
}}
"""

OPTIONS = ("-std=c++14", "-O0", "-shared", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-w")
_HEAD = re.compile(r"__global__ void __launch_bounds__\(\d+\) (\w+)\(([^)]*)\)")


def why_no_compiler() -> str | None:
    """Why CUDA C cannot run here, or None."""
    return None if shutil.which("c++") else "there is no C++ compiler: c++ is not on the path"


@functools.cache
def load_kernels(text: str) -> dict[str, Callable[[int, int, Sequence[int]], None]]:
    """The kernels of ``text`` by name: ``kernel(blocks, threads, addresses)``. Raises `ValueError` with the
    compiler's words.
    """
    heads = {name: parameters.count(",") + 1 for name, parameters in _HEAD.findall(text)}
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
        source.write_text("\n".join([_SHIM, text, *[_entry(name, n) for name, n in heads.items()]]))
        command = ["c++", *OPTIONS, str(source), "-o", str(library), "-lm"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise ValueError(f"{done.stderr[:2000]}\n{text}")
        loaded = ctypes.CDLL(str(library))
    return {name: functools.partial(_run, getattr(loaded, f"run_{name}")) for name in heads}


def _entry(name: str, count: int) -> str:
    """A function with the kernel's arguments in one array: all of them are pointers."""
    types = ", ".join(["void *"] * count)
    values = ", ".join([f"a[{i}]" for i in range(count)])
    return f"""
static void call_{name}(void **a) {{ ((void (*)({types}))(void *){name})({values}); }}
extern "C" int run_{name}(int blocks, int threads, void **a) {{
  kernel_of_all = call_{name};
  arguments_of_all = a;
  return run_blocks(blocks, threads);
}}"""


def _run(function: Any, blocks: int, threads: int, addresses: Sequence[int]) -> None:
    assert threads <= MAX_THREADS
    array = (ctypes.c_void_p * len(addresses))(*addresses)
    assert not function(blocks, threads, array), "a barrier that not all threads of a block have met"
