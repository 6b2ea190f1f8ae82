"""What a turn would cost, told without taking it: nothing is fed, read from disk or changed. Inference thread."""

from __future__ import annotations

from engine.kv.chat_key import chat_key
from engine.kv.forecast import forecast
from engine.kv.manager import CacheManager
from engine.model.loader import LoadedModel
from engine.prompt import make_prompt
from engine.protocol.commands import CountTokens, Estimate
from engine.protocol.events import Estimated, TokensCounted


def estimate(command: Estimate, model: LoadedModel, caches: CacheManager) -> Estimated:
    """Raises TemplateError."""
    prompt = make_prompt(model, command, caches)
    ids, context_length = prompt.token_ids, model.info.context_length
    ahead = forecast(caches, chat_key(command.conversation_id, command.branch), ids, prompt.history_tokens)
    new_tokens = len(ids) - ahead.reused
    shift, to_score = (prompt.outlook.shift, prompt.outlook.to_score) if prompt.outlook is not None else (0, 0)
    per_token = model.geometry.bytes_per_token
    return Estimated(
        conversation_id=command.conversation_id,
        request_id=command.request_id,
        prompt_tokens=len(ids),
        new_tokens=new_tokens,
        from_disk_tokens=ahead.from_disk,
        seconds=caches.rates.first_token_s(
            new_tokens + to_score,
            ahead.reused,
            ahead.from_disk * per_token,
            ahead.copied * per_token,
            is_exact=ahead.is_exact,
        ),
        context_length=context_length,
        num_dropped=prompt.num_dropped,
        fits=len(ids) - shift < context_length,
        miss_code=ahead.miss.code.value if ahead.miss else None,
        miss_params=ahead.miss.params if ahead.miss else {},
    )


def count_tokens(command: CountTokens, model: LoadedModel) -> TokensCounted:
    counts = tuple(model.history.count(text) for text in command.texts)
    return TokensCounted(command.request_id, counts, model.info.context_length)
