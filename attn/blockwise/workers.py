"""Threads: many small tasks side by side, with BLAS held to one thread in each.

NumPy lets go of the interpreter lock inside matmul and exp, so Python threads that each work on a
tile of their own keep all cores busy. BLAS must then use one thread a task, or its threads fight
over the same cores. Only threadpoolctl can tell BLAS so; without it the tasks run one by one.
"""

import contextlib
import functools
import threading
from contextvars import copy_context

# The number of BLAS threads belongs to the process: two calls that each set it and put it back
# could leave it at one for good. A call that finds the lock taken runs without threads.
blas_is_ours = threading.Lock()


def run(work, tasks, new_buffer):
    """Call `work(buffer, *task)` for each task, with one buffer for each thread.

    The tasks come from a generator and are drawn one at a time under a lock, so none is prepared
    twice and a thread that is done early takes what is left.
    """
    drawing = threading.Lock()

    def stop():  # after an error or Ctrl-C the other threads find no more tasks
        with drawing:
            tasks.close()

    def draw():
        with drawing:
            return next(tasks, None)

    def work_until_none_is_left():
        buffer = new_buffer()
        try:
            while (task := draw()) is not None:
                work(buffer, *task)
        finally:
            stop()

    with one_blas_thread() as count:
        if count == 1:
            return work_until_none_is_left()
        from concurrent.futures import ThreadPoolExecutor  # here: it would slow down `import attn`

        with ThreadPoolExecutor(count) as pool:
            # NumPy's errstate lives in the context, which a new thread does not inherit.
            started = [
                pool.submit(copy_context().run, work_until_none_is_left) for _ in range(count)
            ]
            try:
                for thread in started:
                    thread.result()
            finally:
                stop()


@contextlib.contextmanager
def one_blas_thread():
    """Hold BLAS to one thread and yield how many it would have used; 1 where it cannot be held."""
    controller = blas_controller()
    if controller is None or not blas_is_ours.acquire(blocking=False):
        yield 1
        return
    try:
        count = max((library.num_threads for library in controller.lib_controllers), default=1)
        with controller.limit(limits=1):
            yield count
    finally:
        blas_is_ours.release()


@functools.cache
def blas_controller():
    """What steers NumPy's BLAS, found once: looking through the loaded libraries takes a while."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController().select(user_api="blas")
