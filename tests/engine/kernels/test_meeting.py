"""The barrier of a step: nobody goes on before all have come, with more threads than there are processors."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

ROUNDS = 300


@pytest.mark.parametrize("num_threads", [1, 2, 2 * (os.cpu_count() or 1) + 3])
def test_all_have_come_before_anyone_goes_on(num_threads: int) -> None:
    numba = pytest.importorskip("numba")
    from engine.kernels.atomics import meet

    @numba.njit(nogil=True)
    def work(
        thread: int, counter: int, rounds: int, done: np.ndarray, num_threads: int, num_rounds: int
    ) -> tuple[int, int]:
        """Counts the rounds in which another thread had not written its number yet, or was two rounds ahead."""
        early = 0
        for number in range(1, num_rounds + 1):
            done[thread, 0] = number
            rounds = meet(counter, rounds, num_threads)
            for other in range(num_threads):
                early += done[other, 0] < number or done[other, 0] > number + 1
        return early, rounds

    words = np.zeros(1, dtype=np.int64)
    done = np.zeros((num_threads, 8), dtype=np.int64)  # each on a cache line of its own
    results: list[tuple[int, int]] = []

    def run(thread: int) -> None:
        results.append(work(thread, words.ctypes.data, 0, done, num_threads, ROUNDS))

    work(0, np.zeros(1, dtype=np.int64).ctypes.data, 0, np.zeros((1, 8), dtype=np.int64), 1, 1)  # compiled here
    threads = [threading.Thread(target=run, args=(number,)) for number in range(num_threads)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    counted = ROUNDS if num_threads > 1 else 0  # one thread meets nobody, so others can go on counting later
    assert results == [(0, counted)] * num_threads
    assert words[0] == num_threads * counted
