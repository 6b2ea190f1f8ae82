"""`ember bench decode` and `prefill`: the two speeds of a chat, as replies have them."""

from __future__ import annotations

from engine.lab.lab import Lab

USUAL = 2048
DECODE_STEPS = 32
_ROOM = DECODE_STEPS + 12


def decode(lab: Lab, context: int | None) -> dict[str, object]:
    """Raises ContextOverflowError, StoppedError."""
    context = lab.length(context, USUAL, least=1, room=_ROOM)
    lab.plan(1 + DECODE_STEPS)
    cache = lab.model.new_cache(context)
    lab.read(lab.ids(context), cache)
    lab.step()
    elapsed = 0.0
    for token_id in lab.ids(DECODE_STEPS):
        elapsed += lab.decode_s(cache, [token_id])[0]
        lab.step()
    return {
        "context": context,
        "decode_tps": DECODE_STEPS / elapsed,
        "ms_per_token": elapsed / DECODE_STEPS * 1e3,
    }


def prefill(lab: Lab, context: int | None) -> dict[str, object]:
    """Raises ContextOverflowError, StoppedError."""
    context = lab.length(context, USUAL, least=1, room=_ROOM)
    lab.plan(1)
    cache = lab.model.new_cache(context)
    elapsed = lab.timed(lambda: lab.read(lab.ids(context), cache))
    lab.step()
    return {"context": context, "prefill_tps": context / elapsed}
