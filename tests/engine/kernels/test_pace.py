"""When a step is better run by one thread: what the steps before it took decides."""

from __future__ import annotations

from engine.kernels.pace import Pace

USUAL_S = 0.004


def run(pace: Pace, seconds: float, steps: int, length: int = 100) -> int:
    """How many of the steps were one thread's."""
    alone = 0
    for _ in range(steps):
        alone += pace.is_alone
        pace.took(1, length, seconds)
    return alone


def test_steps_of_the_usual_length_are_shared() -> None:
    assert run(Pace(), USUAL_S, 200) == 0


def test_a_single_slow_step_changes_nothing() -> None:
    pace = Pace()
    run(pace, USUAL_S, 10)
    run(pace, 1.0, 1)
    assert run(pace, USUAL_S, 10) == 0


def test_slow_steps_in_a_row_leave_it_to_one_thread_for_longer_and_longer() -> None:
    pace = Pace()
    run(pace, USUAL_S, 10)
    run(pace, 1.0, 2)
    assert pace.is_alone
    assert run(pace, 0.02, 16) == 16
    assert not pace.is_alone  # an attempt
    run(pace, 1.0, 1)
    assert run(pace, 0.02, 32) == 32
    assert run(pace, 1.0, 1000) > 950


def test_an_attempt_that_goes_well_brings_all_threads_back() -> None:
    pace = Pace()
    run(pace, USUAL_S, 10)
    run(pace, 1.0, 2)
    run(pace, 0.02, 16)
    assert run(pace, USUAL_S, 100) == 0


def test_a_longer_chat_is_not_taken_for_a_busy_machine() -> None:
    pace = Pace()
    run(pace, USUAL_S, 50, length=60)
    assert run(pace, 20 * USUAL_S, 50, length=30_000) == 0
    assert run(pace, USUAL_S, 50, length=60) == 0
