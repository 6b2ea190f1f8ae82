"""The measurements of `ember bench` and of the cache lab: each in one line of plain words, and as a command."""

from __future__ import annotations

import shlex

from engine.protocol.commands import BenchName
from engine.protocol.config import Weights

WORDS: dict[BenchName, str] = {
    BenchName.USE_CACHE: "the same model with its KV cache and without: time a token, first token, memory",
    BenchName.MEMORY: "what a mix of chats takes: contiguous buffers against blocks, and what is wasted",
    BenchName.LOOP: "the decode loop step by step: the five best tokens, and how the cache grows",
    BenchName.PRECISIONS: "every precision of the cache: size, speed, predictions, and a reply beside the full one's",
    BenchName.ATTENTION: "every kind of attention that runs here: milliseconds a call, and how far they differ",
    BenchName.SHARED_PREFIX: "chats with the same beginning, with it kept once, and without",
    BenchName.HEADS: "small models of equal width with MHA, GQA and MQA: bytes a token and speed",
    BenchName.KVZIP: "how little of a cache is enough to recall planted facts (KVzip)",
    BenchName.PREFILL_DECODE: "reading many tokens at once against writing one at a time, and what bounds each",
    BenchName.FIDELITY: "what every scheme costs in predictions and recall, in depth: takes some minutes",
    BenchName.DECODE: "speed of writing at a length",
    BenchName.PREFILL: "speed of reading",
    BenchName.RESUME: "a chat that is resumed from disk against one that is read again",
}

ROOM: dict[BenchName, int] = {
    BenchName.USE_CACHE: 131,
    BenchName.PRECISIONS: 156,
    BenchName.SHARED_PREFIX: 65,
    BenchName.PREFILL_DECODE: 17,
    BenchName.KVZIP: 160,
}
"""Tokens that a model has to read beyond the length it is measured at: no less than what the engine asks for."""


def command_of(name: BenchName, context: int | None, model: str = "", weights: str = Weights.BITS_16) -> str:
    """What to type to measure the same again; `model` as it is called, or where it lies."""
    parts = ["ember", "bench", str(name)]
    if context is not None:
        parts += ["--context", str(context)]
    if model:
        parts += ["--model", shlex.quote(model)]
    if weights != Weights.BITS_16:
        parts += ["--weights", str(weights)]
    return " ".join(parts)
