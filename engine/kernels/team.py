"""The threads that run a step together: the inference thread and helpers that wait for it.

A helper spins between the tokens of a reply, because waking a sleeping thread costs more than a small model's layer;
after some milliseconds without a step it goes to sleep, so an idle program uses no processor.
"""

from __future__ import annotations

import threading
import time

import numpy as np
from numba import types

from engine.kernels import plan as p
from engine.kernels.atomics import exchange_if, load_word, store_word, wait_turn
from engine.kernels.entry import entry
from engine.kernels.pace import Pace
from engine.kernels.step import forward

_LOOKS_BEFORE_SLEEP = 20_000
_AWAKE, _ASLEEP = 0, 1


@entry
def _serve(thread, seen, rounds, control, sizes, numbers, matrices, vectors, cache):
    """Help with every step requested; with none for a while returns (steps seen, rounds met, whether to stop)."""
    base = control.ctypes.data
    state = base + 8 * (p.PARKED + 8 * thread)
    looks = 0
    while True:
        if load_word(base + 8 * p.STOP) != 0:
            return seen, rounds, True
        if load_word(base + 8 * p.REQUESTED) != seen:
            seen += 1
            rounds = forward(thread, rounds, control, sizes, numbers, matrices, vectors, cache)
            looks = 0
            continue
        looks = wait_turn(looks)
        if looks > _LOOKS_BEFORE_SLEEP:
            store_word(state, _ASLEEP)
            # A step may have been requested before or after this: whoever changes the word back, wins.
            if load_word(base + 8 * p.REQUESTED) == seen or not exchange_if(state, _ASLEEP, _AWAKE):
                return seen, rounds, False
            looks = 0


@entry
def _step(rounds, control, sizes, numbers, matrices, vectors, cache):
    """Take part in the step that was requested, as thread 0."""
    return forward(0, rounds, control, sizes, numbers, matrices, vectors, cache)


@entry
def _request(control):
    """Announce a step; returns a bit mask of the helpers that sleep and must be woken."""
    base = control.ctypes.data
    store_word(base + 8 * p.REQUESTED, load_word(base + 8 * p.REQUESTED) + 1)
    asleep = 0
    for thread in range(1, 64):
        if exchange_if(base + 8 * (p.PARKED + 8 * thread), _ASLEEP, _AWAKE):
            asleep |= 1 << thread
    return asleep


def compile_entries() -> None:
    """Compile what this module calls, or load it from disk, without running it."""
    words, rows = types.int64[::1], types.int64[:, ::1]
    tables = (words, words, types.float32[::1], rows, rows, rows)
    _serve.compile((types.int64, types.int64, types.int64, *tables))
    _step.compile((types.int64, *tables))
    _request.compile((words,))


class Team:
    """Runs steps over one plan's tables on as many threads as they say, the caller's included. Close it at the end."""

    def __init__(
        self,
        control: np.ndarray,
        sizes: np.ndarray,
        numbers: np.ndarray,
        matrices: np.ndarray,
        vectors: np.ndarray,
        cache: np.ndarray,
    ) -> None:
        self._control = control
        self._tables = (sizes, numbers, matrices, vectors, cache)
        self._rounds = 0
        self._pace = Pace()
        self._wake = [threading.Semaphore(0) for _ in range(int(sizes[p.THREADS]))]
        self._helpers = [
            threading.Thread(target=self._help, args=(number,), name=f"ember-step-{number}", daemon=True)
            for number in range(1, int(sizes[p.THREADS]))
        ]
        for helper in self._helpers:
            helper.start()

    def step(self) -> None:
        """One pass over what the control words ask for."""
        started = time.perf_counter()
        if self._pace.is_alone and self._helpers:
            self._step_alone()
        else:
            self._step_together()
        count, length = int(self._control[p.COUNT]), int(self._control[p.START])
        self._pace.took(count, length, time.perf_counter() - started)

    def _step_alone(self) -> None:
        sizes = self._tables[0]
        num_threads, sizes[p.THREADS] = int(sizes[p.THREADS]), 1
        self._rounds = _step(self._rounds, self._control, *self._tables)
        sizes[p.THREADS] = num_threads

    def _step_together(self) -> None:
        asleep = _request(self._control)
        if asleep:
            for number, semaphore in enumerate(self._wake):
                if asleep >> number & 1:
                    semaphore.release()
        self._rounds = _step(self._rounds, self._control, *self._tables)

    def close(self) -> None:
        self._control[p.STOP] = 1
        for semaphore in self._wake:
            semaphore.release()
        for helper in self._helpers:
            helper.join()

    def _help(self, thread: int) -> None:
        seen, rounds, is_stopped = 0, 0, False
        while not is_stopped:
            seen, rounds, is_stopped = _serve(thread, seen, rounds, self._control, *self._tables)
            if not is_stopped:
                self._wake[thread].acquire()
