"""Whether the compiled step says what the model says: 20 replies to the end, token by token, and their logits.

.venv/bin/python -m tests.benchmarks.equality
.venv/bin/python -m tests.benchmarks.equality --weights 16bit --tokens 64 --json equality.json

Replies part where the two best logits lie closer together than rounding on the way moves them; whose rounding is nearer
to float32 is what the errors tell.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import torch

from app.paths import resources_dir
from engine.model import lean_weights
from engine.model.forward import ForwardPass
from engine.model.lean import LeanStep
from engine.model.lean_weights import describe
from engine.protocol.config import EngineConfig, Weights
from tests.benchmarks.equality_prompts import CONVERSATIONS, messages
from tests.benchmarks.equality_runs import Compared, Errors, run_three_ways
from tests.benchmarks.peer_process import compile_now
from tests.engine import lean_models
from tests.engine.families import FAMILIES, Expected
from tests.engine.lean_models import LEAN_FAMILIES, LeanFamily

_PROBE_TOKENS = 24


def compare(path: Path, weights: Weights, config: EngineConfig, num_tokens: int) -> list[Compared]:
    """Every conversation, printed as it is done."""
    compared = []
    with run_three_ways(path, weights, config) as trio:
        how = "" if trio.is_loaded_so else " (every matrix rounded by this program)"
        print(
            f"\n{weights.value}{how}\n{'':16} prompt  equal  margin  (float32's)   step: max    rms   own: max    rms"
        )
        for name, turns in CONVERSATIONS.items():
            ids: Any = trio.loaded.tokenizer.apply_chat_template(
                messages(turns), add_generation_prompt=True, return_dict=False
            )
            one = trio.compare(name, list(ids), num_tokens)
            compared.append(one)
            print(_row(one), flush=True)
    print(_summary(compared))
    return compared


def _row(one: Compared) -> str:
    margins = 23 * " "
    if one.margin is not None and one.exact_margin is not None:
        margins = f"{one.margin:8.3f} {one.exact_margin:+12.3f}  "
    equal = "all" if one.first_difference is None else str(one.first_difference)
    step, own = one.step, one.own
    figures = f"{step.max:9.3f} {step.rms:6.3f} {own.max:10.3f} {own.rms:6.3f}"
    return f"{one.name:16} {one.prompt_tokens:6} {equal:>6}{margins} {figures}"


def _summary(compared: Sequence[Compared]) -> str:
    whole = sum(one.first_difference is None for one in compared)
    same = sum(one.reply_tokens if one.first_difference is None else one.first_difference for one in compared)
    margins = [one.margin for one in compared if one.margin is not None]
    widest = f"; they part at margins up to {max(margins):.3f}" if margins else ""
    step, own = (statistics.mean(errors.rms for errors in side) for side in _sides(compared))
    step_best, own_best = (sum(errors.same_best for errors in side) for side in _sides(compared))
    total = sum(one.reply_tokens for one in compared)
    return (
        f"{whole} of {len(compared)} replies are the same, {same} tokens before the first difference{widest};"
        f" rms error {step:.4f} (step), {own:.4f} (own bfloat16), ratio {step / own:.2f};"
        f" of {total} tokens float32 likes the same best as the step {step_best} times, as its own {own_best} times"
    )


def _sides(compared: Sequence[Compared]) -> tuple[list[Errors], list[Errors]]:
    return [one.step for one in compared], [one.own for one in compared]


def probe(family: LeanFamily) -> tuple[float, float]:
    """Relative errors of the step's logits and of the model's own in bfloat16, against float32, on a tiny model."""
    ids = torch.randint(2, lean_models.VOCABULARY, (_PROBE_TOKENS,), generator=torch.manual_seed(5)).tolist()
    model = family.build()
    exact = ForwardPass(model, torch.device("cpu")).all_logits(ids, lean_models.new_cache(model))
    forward = ForwardPass(model.bfloat16(), torch.device("cpu"))
    own = forward.all_logits(ids, lean_models.new_cache(model))
    weights = describe(model)
    assert weights is not None, family.name
    forward.step = LeanStep(weights, model.config.max_position_embeddings, 1)
    step = forward.all_logits(ids, lean_models.new_cache(model))
    forward.step.close()
    spread = (exact - exact.mean()).norm()
    return float((step - exact).norm() / spread), float((own - exact).norm() / spread)


def left_to_their_own_pass() -> Iterator[str]:
    for family in FAMILIES:
        if family.model_type not in lean_weights.FAMILIES or family.expected is not Expected.FULL:
            yield family.name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=resources_dir() / "models" / "SmolLM2-135M-Instruct")
    parser.add_argument(
        "--weights", nargs="+", choices=[one.value for one in Weights], default=["16bit", "8bit", "4bit"]
    )
    parser.add_argument("--tokens", type=int, default=128, help="of each reply")
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False))
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args()
    compile_now()
    torch.set_num_threads(options.threads)
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as scratch:
        config = EngineConfig(Path(scratch) / "kv", Path(scratch) / "converted")
        for name in options.weights:
            figures[name] = [asdict(one) for one in compare(options.model, Weights(name), config, options.tokens)]
    print(f"\n{'tiny model':22} error of the step   of its own pass in bfloat16")
    probes = {family.name: probe(family) for family in LEAN_FAMILIES}
    for name, (step, own) in probes.items():
        print(f"{name:22} {step:17.4f} {own:19.4f}")
    left = list(left_to_their_own_pass())
    print(f"\nleft to their own pass: {', '.join(left)}")
    if options.json:
        options.json.write_text(json.dumps({**figures, "families": probes, "left": left}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
