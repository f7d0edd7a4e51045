import signal
import threading

import pytest

from flowrt.device.interruptible import acquire


@pytest.mark.parametrize("timeout_s", [None, 3600.0])
def test_a_signal_that_does_not_interrupt_the_wait_is_noticed(ctrl_c, timeout_s):
    """The signal goes to another thread, so that the main thread's wait for the lock is not disturbed."""
    lock, noticed = threading.Lock(), threading.Event()
    lock.acquire()

    def interrupt_then_release():
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        noticed.wait(60)
        lock.release()

    def wait():
        other.start()
        acquire(lock, timeout_s)

    other = threading.Thread(target=interrupt_then_release)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
        assert lock.locked()
    finally:
        noticed.set()
        other.join()


def test_a_wait_ends_in_time_or_with_the_lock():
    lock = threading.Lock()
    assert acquire(lock, None)
    assert not acquire(lock, 0.0)
    assert not acquire(lock, -1.0)
    assert not acquire(lock, 0.15)
    threading.Timer(0.15, lock.release).start()
    assert acquire(lock, 60.0)
