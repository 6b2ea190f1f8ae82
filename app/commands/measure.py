"""`ember verify ID` and `ember bench NAME`: the engine measures itself."""

from __future__ import annotations

from dataclasses import asdict
from uuid import uuid4

from app.commands.call import Call, find_conversation
from app.commands.engine_run import EngineRun
from app.errors import UserError
from engine.protocol.commands import BenchName, RunBench
from engine.protocol.config import Weights
from engine.protocol.events import BenchFinished, Verified


def verify(call: Call) -> int:
    with call.own_store() as store:
        conversation = find_conversation(store, call.arguments.id)
        if not conversation.num_messages:
            raise UserError("The conversation is empty, so there is nothing to verify; write something first.")
        model = call.arguments.model or conversation.model or call.settings().model
        with EngineRun(call, store) as run:
            run.load_now(call, model, _weights(call))
            verified = run.answer(run.session.verify(conversation.id), Verified)
    content = asdict(verified)
    del content["request_id"]
    if call.arguments.json:
        call.print_json(content)
    elif verified.equal:
        call.print(f"Equal: {verified.tokens_compared} tokens from the kept cache and from a cold prefill.")
    else:
        call.print(
            f"Different from token {verified.first_difference} on; largest difference of a logit "
            f"{verified.max_logit_error:.3g}, noise {verified.noise_floor:.3g}, precision {verified.precision}."
        )
    return 0


def bench(call: Call) -> int:
    with call.own_store() as store, EngineRun(call, store) as run:
        run.load_now(call, call.arguments.model or call.settings().model, _weights(call))
        request_id = uuid4().hex
        run.engine.submit(RunBench(request_id, BenchName(call.arguments.name), call.arguments.context))
        result = run.answer(request_id, BenchFinished).result
    if call.arguments.json:
        call.print_json(result)
        return 0
    for name, value in result.items():
        call.print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
    return 0


def _weights(call: Call) -> Weights:
    return Weights(call.arguments.weights) if call.arguments.weights else call.settings().weights
