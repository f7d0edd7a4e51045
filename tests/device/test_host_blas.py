"""OpenBLAS's threads sleep soon after a product, unless that is not ours to say, or not safe."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import threadpoolctl

from flowrt.device.host.host_blas import SPINS, TIMEOUT
from flowrt.device.llvm.host_pool import usable_cpus

pytestmark = pytest.mark.skipif(
    not threadpoolctl.ThreadpoolController().select(internal_api="openblas").lib_controllers,
    reason="NumPy's products are not OpenBLAS's",
)

SOON_S = 60

SCRIPT = """
import ctypes, os, threading, time
import numpy as np, threadpoolctl
import flowrt as tf

def timeout():
    (found,) = threadpoolctl.ThreadpoolController().select(internal_api="openblas").lib_controllers
    return ctypes.CDLL(found.filepath).openblas_thread_timeout()

a = np.arange(512.0 * 512).reshape(512, 512)
expected = a @ a
"""


def run(code: str, **environment: str) -> str:
    kept = {key: value for key, value in os.environ.items() if key != TIMEOUT}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + code],
        check=False,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=SOON_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_session_shortens_them_and_products_stay_right() -> None:
    code = """
for _ in range(3):
    tf.Session().close()
    assert np.array_equal(a @ a, expected)
child = os.fork()
if child == 0:
    os._exit(not np.array_equal(a @ a, expected))
assert os.waitpid(child, 0)[1] == 0
print(timeout(), os.environ.get("OPENBLAS_THREAD_TIMEOUT"))
"""
    assert run(code).split() == [SPINS, "None"]


@pytest.mark.slow
def test_the_next_session_shortens_those_of_a_library_imported_meanwhile() -> None:
    pytest.importorskip("scipy.linalg")
    code = """
tf.Session().close()
import scipy.linalg
tf.Session().close()
found = threadpoolctl.ThreadpoolController().select(internal_api="openblas").lib_controllers
print(*[ctypes.CDLL(each.filepath).openblas_thread_timeout() for each in found])
"""
    assert run(code).split() == [SPINS] * 2


def test_the_users_environment_goes_before() -> None:
    assert run("tf.Session()\nprint(timeout())", **{TIMEOUT: "21"}).split() == ["21"]


def test_while_another_thread_may_multiply_nothing_changes() -> None:
    code = """
end = threading.Event()
thread = threading.Thread(target=end.wait)
thread.start()
tf.Session()
before = timeout()
end.set()
thread.join()
tf.Session()
print(before, timeout())
"""
    assert run(code).split() == ["0", SPINS]


@pytest.mark.skipif(usable_cpus() < 2, reason="there is one CPU, and no thread to spin")
def test_idle_threads_use_no_time() -> None:
    """Seconds of all threads while nobody computes: 0.5 where each of the products is followed by 25 ms of
    looking, less where others need the cores.
    """
    code = """
tf.Session()
used = 0.0
for _ in range(20):
    a @ a
    begun = time.process_time()
    time.sleep(0.03)
    used += time.process_time() - begun
print(used)
"""
    assert float(run(code)) < 0.1
