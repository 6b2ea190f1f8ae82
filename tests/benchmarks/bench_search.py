"""How long searching takes among 10,000 messages in 200 chats: python -m tests.benchmarks.bench_search [NUMBER].

Messages are about 300 characters, English and Korean mixed. Every figure is the median of nine searches, and the
slowest of them; processor time tells what it would be on a machine that does nothing else.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from app.conversation_store import ConversationStore
from tests.benchmarks.varied_text import sentence

QUERIES = {
    "common word": "the",
    "common Korean particle": "에서",
    "rare word": "8,123",
    "word of every message": "e",
    "one syllable, half typed": "하",
    "one letter, rare": "Z",
    "one consonant": "ㅉ",
    "no hit": "nowhere to be found",
    "no hit, short": "zq",
    "two words": "ferry 등대지기",
    "short and long": "의 captain",
    "phrase": '"traded 12 maps"',
}


def fill(store: ConversationStore, *, num_messages: int, num_conversations: int = 200) -> None:
    """Random sentences, in one statement, as an import would bring them."""
    chance = random.Random(4)
    sentences = [sentence(chance, is_korean=number % 2 == 0) for number in range(2_000)]
    with store.transaction():
        chats = [store.create_conversation().id for _ in range(num_conversations)]
        for chat in chats:
            store.set_title(chat, chance.choice(sentences)[:60])
        store._insert_many(
            "main.messages",
            [
                {
                    "conversation_id": chats[number % num_conversations],
                    "role": "user",
                    "text": " ".join(chance.choices(sentences, k=5)),
                    "state": "complete",
                    "created_at": "2026-01-01T00:00:00.000000+00:00",
                }
                for number in range(num_messages)
            ],
        )


def main() -> None:
    num_messages = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ember.db"
        store = ConversationStore(path)
        started = time.perf_counter()
        fill(store, num_messages=num_messages)
        print(f"{num_messages:,} messages stored and indexed in {time.perf_counter() - started:.2f} s")
        store.close()
        started = time.perf_counter()
        store = ConversationStore(path)
        print(f"opened in {(time.perf_counter() - started) * 1000:.1f} ms, {path.stat().st_size / 2**20:.0f} MiB")
        for name, query in QUERIES.items():
            times, cpu = [], []
            for _ in range(9):
                started, cpu_started = time.perf_counter(), time.process_time()
                hits = store.search(query)
                times.append((time.perf_counter() - started) * 1000)
                cpu.append((time.process_time() - cpu_started) * 1000)
            times.sort()
            figures = f"{times[4]:6.1f} ms (slowest {times[-1]:.1f}), {sorted(cpu)[4]:.1f} ms of processor time"
            print(f"{name:26} {query!r:24} {len(hits):4} hits  {figures}")
        store.close()


if __name__ == "__main__":
    main()
