"""Threads: all tasks are done once, BLAS gets its threads back, errors and errstate travel."""

import contextlib
import threading

import numpy as np
import pytest
from reference import normal
from threadpoolctl import threadpool_info, threadpool_limits

import attn
from attn.blockwise import workers


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.fixture
def two_threads():
    """As many BLAS threads as a machine with two cores has, whatever the tests are held to."""
    with threadpool_limits(2, user_api="blas"):
        if max(blas_threads(), default=1) < 2:
            pytest.skip("this BLAS has one thread")
        yield


def seen_by(tasks=200):
    """Who did which task, with which buffer."""
    done, meet = [], threading.Barrier(2)

    def work(buffer, number):
        if number < 2:
            meet.wait(10)  # only two threads at a time get past this
        done.append((number, threading.get_ident(), id(buffer)))

    workers.run(work, ((i,) for i in range(tasks)), lambda: np.empty(3))
    return done


def test_each_task_once_and_a_buffer_for_each_thread(two_threads):
    done = seen_by()
    assert sorted(number for number, *_ in done) == list(range(200))
    pairs = {(thread, buffer) for _, thread, buffer in done}
    assert len(pairs) == 2
    assert len({buffer for _, buffer in pairs}) == 2


def test_blas_is_held_and_let_go(two_threads):
    before, during = blas_threads(), []
    workers.run(lambda buffer, i: during.append(blas_threads()), ((i,) for i in range(2)), list)
    assert all(max(threads) == 1 for threads in during)
    assert blas_threads() == before
    assert len(during) == 2


def test_an_error_travels_and_leaves_nothing_behind(two_threads):
    """The second thread fails while the first, which the caller waits for, goes on."""
    before, done, meet = blas_threads(), [], threading.Barrier(2)

    def work(buffer, number):
        if number < 2:
            meet.wait(10)
        if threading.current_thread().name.endswith("_1"):
            raise KeyError("thread 1")
        done.append(number)

    with pytest.raises(KeyError, match="thread 1"):
        workers.run(work, ((i,) for i in range(10**6)), list)
    assert len(done) < 10**5
    assert blas_threads() == before
    with workers.one_blas_thread() as count:  # the lock is free again
        assert count == 2


def test_a_call_within_a_call_runs_without_threads(two_threads):
    with workers.one_blas_thread() as outer, workers.one_blas_thread() as inner:
        assert (outer, inner) == (2, 1)


def test_without_threadpoolctl_tasks_run_here(two_threads, monkeypatch):
    monkeypatch.setattr(workers, "blas_controller", lambda: None)
    who = []
    workers.run(lambda buffer, i: who.append(threading.get_ident()), ((i,) for i in range(2)), list)
    assert who == [threading.get_ident()] * 2


def test_errstate_of_the_caller_holds_in_every_thread(two_threads):
    def work(buffer, number):
        np.ones(1) / np.zeros(1)

    with np.errstate(divide="ignore"):  # else a warning, which is an error here
        workers.run(work, ((i,) for i in range(8)), list)
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        workers.run(work, ((i,) for i in range(8)), list)


def test_threads_change_no_bit_of_attention(two_threads):
    query, key, value = normal(0, 2, 4, 300, 8), normal(1, 2, 2, 700, 8), normal(2, 2, 2, 700, 8)
    options = {"sink": normal(3, 4), "q_offset": 400, "block_size": 64}
    threaded = attn.blockwise_attention(query, key, value, attn.Causal(), **options)
    with threadpool_limits(1, user_api="blas"):
        alone = attn.blockwise_attention(query, key, value, attn.Causal(), **options)
    for one, other in zip(threaded, alone, strict=True):
        assert (one == other).all()


def test_a_rule_that_fails_in_a_thread_is_heard(two_threads):
    class Broken(attn.Mask):
        def __call__(self, b, h, q, k):
            if getattr(k, "size", 1) > 1:
                raise RuntimeError("no answer")
            return abs(q - k) < 2

    x = normal(0, 40, 3)
    with pytest.raises(RuntimeError, match="no answer"):
        attn.blockwise_attention(x, x, x, Broken(), block_size=8)
    with contextlib.ExitStack() as stack:
        assert stack.enter_context(workers.one_blas_thread()) == 2
