"""Tiny random models with a real tokenizer, and an engine run to completion: the worker's events, in order."""

from __future__ import annotations

import dataclasses
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from engine.kernels.packing import Matrix
from engine.model.forward import ForwardPass
from engine.model.lean_weights import describe
from engine.model.loader import LoadedModel, load_model
from engine.protocol.commands import ChatMessage, Estimate, Forget, Generate, LoadModel, ReportCache, Role
from engine.protocol.config import GREEDY, EngineConfig, Sampling, Weights
from engine.protocol.events import (
    CacheReported,
    EngineStopped,
    Estimated,
    Event,
    Failed,
    Finished,
    ModelLoaded,
    SnapshotNotSaved,
    SnapshotSaved,
)
from engine.runtime import Runtime
from engine.worker import EngineWorker

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
TIMEOUT_S = 60.0


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of 384 entries: every character is several tokens, as in the worst real case."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog and tells a story"] * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", bos_token="<|start|>", chat_template=TEMPLATE
    )


def build_model(folder: Path, model_type: str = "llama", *, seed: int = 0, **overrides: object) -> Path:
    """Save a tiny random model of a family, with the tokenizer, as a safetensors folder."""
    tokenizer = build_tokenizer()
    sizes: dict[str, object] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "pad_token_id": tokenizer.eos_token_id,
        "tie_word_embeddings": False,
    }
    config = AutoConfig.for_model(model_type, **{**sizes, **overrides})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():  # random enough that replies differ from prompt to prompt
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def full_compute_precision(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Random weights leave the best tokens close together: compare cold and kept replies in float32, as on old CPUs."""
    if "native_dtype" not in request.keywords:
        monkeypatch.setattr("engine.model.loader.compute_dtype", lambda device: torch.float32)


@pytest.fixture(scope="session")
def compiled_kernels() -> None:
    """The kernels of the compiled step, for this processor: half a minute where they have not been used yet."""
    pytest.importorskip("numba")
    subprocess.run([sys.executable, "-m", "engine.kernels.compile", "--wait"], check=True)


@pytest.fixture
def lean_step(compiled_kernels: None) -> Iterator[Callable[..., ForwardPass]]:
    """Makes forward passes of the compiled step: of a model, with matrices in place of its own, on so many threads."""
    from engine.model.lean import LeanStep  # it imports numba

    steps: list[LeanStep] = []

    def start(model: PreTrainedModel, packed: Mapping[str, Matrix] | None = None, num_threads: int = 2) -> ForwardPass:
        weights = describe(model, packed)
        assert weights is not None
        steps.append(LeanStep(weights, model.config.max_position_embeddings, num_threads))
        forward = ForwardPass(model, torch.device("cpu"))
        forward.step = steps[-1]
        return forward

    yield start
    for step in steps:
        step.close()


@pytest.fixture
def bfloat16_on_the_processor(full_compute_precision: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine does best."""
    monkeypatch.setattr("engine.model.loader.compute_dtype", lambda device: torch.bfloat16)
    monkeypatch.setattr("engine.model.loader.pick_device", lambda: torch.device("cpu"))


@pytest.fixture
def load_in_bfloat16(
    engine_config: EngineConfig, bfloat16_on_the_processor: None
) -> Iterator[Callable[..., LoadedModel]]:
    """Loads models in bfloat16 on the processor, and closes them at the end."""
    loaded: list[LoadedModel] = []

    def load(folder: Path, weights: Weights = Weights.BITS_16) -> LoadedModel:
        loaded.append(load_model(folder, weights, engine_config, lambda stage: None))
        return loaded[-1]

    yield load
    for model in loaded:
        model.close()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def window_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with sliding layers: its cache can only go back to a checkpoint."""
    layer_types = ["sliding_attention", "sliding_attention", "full_attention"]
    folder = tmp_path_factory.mktemp("models") / "window"
    return build_model(folder, "gemma3_text", sliding_window=16, layer_types=layer_types)


class Engine:
    """An engine worker driven like a program drives it: submit, then wait for the event that answers."""

    def __init__(self, config: EngineConfig) -> None:
        self.events: list[Event] = []
        self._queue: queue.Queue[Event] = queue.Queue()
        self.worker = EngineWorker(config, self._queue.put)
        self.worker.start()
        self._count = 0

    def wait(self, *types: type[Event], request_id: str | None = None) -> Event:
        while True:
            event = self._queue.get(timeout=TIMEOUT_S)
            self.events.append(event)
            if isinstance(event, types) and request_id in (None, getattr(event, "request_id", None)):
                return event

    def load(self, path: Path, weights: Weights = Weights.BITS_16) -> Event:
        self._count += 1
        self.worker.submit(LoadModel(f"load-{self._count}", path, weights))
        return self.wait(ModelLoaded, Failed)

    def reply(
        self,
        conversation: str,
        messages: list[ChatMessage],
        *,
        sampling: Sampling = GREEDY,
        max_new_tokens: int = 12,
        stop: tuple[str, ...] = (),
        is_saved: bool = True,
        **options: Any,
    ) -> Finished:
        """Run one turn to its end, snapshot included; appends the reply to `messages`.

        `options`: further fields of `Generate`.
        """
        self._count += 1
        request = f"turn-{self._count}"
        self.worker.submit(Generate(conversation, request, tuple(messages), sampling, max_new_tokens, stop, **options))
        finished = self.wait(Finished, Failed, request_id=request)
        assert isinstance(finished, Finished), finished
        if is_saved:
            self.wait(SnapshotSaved, SnapshotNotSaved, request_id=request)
        ids = finished.token_ids if finished.ids_match_text else None
        messages.append(ChatMessage(Role.ASSISTANT, finished.text, ids))
        return finished

    def estimate(self, conversation: str, messages: Sequence[ChatMessage], **options: Any) -> Estimated:
        """What the next turn would cost; asserts that the engine tells nothing else meanwhile."""
        self._count += 1
        request = f"estimate-{self._count}"
        self.report()
        told = len(self.events)
        self.worker.submit(Estimate(conversation, request, tuple(messages), **options))
        answer = self.wait(Estimated, Failed, request_id=request)
        assert isinstance(answer, Estimated), answer
        assert all(isinstance(event, Estimated | SnapshotSaved) for event in self.events[told:])
        return answer

    def fail(self, conversation: str, messages: list[ChatMessage]) -> Failed:
        self._count += 1
        self.worker.submit(Generate(conversation, f"turn-{self._count}", tuple(messages), GREEDY, 12))
        failed = self.wait(Finished, Failed)
        assert isinstance(failed, Failed), failed
        return failed

    def report(self) -> CacheReported:
        """The whole cache in numbers; answered after everything submitted before."""
        self._count += 1
        self.worker.submit(ReportCache(f"report-{self._count}"))
        report = self.wait(CacheReported, request_id=f"report-{self._count}")
        assert isinstance(report, CacheReported)
        return report

    def forget(self, conversation: str) -> None:
        """Drop a conversation and wait until it is gone."""
        self.worker.submit(Forget(conversation))
        self.report()

    @property
    def runtime(self) -> Runtime:
        """What the worker's thread holds, to look at or to damage while it waits for commands."""
        frame = sys._current_frames()[self.worker._thread.ident or 0]
        while frame is not None:
            if isinstance(found := frame.f_locals.get("runtime"), Runtime):
                return found
            frame = frame.f_back
        raise AssertionError("no model was ever loaded")

    def close(self) -> None:
        self.worker.shutdown()
        self.wait(EngineStopped)


def user(text: str) -> ChatMessage:
    return ChatMessage(Role.USER, text)


@pytest.fixture
def engine_config(tmp_path: Path) -> EngineConfig:
    return EngineConfig(tmp_path / "kv", tmp_path / "converted", prefill_chunk=32)


ColdReply = Callable[..., Finished]


@pytest.fixture
def cold_reply(engine_config: EngineConfig, tmp_path: Path) -> ColdReply:
    """The reply of an engine that knows nothing: each call starts one on an empty folder of its own, and ends it."""
    count = 0

    def reply(model: Path, messages: list[ChatMessage], **options: object) -> Finished:
        nonlocal count
        count += 1
        engine = Engine(dataclasses.replace(engine_config, kv_dir=tmp_path / f"cold-{count}"))
        try:
            assert isinstance(engine.load(model), ModelLoaded)
            finished = engine.reply("cold", list(messages), **options)  # type: ignore[arg-type]
        finally:
            engine.close()
        assert finished.statistics.reused_tokens == 0
        return finished

    return reply


@pytest.fixture
def start_engine(engine_config: EngineConfig) -> Iterator[Callable[..., Engine]]:
    """Starts engines on one data folder, one after the other: each call closes the one before, like a restart.

    Further arguments replace fields of the configuration.
    """
    running: list[Engine] = []

    def start(model: Path | None = None, weights: Weights = Weights.BITS_16, **settings: object) -> Engine:
        while running:
            running.pop().close()
        engine = Engine(dataclasses.replace(engine_config, **settings))  # type: ignore[arg-type]
        running.append(engine)
        if model is not None:
            loaded = engine.load(model, weights)
            assert isinstance(loaded, ModelLoaded), loaded
        return engine

    yield start
    while running:
        running.pop().close()
