"""What a restart costs: the first token of a 6,000-token chat, resumed in a new process against read again.

make bench          (or one file: make bench ARGS=tests/benchmarks/bench_resume.py)
"""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end.conftest import Ember, long_message

ROUNDS = 3


def test_resume_against_reading_again(ember: Ember) -> None:
    first = ember.ask(long_message(195), "--new", tokens=8)
    chat = first["conversation_id"]
    turns = [ember.ask("hi", "--conversation", chat, tokens=8) for _ in range(ROUNDS)]
    cold_s = first["ttft_s"]
    print(
        f"\n{first['prompt_tokens']:,} tokens read: first token after {cold_s:.2f} s, {first['prefill_tps']:.0f} tok/s"
    )
    for turn in turns:
        print(
            f"resumed: first token after {turn['ttft_s']:.3f} s (restore {turn['restore_s']:.3f} s),"
            f" {turn['prefilled_tokens']} tokens fed, {turn['reused_tokens']:,} reused:"
            f" {cold_s / turn['ttft_s']:.0f} times sooner"
        )
        assert turn["miss_reason"] is None


def test_resume_in_one_process(ember: Ember) -> None:
    """The contract's own measurement, cold and resumed in one run."""
    result = ember.json("bench", "resume", "--context", "6000")
    print(f"\nresume at 6,000: {result}")
    for name in ("decode", "prefill"):
        for context in (64, 2048):
            print(ember.json("bench", name, "--context", str(context)))


def test_kept_equals_cold(ember: Ember, default_model: Path) -> None:
    chat = ember.ask(long_message(60), "--new", tokens=32)["conversation_id"]
    print(f"\nverify: {ember.json('verify', chat)}")
