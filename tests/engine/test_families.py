"""Every family of models, through the real engine: resumed equals never closed, or "cannot resume" and still right."""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.protocol.commands import ChatMessage
from engine.protocol.config import EngineConfig
from engine.protocol.events import Finished, ModelInfo, ModelLoaded, SnapshotNotSaved
from engine.protocol.misses import MissCode, SaveProblem
from tests.engine.conftest import ColdReply, Engine, build_tokenizer, user
from tests.engine.families import BY_NAME, CHECKPOINT, FAMILIES, FULL, UNABLE, WINDOW, Expected, Family

BLOCK = 32
AROUND = [
    *((name, WINDOW + more) for name in ("gemma3_text", "llama4_text") for more in (-1, 0, 1)),
    *((name, BLOCK + more) for name in ("llama", "gemma3_text", "lfm2", "qwen3_next") for more in (-1, 0, 1)),
]
LEAST_RESUMING = 14
ILL_CONDITIONED = ("zamba2",)
"""With random weights one token at a time and all at once differ by a tenth of the logits' spread, in any cache."""

# Next to nothing around the messages, so that a prompt can be shorter than the window.
SHORT_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>{% endif %}"
)
FRAME = 3  # tokens that it adds to the first question


@dataclass(frozen=True)
class Row:
    """A line of the table: at the third turn, after a restart, `fed` of the prompt's tokens were fed."""

    family: str
    layers: int
    resumes: str
    fed: int
    prompt: int


@dataclass(frozen=True)
class Conversation:
    """Two turns, a restart, a third turn; and the same chat never closed."""

    model: ModelInfo
    history: list[ChatMessage]
    never_closed: Finished
    resumed: Finished
    regenerated: Finished
    unsaved: list[SnapshotNotSaved]


@pytest.fixture(scope="module")
def table() -> Iterator[dict[str, Row]]:
    rows: dict[str, Row] = {}
    yield rows
    print(f"\n\n{'family':18} {'layers':>6}  {'resumes':10} {'tokens fed at the third turn':>28}  of")
    for row in rows.values():
        print(f"{row.family:18} {row.layers:6}  {row.resumes:10} {row.fed:28}  {row.prompt}")


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Family], Path]:
    root = tmp_path_factory.mktemp("families")

    @functools.cache
    def path(family: Family) -> Path:
        folder = family.save(root / family.name)
        tokenizer = build_tokenizer()
        tokenizer.chat_template = SHORT_TEMPLATE
        tokenizer.save_pretrained(folder)
        return folder

    return path


@pytest.fixture
def talk(
    engine_config: EngineConfig, tmp_path: Path, model_of: Callable[[Family], Path]
) -> Iterator[Callable[..., Conversation]]:
    running: list[Engine] = []

    def start(model: Path, kv_dir: Path) -> tuple[Engine, ModelInfo]:
        engine = Engine(dataclasses.replace(engine_config, kv_dir=kv_dir))
        running.append(engine)
        loaded = engine.load(model)
        assert isinstance(loaded, ModelLoaded), loaded
        return engine, loaded.model

    def talk(family: Family, prompt_tokens: int) -> Conversation:
        model = model_of(family)
        engine, info = start(model, tmp_path / "kv")
        messages = [user("x" * (prompt_tokens - FRAME))]
        assert engine.reply("a", messages).statistics.prompt_tokens == prompt_tokens
        messages.append(user("and then?"))
        engine.reply("a", messages)
        messages.append(user("go on"))
        shutil.copytree(tmp_path / "kv", tmp_path / "after two turns")
        never_closed = engine.reply("a", list(messages))
        unsaved = [event for event in engine.events if isinstance(event, SnapshotNotSaved)]
        running.pop().close()
        engine, _ = start(model, tmp_path / "after two turns")
        resumed = engine.reply("a", list(messages))
        regenerated = engine.reply("a", list(messages))
        return Conversation(info, messages, never_closed, resumed, regenerated, unsaved)

    yield talk
    while running:
        running.pop().close()


def check_resumes(family: Family, conversation: Conversation) -> None:
    resumed, never_closed = conversation.resumed, conversation.never_closed
    regenerated = conversation.regenerated
    assert conversation.model.cannot_resume_reason is None
    assert conversation.unsaved == []
    assert resumed.token_ids == never_closed.token_ids
    assert resumed.statistics.prefilled_tokens == never_closed.statistics.prefilled_tokens
    assert resumed.statistics.prefilled_tokens <= len("go on") + FRAME
    assert resumed.statistics.miss_code is None
    assert regenerated.token_ids == resumed.token_ids
    assert regenerated.statistics.prefilled_tokens <= 2
    assert regenerated.statistics.miss_code is None


@pytest.mark.parametrize("family", FULL + CHECKPOINT, ids=lambda family: family.name)
def test_a_family_resumes_as_if_never_closed(
    talk: Callable[..., Conversation],
    family: Family,
    table: dict[str, Row],
    cold_reply: ColdReply,
    model_of: Callable[[Family], Path],
) -> None:
    conversation = talk(family, WINDOW + 24)
    check_resumes(family, conversation)
    if family.name not in ILL_CONDITIONED:
        assert conversation.resumed.token_ids == cold_reply(model_of(family), conversation.history).token_ids
    resumes = "exact" if family.expected is Expected.FULL else "checkpoint"
    statistics = conversation.resumed.statistics
    table[family.name] = Row(
        family.name,
        conversation.model.num_layers,
        resumes,
        statistics.prefilled_tokens,
        statistics.prompt_tokens,
    )


@pytest.mark.parametrize(("name", "prompt_tokens"), AROUND)
def test_around_the_end_of_a_window_and_of_a_block_it_is_the_same(
    talk: Callable[..., Conversation], name: str, prompt_tokens: int
) -> None:
    check_resumes(BY_NAME[name], talk(BY_NAME[name], prompt_tokens))


@pytest.mark.parametrize("family", UNABLE, ids=lambda family: family.name)
def test_a_family_that_cannot_resume_says_so_and_answers_right(
    talk: Callable[..., Conversation],
    family: Family,
    table: dict[str, Row],
    cold_reply: ColdReply,
    model_of: Callable[[Family], Path],
) -> None:
    conversation = talk(family, WINDOW + 24)
    reason = conversation.model.cannot_resume_reason
    assert reason is not None
    assert reason.startswith("this model cannot resume: ")
    assert {problem.code for problem in conversation.unsaved} == {SaveProblem.CANNOT_RESUME}
    assert {problem.reason for problem in conversation.unsaved} == {reason}
    statistics = conversation.resumed.statistics
    assert statistics.reused_tokens == 0
    assert statistics.miss_code == MissCode.CANNOT_RESUME
    assert statistics.miss_reason == reason
    cold = cold_reply(model_of(family), conversation.history)
    assert cold.token_ids == conversation.resumed.token_ids
    assert cold.token_ids == conversation.never_closed.token_ids
    assert cold.token_ids == conversation.regenerated.token_ids
    table[family.name] = Row(
        family.name,
        conversation.model.num_layers,
        "unable",
        statistics.prefilled_tokens,
        statistics.prompt_tokens,
    )


def test_enough_families_resume(table: dict[str, Row]) -> None:
    """Runs last: the rows are those of the tests above, one for every family."""
    assert table.keys() == {family.name for family in FAMILIES}
    assert sum(row.resumes in ("exact", "checkpoint") for row in table.values()) >= LEAST_RESUMING
