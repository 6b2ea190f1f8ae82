"""The command line from the outside: arguments in; words, one object and an exit code out. The engine is a fake."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app import cli
from app.conversation import Attachment, Draft
from app.conversation_store import ConversationStore
from app.instance_lock import InstanceLock
from app.paths import DataPaths
from engine.protocol.commands import BenchName, Compress, ForgetUnknown, Generate, LoadModel, Pin, Role, RunBench
from engine.protocol.config import Weights
from engine.protocol.errors import ContextOverflowError, GenerationError, ModelDamagedError
from engine.protocol.events import (
    CacheReported,
    CacheState,
    ConversationCache,
    FinishReason,
    PressureActed,
    SnapshotNotSaved,
)
from engine.protocol.misses import SaveProblem
from tests.fakes import ScriptedEngine, finished

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Told:
    code: int
    out: str
    err: str

    @property
    def content(self) -> dict[str, Any]:
        assert self.out.count("\n") == 1, "one object on one line"
        content = json.loads(self.out)
        assert isinstance(content, dict)
        return content

    @property
    def sentence(self) -> str:
        assert self.err.startswith("ember: ")
        assert self.err.endswith(".\n")
        assert self.err.count("\n") == 1, "one sentence"
        return self.err.removeprefix("ember: ").rstrip("\n")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class CommandLine:
    """Calls Ember in this process, on a data folder, with a scripted engine."""

    def __init__(self, data_dir: Path, resources: Path) -> None:
        self.data_dir = data_dir
        self.resources = resources
        self.engines: list[ScriptedEngine] = []

    def __call__(
        self, *arguments: str, out: io.StringIO | None = None, err: io.StringIO | None = None, **script: Any
    ) -> Told:
        def make_engine(config: Any, on_event: Any) -> ScriptedEngine:
            self.engines.append(ScriptedEngine(config=config, on_event=on_event, **script))
            return self.engines[-1]

        out, err = out or io.StringIO(), err or io.StringIO()
        parsed = cli.parse(["--data-dir", str(self.data_dir), *arguments])
        code = cli.run(parsed, make_engine=make_engine, resources_dir=self.resources, out=out, err=err)
        assert not any(engine.is_running for engine in self.engines), "every engine is shut down"
        return Told(code, out.getvalue(), err.getvalue())

    @property
    def last_question(self) -> Generate:
        return self.engines[-1].generated[-1]

    def store(self) -> ConversationStore:
        return ConversationStore(self.data_dir / "ember.db")

    def messages(self, conversation_id: str | None = None) -> list[tuple[str, str]]:
        store = self.store()
        try:
            conversation_id = conversation_id or store.conversations()[0].id
            return [(message.role.value, message.text) for message in store.messages(conversation_id)]
        finally:
            store.close()


@pytest.fixture
def ember(tmp_path: Path, data_dir: Path) -> CommandLine:
    model = tmp_path / "resources" / "models" / "SmolLM2-135M-Instruct"
    model.mkdir(parents=True)
    config = {"model_type": "llama", "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    (model / "config.json").write_text(json.dumps(config | {"hidden_size": 576, "max_position_embeddings": 8192}))
    return CommandLine(data_dir, tmp_path / "resources")


# ask


def test_ask_streams_the_reply_as_it_comes(ember):
    seen: list[str] = []
    out = io.StringIO()
    told = ember("ask", "Hello", out=out, on_part=lambda: seen.append(out.getvalue()))
    assert (told.code, told.out, told.err) == (0, "Hello there.\n", "")
    assert ember.messages() == [("user", "Hello"), ("assistant", "Hello there.")]


def test_ask_json_has_the_fields_of_the_contract(ember):
    told = ember("ask", "--json", "Hello")
    assert (told.code, told.err) == (0, "")
    content = told.content
    extras = {"new_tokens", "miss_code", "miss_params", "pressure", "drafted_tokens", "accepted_tokens"}
    assert {name: type(value) for name, value in content.items() if name not in extras | {"miss_reason"}} == {
        "conversation_id": str,
        "reply": str,
        "token_ids": list,
        "finish_reason": str,
        "prompt_tokens": int,
        "reused_tokens": int,
        "prefilled_tokens": int,
        "load_s": float,
        "restore_s": float,
        "ttft_s": float,
        "prefill_tps": float,
        "decode_tps": float,
        "cache": dict,
        "snapshot": dict,
    }
    assert (content["reply"], content["token_ids"], content["finish_reason"]) == ("Hello there.", [0, 1, 2], "stop")
    assert content["miss_reason"] is None
    assert [content[name] for name in sorted(extras)] == [0, 0, None, {}, 3, []]
    assert content["cache"] == {"tokens": 12, "bytes": 276_480, "precision": "float32", "place": "cpu", "kept": 1.0}
    assert (content["snapshot"]["bytes_written"], content["snapshot"]["bytes_total"]) == (100, 300)


def test_a_cache_that_is_not_saved_is_a_note_and_no_failure(ember):
    told = ember("ask", "--json", "Hello", not_saved="The disk is full.")
    assert (told.code, told.sentence) == (0, "The disk is full.")
    snapshot = {"bytes_written": 0, "bytes_total": 0, "reason": "The disk is full.", "code": "disk_error"}
    assert told.content["snapshot"] == snapshot


def test_ask_goes_on_with_the_newest_conversation_unless_told_otherwise(ember):
    first = ember("ask", "--json", "one").content["conversation_id"]
    assert ember("ask", "--json", "two").content["conversation_id"] == first
    second = ember("ask", "--json", "--new", "three").content["conversation_id"]
    assert second != first
    assert ember("ask", "--json", "--conversation", first[:8], "four").content["conversation_id"] == first
    assert [message.text for message in ember.last_question.messages] == [
        "one",
        "Hello there.",
        "two",
        "Hello there.",
        "four",
    ]
    assert [message.token_ids for message in ember.last_question.messages] == [None, (0, 1, 2), None, (0, 1, 2), None]
    assert ember.messages(second) == [("user", "three"), ("assistant", "Hello there.")]


def test_the_options_of_ask_reach_the_engine(ember, tmp_path):
    other = ember.resources / "models" / "Other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "x"}')
    (other / "model.safetensors").touch()
    ember("ask", "--model", "Other", "--weights", "4bit", "--greedy", "--seed", "7", "--max-new-tokens", "9", "Hello")
    (load,) = [command for command in ember.engines[-1].commands if isinstance(command, LoadModel)]
    assert (load.path, load.weights) == (other, Weights.BITS_4)
    sampling = ember.last_question.sampling
    assert (sampling.is_greedy, sampling.seed, ember.last_question.max_new_tokens) == (True, 7, 9)
    ember("ask", "again")
    (load,) = [command for command in ember.engines[-1].commands if isinstance(command, LoadModel)]
    assert load.path == other, "the conversation remembers its model"
    ember("ask", "--new", "elsewhere")
    (load,) = [command for command in ember.engines[-1].commands if isinstance(command, LoadModel)]
    assert load.path.name == "SmolLM2-135M-Instruct"


def test_a_model_given_by_path_is_remembered_whole(ember, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "x"}')
    (tmp_path / "mine" / "model.safetensors").touch()
    monkeypatch.chdir(tmp_path)
    ember("ask", "--model", "mine", "Hello")
    monkeypatch.chdir("/")
    ember("ask", "again")
    assert next(c for c in ember.engines[-1].commands if isinstance(c, LoadModel)).path == tmp_path / "mine"


def test_a_system_prompt_begins_a_conversation(ember):
    ember("ask", "--new", "Hello")
    told = ember("ask", "--json", "--system", "짧게 답해.", "Hello")
    assert [message.role for message in ember.last_question.messages] == [Role.SYSTEM, Role.USER]
    conversation_id = told.content["conversation_id"]
    again = ember("ask", "--conversation", conversation_id, "--system", "Another.", "Hello")
    assert (again.code, "--new" in again.sentence) == (2, True)
    assert ember("ask", "--conversation", conversation_id, "--system", "짧게 답해.", "Hello").code == 0


def test_hangul_is_stored_as_it_was_written(ember):
    ember("ask", "안녕하세요 🍊", parts=("반갑", "습니다"))
    assert ember.messages() == [("user", "안녕하세요 🍊"), ("assistant", "반갑습니다")]


@pytest.mark.parametrize("message", ["", "  ", "\n"])
def test_an_empty_message_is_wrong_usage(ember, message):
    told = ember("ask", message)
    assert (told.code, told.out) == (2, "")
    assert "empty" in told.sentence
    assert ember.engines == []


class Bytes(io.TextIOWrapper):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))


def test_a_dash_reads_standard_input(ember, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Bytes("\ufeff첫 줄\n둘째 줄\r\n\n".encode()))
    assert ember("ask", "-").code == 0
    assert ember.messages()[0] == ("user", "첫 줄\n둘째 줄")


@pytest.mark.parametrize(("content", "words"), [(b"caf\xe9 \xff", "UTF-8"), (b"\n", "empty")])
def test_standard_input_that_is_no_message_is_wrong_usage(ember, monkeypatch, content, words):
    monkeypatch.setattr(sys, "stdin", Bytes(content))
    told = ember("ask", "-")
    assert (told.code, words in told.sentence) == (2, True)
    assert ember.engines == []


def test_bytes_on_the_command_line_that_are_no_text_are_wrong_usage(ember):
    told = ember("ask", os.fsdecode(b"caf\xe9"))
    assert (told.code, "UTF-8" in told.sentence) == (2, True)


def test_an_unknown_conversation_is_wrong_usage(ember):
    for arguments in (
        ["ask", "--conversation", "nope", "x"],
        ["show", "nope"],
        ["delete", "nope"],
        ["pin", "nope"],
        ["verify", "nope"],
    ):
        told = ember(*arguments)
        assert (told.code, told.out) == (2, "")
        assert "nope" in told.sentence
        assert "ember conversations" in told.sentence


def test_a_beginning_that_fits_several_conversations_is_not_guessed(ember, monkeypatch):
    ids = iter(["abcd1111", "abcd2222"])
    monkeypatch.setattr("app.store.incognito.uuid4", lambda: type("Id", (), {"hex": next(ids)}))
    ember("ask", "--new", "one")
    ember("ask", "--new", "two")
    assert "more of the id" in ember("show", "abcd").sentence
    assert ember("show", "abcd2").out.startswith("two\n")
    assert ember("show", "abc").code == 2


def test_a_missing_model_is_told_before_anything_is_stored(ember):
    told = ember("ask", "--new", "--model", "no-such-model", "Hello")
    assert (told.code, "ember models" in told.sentence) == (3, True)
    assert ember("conversations", "--json").content == {"conversations": []}


def test_a_model_that_cannot_be_loaded_ends_with_3_and_keeps_the_message(ember):
    told = ember("ask", "Hello", load_error=ModelDamagedError("The weights are cut short; fetch them again."))
    assert (told.code, told.out, told.sentence) == (3, "", "The weights are cut short; fetch them again.")
    assert ember.messages() == [("user", "Hello")]


def test_a_message_longer_than_the_context_ends_with_2_and_becomes_the_draft(ember):
    told = ember("ask", "--json", "Hello", parts=(), reply_error=ContextOverflowError("Too long; shorten it."))
    assert (told.code, told.out, told.sentence) == (2, "", "Too long; shorten it.")
    (conversation,) = ember("conversations", "--json").content["conversations"]
    assert (conversation["draft"], conversation["num_messages"]) == ("Hello", 0)
    assert "[draft]\nHello\n" in ember("show", conversation["id"]).out


TOO_LONG = ContextOverflowError("Too long; start a new chat.", prompt_tokens="9000", context_length="8192")


@pytest.mark.parametrize("arguments", [("--new",), ("--new", "--system", "Be brief."), ("--system", "Be brief.")])
@pytest.mark.parametrize(
    ("code", "words", "script"),
    [
        (2, "have 9,000 tokens together, but the model reads at most 8,192; shorten them.", {"reply_error": TOO_LONG}),
        (1, "The model failed; try again.", {"reply_error": GenerationError("The model failed; try again.")}),
        (3, "cut short", {"load_error": ModelDamagedError("The weights are cut short; fetch them again.")}),
    ],
)
def test_a_new_chat_whose_first_turn_is_refused_is_not_left_behind(ember, arguments, code, words, script):
    kept = ember("ask", "--json", "Here before").content["conversation_id"]
    told = ember("ask", *arguments, "Hello", parts=(), **script)
    assert (told.code, told.out, words in told.sentence) == (code, "", True)
    assert [one["id"] for one in ember("conversations", "--json").content["conversations"]] == [kept]
    again = ember("ask", "--conversation", kept, "More", parts=(), **script)
    assert (again.code, "together" in again.sentence) == (code, False)
    assert [one["id"] for one in ember("conversations", "--json").content["conversations"]] == [kept]


def test_a_new_chat_whose_first_reply_fails_in_the_middle_is_kept(ember):
    told = ember("ask", "--new", "Hello", parts=("Half",), reply_error=GenerationError("The model failed; try again."))
    assert (told.code, told.out) == (1, "Half")
    assert ember.messages() == [("user", "Hello"), ("assistant", "Half")]


def test_a_reply_that_fails_in_the_middle_is_kept_and_told(ember):
    told = ember("ask", "Hello", parts=("Half",), reply_error=GenerationError("The model failed; try again."))
    assert (told.code, told.out, told.sentence) == (1, "Half", "The model failed; try again.")
    assert ember.messages() == [("user", "Hello"), ("assistant", "Half")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cancels_the_reply_and_keeps_what_had_come(ember, number):
    before = signal.getsignal(number)
    told = ember("ask", "--json", "Hello", is_open_ended=True, on_part=interrupt_once(number))
    assert (told.code, told.err) == (130, "")
    assert (told.content["finish_reason"], told.content["reply"]) == ("cancelled", "Hello there.")
    assert ember.messages() == [("user", "Hello"), ("assistant", "Hello there.")]
    assert signal.getsignal(number) is before


def interrupt_once(number: int):
    numbers = iter([number])
    return lambda: signal.raise_signal(found) if (found := next(numbers, None)) is not None else None


def test_a_second_interrupt_does_not_wait_for_the_engine(ember):
    told = ember("ask", "Hello", is_open_ended=True, on_part=lambda: signal.raise_signal(signal.SIGINT))
    assert told.code == 130
    (message, reply) = ember.messages()
    assert (message, reply[0]) == (("user", "Hello"), "assistant")


def test_an_interrupt_while_the_model_loads_keeps_the_message(ember):
    told = ember("ask", "Hello", on_load=lambda: signal.raise_signal(signal.SIGINT))
    assert (told.code, told.out) == (130, "")
    assert "kept in" in told.sentence
    assert ember.messages() == [("user", "Hello"), ("assistant", "")]


def test_a_reader_that_leaves_ends_the_reply_quietly(ember):
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    told = ember("ask", "Hello", is_open_ended=True, out=Closed())
    assert (told.code, told.err) == (0, "")
    assert ember.messages() == [("user", "Hello"), ("assistant", "Hello there.")]
    assert ember.engines[-1].cancelled == [ember.last_question.request_id]


def test_progress_is_shown_on_a_terminal_only_and_wiped_before_the_reply(ember):
    err = Terminal()
    ember("ask", "Hello", err=err)
    shown = err.getvalue()
    assert "Loading the model 50%" in shown
    assert "Reading 5 of 10 tokens, 1 s left" in shown
    assert "\n" not in shown
    assert shown.endswith("\r")
    assert ember("ask", "Hello").err == ""


def test_replies_cut_off_by_a_crash_are_closed_by_the_next_call(ember):
    store = ember.store()
    conversation = store.create_conversation()
    store.add_message(conversation.id, Role.USER, "Hello")
    from app.conversation import MessageState

    store.add_message(conversation.id, Role.ASSISTANT, "half", state=MessageState.STREAMING)
    store.close()
    ember("ask", "Again")
    assert [message.text for message in ember.last_question.messages] == ["Hello", "half", "Again"]
    store = ember.store()
    assert store.messages(conversation.id)[1].finish_reason is FinishReason.CANCELLED
    store.close()


def test_a_bug_is_one_sentence_that_names_the_log_which_has_the_traceback(ember):
    def break_down() -> None:
        raise ZeroDivisionError("a bug")

    told = ember("ask", "Hello", on_load=break_down)
    log = ember.data_dir / "logs" / "ember.log"
    assert (told.code, told.out) == (1, "")
    assert str(log) in told.err
    assert told.err.count("\n") == 1
    assert "ZeroDivisionError: a bug" in log.read_text(encoding="utf-8")


def test_an_incognito_conversation_leaves_no_byte_in_the_data_folder(ember):
    ember("ask", "Hello")
    (ember.data_dir / "settings.json").write_text('{"top_k": 40}')
    before = files_of(ember.data_dir)
    told = ember("ask", "--incognito", "--json", "--system", "Be a vault.", "비밀 is a secret", parts=("shh",))
    assert (told.code, told.err, told.content["reply"]) == (0, "", "shh")
    assert files_of(ember.data_dir) == before
    log = (ember.data_dir / "logs" / "ember.log").read_text(encoding="utf-8")
    assert [word for word in ("비밀", "secret", "shh", "vault") if word in log] == []
    question = ember.last_question
    assert (question.is_incognito, question.sampling.top_k) == (True, 40)
    assert [message.text for message in question.messages] == ["Be a vault.", "비밀 is a secret"]
    assert ember("show", told.content["conversation_id"]).code == 2
    ember("ask", "Hello again")
    assert ember.last_question.is_incognito is False


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file with its content, without the log."""
    paths = [path for path in folder.rglob("*") if path.is_file() and "logs" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_an_incognito_conversation_in_a_new_data_folder_makes_no_database(ember):
    assert ember("ask", "--incognito", "Hello").out == "Hello there.\n"
    assert files_of(ember.data_dir) == {"ember.lock": b""}


def test_an_incognito_conversation_is_never_one_that_exists(ember):
    conversation_id = ember("ask", "--json", "Hello").content["conversation_id"]
    told = ember("ask", "--incognito", "--conversation", conversation_id, "Hello")
    assert (told.code, told.out, len(ember.engines)) == (2, "", 1)
    assert "leave out --conversation" in told.sentence


def test_that_an_incognito_cache_is_not_saved_is_no_news(ember, monkeypatch):
    def finish(engine: ScriptedEngine, command: Generate, reason: FinishReason) -> None:
        told = (command.conversation_id, command.request_id)
        engine.on_event(finished(command.request_id, "Hi", 0, conversation_id=command.conversation_id))
        engine.on_event(SnapshotNotSaved(*told, "This chat is incognito.", SaveProblem.INCOGNITO))

    monkeypatch.setattr(ScriptedEngine, "_finish", finish)
    told = ember("ask", "--incognito", "--json", "Hello")
    assert (told.code, told.err) == (0, "")


def test_an_incognito_turn_does_not_wait_for_a_save(ember, monkeypatch):
    def finish(engine: ScriptedEngine, command: Generate, reason: FinishReason) -> None:
        engine.on_event(finished(command.request_id, "Hi", 0, conversation_id=command.conversation_id))

    monkeypatch.setattr(ScriptedEngine, "_finish", finish)
    assert ember("ask", "--incognito", "--json", "Hello").content["snapshot"]["bytes_total"] == 0


def test_an_interrupted_incognito_call_does_not_promise_that_the_message_is_kept(ember):
    told = ember("ask", "--incognito", "Hello", on_load=lambda: signal.raise_signal(signal.SIGINT))
    assert (told.code, told.sentence) == (130, "Interrupted before the reply; nothing is kept.")


@pytest.mark.parametrize("is_json", [False, True])
def test_steps_against_a_lack_of_memory_are_told(ember, is_json):
    harbour = ember("ask", "--json", "Harbour").content["conversation_id"]
    steps = [
        PressureActed(harbour, "save", 0, None, 300, 200),
        PressureActed(harbour, "drop", 92_000_000, 0.44, 300, 200),
        PressureActed("0123456789abcdef", "evict_disk", 1_500_000, None, 300, 200),
        PressureActed(harbour, "a later way", 1_000_000, None, 300, 200),
        PressureActed(harbour, "quantize", 1_000_000, None, 300, 200, "int8"),
        PressureActed(harbour, "quantize", 1_000_000, None, 300, 200),
        PressureActed(harbour, "compress", 1_000_000, None, 300, 200, "kvzip"),
    ]

    def relieve() -> None:
        while steps:
            ember.engines[-1].on_event(steps.pop(0))

    told = ember("ask", "--new", *(["--json"] if is_json else []), "Hello", on_part=relieve)
    assert told.code == 0
    if is_json:
        assert told.err == ""
        assert told.content["pressure"][1:3] == [
            {"conversation_id": harbour, "action": "drop", "bytes_freed": 92_000_000, "comes_back_s": 0.44}
            | {"precision": ""},
            {"conversation_id": "0123456789abcdef", "action": "evict_disk", "bytes_freed": 1_500_000}
            | {"comes_back_s": None, "precision": ""},
        ]
        return
    assert told.out == "Hello there.\n"
    assert told.err.splitlines() == [
        "ember: “Harbour” was saved to disk, so that its memory can be freed.",
        "ember: “Harbour” was put away to free 92.0 MB; it comes back in about 0.4 s.",
        "ember: The saved cache of chat 01234567 was removed to free 1.5 MB on disk.",
        "ember: “Harbour” made room: 1.0 MB were freed.",
        "ember: “Harbour” is kept in 8 bits now, which freed 1.0 MB.",
        "ember: “Harbour” is kept in less precision now, which freed 1.0 MB.",
        "ember: “Harbour” was compressed, which freed 1.0 MB: only the parts that matter most are kept.",
    ]


# the other verbs


def test_conversations_are_listed_newest_first(ember):
    for text in ("one", "둘"):
        ember("ask", "--new", text)
    told = ember("conversations")
    assert [line.split()[-1] for line in told.out.splitlines()] == ["둘", "one"]
    found = ember("conversations", "--json").content["conversations"]
    assert [(entry["title"], entry["num_messages"]) for entry in found] == [("둘", 2), ("one", 2)]


def test_show_prints_the_messages(ember):
    ember("ask", "--new", "--system", "Be brief.", "안녕")
    (conversation,) = ember("conversations", "--json").content["conversations"]
    told = ember("show", conversation["id"])
    assert told.out.split("\n\n")[1:] == [
        "[system]\nBe brief.",
        "[user]\n안녕",
        "[assistant, 20.0 tokens/s]\nHello there.\n",
    ]
    content = ember("show", conversation["id"], "--json").content
    assert [(entry["role"], entry["text"], entry["token_ids"]) for entry in content["messages"]] == [
        ("user", "안녕", None),
        ("assistant", "Hello there.", [0, 1, 2]),
    ]
    assert content["messages"][1]["statistics"]["decode_tps"] == 20.0


# search, export, import


def test_search_prints_each_conversation_once_with_the_lines_found(ember):
    first, second = (
        ember("ask", "--new", "--json", text).content["conversation_id"] for text in ("파도 소리", "tides")
    )
    ember("ask", "--conversation", second, "more tides")
    told = ember("search", "TIDE")
    assert (told.code, told.err) == (0, "")
    assert told.out.splitlines() == [f"{second}  tides", "    more tides", "    tides"]
    assert ember("search", "nowhere").out == ""
    (title, message) = ember("search", "소", "파도", "--json").content["hits"]
    assert (title["conversation_id"], title["title"], title["message_id"]) == (first, "파도 소리", None)
    assert (message["excerpt"], message["matches"]) == ("파도 소리", [[0, 2], [3, 1]])


def test_search_for_nothing_is_wrong_usage(ember):
    told = ember("search", " ")
    assert (told.code, told.out) == (2, "")
    assert "give a word" in told.sentence


def test_all_conversations_are_exported_and_imported_again(ember, tmp_path):
    for text in ("one", "둘"):
        ember("ask", "--new", text)
    exported = ember("export")
    assert (exported.code, exported.err) == (0, "")
    assert [chat["title"] for chat in exported.content["conversations"]] == ["둘", "one"]
    path = tmp_path / "chats.json"
    told = ember("export", "--output", str(path))
    assert (told.code, told.out, told.err) == (0, "", f"ember: 2 conversations exported to {path}\n")
    assert ember("export", "--output", str(path), "--json").content == {"path": str(path), "conversations": 2}
    told = ember("import", str(path))
    assert (told.code, told.out) == (0, f"{path}: 2 conversations with 4 messages\n")
    assert [entry["title"] for entry in ember("conversations", "--json").content["conversations"]].count("둘") == 2


@pytest.mark.parametrize(("form", "beginning"), [("markdown", "# one\n"), ("html", "<!DOCTYPE html>")])
def test_one_conversation_is_exported_to_be_read(ember, form, beginning):
    first = ember("ask", "--new", "--json", "one").content["conversation_id"]
    ember("ask", "--new", "two")
    told = ember("export", first[:12], "--format", form)
    assert told.code == 0
    assert told.out.startswith(beginning)
    assert "Hello there." in told.out
    assert "two" not in told.out


def test_an_export_that_cannot_be_written_ends_with_4(ember, tmp_path):
    ember("ask", "--new", "one")
    told = ember("export", "--output", str(tmp_path / "no" / "such" / "folder.json"))
    assert (told.code, told.out) == (4, "")
    assert "another place" in told.sentence
    assert ember("export", "nope").code == 2


def test_import_tells_what_it_took_and_what_it_left_out(ember, tmp_path):
    path = tmp_path / "plain.json"
    path.write_text(json.dumps([{"role": "user", "content": "hello"}, {"role": "tool", "content": "x"}]))
    left_out = "messages without text, or of another role than user and assistant: 1"
    assert ember("import", str(path)).out.splitlines() == [
        f"{path}: 1 conversation with 1 message",
        f"    left out: {left_out}",
    ]
    assert ember("import", str(path), "--json").content == {
        "files": [{"path": str(path), "conversations": 1, "messages": 1, "skipped": [left_out]}]
    }


def test_of_several_files_all_are_imported_or_none(ember, tmp_path):
    good, broken = tmp_path / "good.json", tmp_path / "broken.json"
    good.write_text('[{"role": "user", "content": "hello"}]')
    broken.write_text("{")
    told = ember("import", str(good), str(broken))
    assert (told.code, told.out) == (2, "")
    assert str(broken) in told.sentence
    assert ember("conversations").out == ""


def test_import_does_not_write_while_another_ember_has_the_folder(ember, tmp_path, no_patience):
    good = tmp_path / "good.json"
    good.write_text('[{"role": "user", "content": "hello"}]')
    with InstanceLock(DataPaths(ember.data_dir)):
        assert ember("import", str(good)).code == 5


def test_show_names_the_files_of_a_message(ember):
    store = ember.store()
    chat = store.create_conversation()
    store.add_message(chat.id, Role.USER, "see", attachments=[Attachment("a.txt", "가", 3)])
    store.close()
    assert ember("show", chat.id).out.endswith("[user]\n[attached: a.txt]\nsee\n")


def test_delete_removes_the_messages_and_the_snapshots(ember):
    kept, gone = (ember("ask", "--new", "--json", text).content["conversation_id"] for text in ("kept", "gone"))
    folder = ember.data_dir / "kv" / "0123456789abcdef" / "conversations"
    folder.mkdir(parents=True)
    for conversation_id in (kept, gone):
        (folder / f"{conversation_id}.safetensors").write_bytes(b"x")
    told = ember("delete", gone)
    assert (told.code, told.out, told.err) == (0, f"Deleted {gone}  gone\n", "")
    assert [entry["id"] for entry in ember("conversations", "--json").content["conversations"]] == [kept]
    assert [path.stem for path in folder.iterdir()] == [kept]


def test_a_deletion_that_fails_on_disk_keeps_the_chat_known_so_that_it_can_be_tried_again(ember, monkeypatch):
    chat = ember("ask", "--json", "keep me known").content["conversation_id"]

    def refuse(kv_dir, conversation_id):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("app.commands.chats.delete_from_disk", refuse)
        assert ember("delete", chat).code == 4
    assert [entry["id"] for entry in ember("conversations", "--json").content["conversations"]] == [chat]
    assert ember("delete", chat).code == 0


def test_delete_names_what_it_deleted_in_few_words(ember):
    conversation_id = ember("ask", "--json", "Hello").content["conversation_id"]
    store = ember.store()
    store.set_title(conversation_id, "long \x1b[31m" + "title " * 40)
    store.close()
    name = ember("delete", conversation_id).out.removeprefix(f"Deleted {conversation_id}  ").rstrip("\n")
    assert name.startswith("long [31mtitle title")
    assert (len(name) <= 60, name[-1]) == (True, "…")
    second = ember("ask", "--json", "Hello").content["conversation_id"]
    assert ember("delete", second, "--json").content == {"id": second, "title": "Hello"}


def test_an_unknown_id_is_echoed_in_forty_characters_at_most(ember):
    told = ember("delete", "0123456789" * 100)
    assert (told.code, told.out) == (2, "")
    assert told.sentence.startswith(f"There is no conversation {'0123456789' * 3}012345678…; ")


def test_a_pinned_conversation_is_told_to_the_engine_of_later_calls(ember):
    one, two = (ember("ask", "--new", "--json", text).content["conversation_id"] for text in ("Tides", "Harbour"))
    assert not [command for engine in ember.engines for command in engine.commands if isinstance(command, Pin)]
    told = ember("pin", one)
    assert (told.code, told.out, told.err) == (0, f"Pinned {one}  Tides\n", "")
    ember("ask", "--conversation", two, "Hello")
    kinds = [type(command) for command in ember.engines[-1].commands]
    assert kinds == [ForgetUnknown, Pin, LoadModel, Generate]
    assert ember.engines[-1].commands[1] == Pin(frozenset({one}))
    found = ember("conversations", "--json").content["conversations"]
    assert {entry["id"]: entry["is_pinned"] for entry in found} == {one: True, two: False}
    assert ember("unpin", one[:8], "--json").content["is_pinned"] is False
    assert ember("conversations", "--json").content["conversations"][1]["is_pinned"] is False
    assert ember("unpin", one).out == f"Unpinned {one}  Tides\n"


def test_models_are_listed_and_added(ember, tmp_path):
    folder = tmp_path / "새 모델"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    without_weights = ember("models", "add", str(folder))
    assert (without_weights.code, "no safetensors weights" in without_weights.err) == (3, True)
    (folder / "model.safetensors").touch()
    assert ember("models", "add", str(folder), "--json").content["name"] == "새 모델"
    found = ember("models", "--json").content["models"]
    assert [(entry["name"], entry["is_default"]) for entry in found] == [
        ("SmolLM2-135M-Instruct", True),
        ("새 모델", False),
    ]
    assert "(default)" in ember("models").out
    assert (ember("models", "add", str(tmp_path)).code, ember("models", "add", "/nowhere").code) == (3, 3)


def test_models_tell_what_loading_took_in_each_precision(ember):
    assert ember("models", "--json").content["models"][0]["loads"] == {}
    ember("ask", "Hello")
    ember("ask", "--weights", "4bit", "Hello")
    took = {"load_s": 0.5, "weights_bytes": 1000}
    assert ember("models", "--json").content["models"][0]["loads"] == {"16bit": took, "4bit": took}
    assert ember("models").out.splitlines()[1].strip() == "16bit 0.5 s 0 MB · 4bit 0.5 s 0 MB"


@pytest.mark.parametrize("seed", ["-1", str(2**63), "9" * 30, "x"])
def test_a_seed_the_engine_cannot_take_is_refused_before_anything_is_stored(ember, seed):
    with pytest.raises(SystemExit, match="2"):
        ember("ask", "--new", f"--seed={seed}", "hi")
    assert ember("conversations", "--json").content["conversations"] == []


def test_a_pipe_is_no_model_and_does_not_block(ember, tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    assert ember("models", "add", str(tmp_path / "pipe.gguf")).code == 3


def test_without_a_model_the_list_says_what_to_do(ember, tmp_path):
    ember.resources = tmp_path / "nothing"
    told = ember("models")
    assert (told.code, told.out, "make run" in told.sentence) == (0, "", True)
    assert ember("ask", "Hello").code == 3


def test_cache_lists_every_conversation_even_a_cold_one(ember):
    conversation_id = ember("ask", "--json", "안녕").content["conversation_id"]
    content = ember("cache", "--json").content
    (row,) = content.pop("conversations")
    extras = {name: content.pop(name) for name in ("device_bytes", "disk_cap_bytes", "spare_bytes")}
    assert content == {
        "budget_bytes": 2048 * 1000**2,
        "memory_bytes": 0,
        "disk_bytes": 0,
        "shared_bytes": 0,
        "waste_ratio": 0.0,
    }
    assert extras == {"device_bytes": 0, "disk_cap_bytes": 20_480 * 1000**2, "spare_bytes": 0}
    row_extras = {name: row.pop(name) for name in ("waste_bytes", "is_pinned", "kept")}
    assert row == {
        "id": conversation_id,
        "title": "안녕",
        "tokens": 0,
        "memory_bytes": 0,
        "disk_bytes": 0,
        "shared_bytes": 0,
        "precision": "",
        "place": "none",
        "state": "cold",
    }
    assert row_extras == {"waste_bytes": 0, "is_pinned": False, "kept": 1.0}
    assert f"{conversation_id}  cold" in ember("cache").out


def test_cache_tells_own_and_shared_bytes_and_the_cap(ember, monkeypatch):
    ids = [ember("ask", "--new", "--json", text).content["conversation_id"] for text in ("Tides", "Harbour")]
    ember("pin", ids[0])
    (ember.data_dir / "settings.json").write_text('{"disk_cap_mb": 4096}')
    mb = 10**6
    kept = [ConversationCache(ids[0], 1200, 0, 100 * mb, 40 * mb, "bf16", "disk", CacheState.ON_DISK)]
    pruned = ConversationCache("another", 7, 0, 60 * mb, 40 * mb, "kvzip", "disk", CacheState.ON_DISK, kept=0.35)
    kept.append(pruned)
    report = CacheReported(None, 1, 0, 1234 * mb + mb // 2, 40 * mb, 0.0, tuple(kept))
    monkeypatch.setattr("app.commands.cache.report_disk", lambda kv_dir, budget_bytes: report)
    *rows, total = ember("cache").out.splitlines()
    assert [row.split()[1:] for row in rows] == [
        ["cold", "0", "tokens", "on", "disk:", "own", "0.0", "MB", "shared", "0.0", "MB", "Harbour"],
        ["on_disk", "1,200", "tokens", "bf16", "on", "disk:", "own", "60.0", "MB", "shared", "40.0", "MB", "Tides"],
        ["on_disk", "7", "tokens", "kvzip", "35%", "on", "disk:", "own", "20.0", "MB", "shared", "40.0", "MB"],
    ]
    assert total == "1,234.5 MB of 4,096 MB on disk, 40.0 MB shared"
    content = ember("cache", "--json").content
    assert content["disk_cap_bytes"] == 4096 * 1000**2
    assert [row["is_pinned"] for row in content["conversations"]] == [False, True, False]


def test_verify_prints_the_comparison(ember):
    conversation_id = ember("ask", "--json", "Hello").content["conversation_id"]
    content = ember("verify", conversation_id, "--json").content
    assert (
        content.items()
        >= {
            "equal": True,
            "tokens_compared": 32,
            "first_difference": None,
            "max_logit_error": 0.0,
            "noise_floor": 0.0,
            "precision": "float32",
        }.items()
    )
    assert ember("verify", conversation_id).out.startswith("Equal: 32 tokens")


def test_an_empty_conversation_cannot_be_verified(ember):
    store = ember.store()
    conversation_id = store.create_conversation().id
    store.close()
    told = ember("verify", conversation_id)
    assert (told.code, "empty" in told.sentence) == (2, True)


def test_compress_and_uncompress_tell_what_they_did(ember):
    conversation_id = ember("ask", "--json", "Hello").content["conversation_id"]
    err = Terminal()
    told = ember("compress", conversation_id, "--json", err=err)
    assert (told.code, "Compressing 5 of 10 tokens, 1 s left" in err.getvalue()) == (0, True)
    assert told.content == {
        "conversation_id": conversation_id,
        "tokens": 12,
        "kept": 0.3,
        "precision": "kvzip",
        "bytes_before": 276_480,
        "bytes_after": 82_944,
        "seconds": 0.8,
        "read_tokens": 0,
    }
    assert ember("uncompress", conversation_id, "--json").content["kept"] == 1.0
    told = ember("compress", conversation_id[:8])
    assert told.out.startswith("0.3 MB -> 0.1 MB: 30% of 12 tokens kept (kvzip), in 0.8 s")
    assert f"`ember uncompress {conversation_id[:8]}`" in told.out
    assert ember("uncompress", conversation_id).out == (
        "Whole again: 12 tokens in float32, 0.3 MB, 4 of them read again, in 0.1 s.\n"
    )


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ((), (0.3, "kvzip", False)),
        (("--keep", "70"), (0.7, "kvzip", False)),
        (("--keep", "10%", "--int8"), (0.1, "kvzip", True)),
        (("--keep", "90", "--forget-middle"), (0.9, "streaming", False)),
        (("--forget-middle", "--int8"), (0.3, "streaming", True)),
    ],
)
def test_compress_asks_for_what_the_options_say(ember, options, asked):
    conversation_id = ember("ask", "--json", "Hello").content["conversation_id"]
    assert ember("compress", conversation_id, *options).code == 0
    (command,) = [command for command in ember.engines[-1].commands if isinstance(command, Compress)]
    assert (command.keep, command.method, command.is_int8) == asked
    assert [message.text for message in command.messages] == ["Hello", "Hello there."]


@pytest.mark.parametrize("options", [("--keep", "5"), ("--keep", "91"), ("--keep", "0.3"), ("--keep", "x")])
def test_compress_refuses_what_makes_no_sense(ember, capsys, options):
    with pytest.raises(SystemExit) as left:
        ember("compress", "abcd", *options)
    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("verb", ["compress", "uncompress"])
def test_compressing_an_unknown_or_empty_conversation_is_one_sentence(ember, verb):
    store = ember.store()
    conversation_id = store.create_conversation().id
    store.close()
    told = ember(verb, conversation_id)
    assert (told.code, "empty" in told.sentence) == (2, True)
    assert (ember(verb, "nope").code, ember(verb, "nope").out) == (2, "")


@pytest.mark.parametrize("verb", ["compress", "uncompress"])
def test_an_interrupt_stops_compressing_and_nothing_has_changed(ember, verb):
    conversation_id = ember("ask", "--json", "Hello").content["conversation_id"]
    told = ember(verb, conversation_id, is_open_ended=True, on_compress=lambda: signal.raise_signal(signal.SIGINT))
    assert (told.code, told.out, told.sentence) == (130, "", "Interrupted; nothing has changed.")
    assert len(ember.engines[-1].cancelled) == 1
    told = ember(verb, conversation_id, on_compress=interrupt_once(signal.SIGINT))
    assert told.code == 130
    assert "12 tokens" in told.out  # it was done before the engine heard of it, and says so


def test_compressing_that_fails_is_told_in_the_engines_words(ember):
    conversation_id = ember("ask", "--json", "Hello").content["conversation_id"]
    told = ember("compress", conversation_id, compress_error=GenerationError("The model failed; try again."))
    assert (told.code, told.sentence) == (1, "The model failed; try again.")


def test_the_precision_of_the_caches_can_be_chosen_for_one_call(ember):
    ember("ask", "--kv-precision", "balanced", "Hello")
    assert ember.engines[-1].config.kv_precision == "balanced"
    ember("ask", "Hello")
    assert ember.engines[-1].config.kv_precision == "auto"


@pytest.mark.parametrize("name", list(BenchName))
def test_bench_prints_what_the_engine_measured(ember, name):
    told = ember("bench", name, "--context", "512", "--json")
    assert told.content == {"context": 512, "decode_tps": 12.5}
    (command,) = [command for command in ember.engines[-1].commands if isinstance(command, RunBench)]
    assert (command.name, command.context) == (name, 512)
    assert ember("bench", name).out == "context: None\ndecode_tps: 12.5\n"  # the engine knows what is usual


def test_bench_and_verify_need_a_model_that_loads(ember):
    conversation_id = ember("ask", "--json", "Hello").content["conversation_id"]
    error = ModelDamagedError("Broken; fetch it again.")
    for arguments in (["bench", "decode"], ["verify", conversation_id]):
        told = ember(*arguments, load_error=error)
        assert (told.code, told.sentence) == (3, "Broken; fetch it again.")


def test_an_interrupted_measurement_ends_with_130(ember):
    told = ember("bench", "decode", on_load=lambda: signal.raise_signal(signal.SIGINT))
    assert told.code == 130


def test_size_is_arithmetic(ember):
    content = ember(
        "size", "--layers", "30", "--kv-heads", "3", "--head-dim", "64", "--tokens", "1000", "--json"
    ).content
    assert (content["bytes_per_token"], content["bytes"]) == (23_040, 23_040_000)
    by_model = ember("size", "--model", "SmolLM2-135M-Instruct", "--json", "--precision", "float32").content
    assert (by_model["bytes_per_token"], by_model["tokens"]) == (46_080, 8192)


@pytest.mark.parametrize(
    "arguments", [[], ["--layers", "3"], ["--model", "SmolLM2-135M-Instruct", "--layers", "3"]], ids=str
)
def test_size_needs_a_model_or_all_numbers(ember, arguments):
    assert ember("size", *arguments).code == 2


# usage, locks, storage


@pytest.mark.parametrize(
    "arguments",
    [
        ["ask"],
        ["ask", "--new", "--conversation", "x", "Hello"],
        ["ask", "--max-new-tokens", "0", "Hello"],
        ["ask", "--max-new-tokens", "many", "Hello"],
        ["ask", "--weights", "3bit", "Hello"],
        ["bench"],
        ["bench", "no-such-measurement"],
        ["ask", "--kv-precision", "int2", "Hello"],
        ["compress"],
        ["models", "remove"],
        ["no-such-verb"],
        ["--no-such-option"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.parse(arguments)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("ember: ")
    assert "--help" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "verb", [["conversations"], ["models"], ["models", "add", "x"], ["ask", "Hello"]], ids=" ".join
)
def test_the_data_folder_may_stand_before_and_after_the_verb(verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.parse(["--data-dir", "here", *verb]).data_dir == tmp_path / "here"
    assert cli.parse([*verb, "--data-dir", "here"]).data_dir == tmp_path / "here"
    monkeypatch.setenv("EMBER_DATA_DIR", str(tmp_path / "there"))
    assert cli.parse(verb).data_dir == tmp_path / "there"


def test_without_a_verb_the_window_is_meant(tmp_path):
    assert cli.parse([]).verb is None
    parsed = cli.parse(["--data-dir", str(tmp_path)])
    assert (parsed.verb, parsed.data_dir) == (None, tmp_path)


@pytest.fixture
def no_patience(monkeypatch):
    monkeypatch.setattr("app.commands.call._WAIT_FOR_OTHERS_S", 0.1)


def test_verbs_that_write_end_with_5_while_another_ember_has_the_folder(ember, no_patience):
    conversation_id = ember("ask", "--json", "Hello").content["conversation_id"]
    writing = (
        ["ask", "x"],
        ["ask", "--incognito", "x"],
        ["delete", conversation_id],
        ["pin", conversation_id],
        ["unpin", conversation_id],
        ["verify", conversation_id],
        ["bench", "decode"],
        ["models", "add", "x"],
    )
    with InstanceLock(DataPaths(ember.data_dir)):
        for arguments in writing:
            told = ember(*arguments)
            assert (told.code, told.out) == (5, ""), arguments
            assert "close it" in told.sentence
    assert ember.messages() == [("user", "Hello"), ("assistant", "Hello there.")]


def test_verbs_that_read_work_while_another_ember_has_the_folder(ember):
    conversation_id = ember("ask", "--json", "Hello").content["conversation_id"]
    store = ember.store()
    with InstanceLock(DataPaths(ember.data_dir)), store.transaction():
        store.set_draft(conversation_id, Draft("being written right now"))
        for arguments in (
            ["conversations"],
            ["show", conversation_id],
            ["search", "Hello"],
            ["export"],
            ["cache"],
            ["models"],
        ):
            assert ember(*arguments).code == 0, arguments
    store.close()


@pytest.mark.parametrize(
    "arguments", [["conversations"], ["show", "abcd"], ["cache"], ["ask", "x"], ["delete", "abcd"]], ids=" ".join
)
def test_a_damaged_database_ends_with_4_and_is_left_untouched(ember, arguments):
    ember.data_dir.mkdir()
    (ember.data_dir / "ember.db").write_bytes(b"<html>no database</html>")
    told = ember(*arguments)
    assert (told.code, told.out) == (4, "")
    assert "left untouched" in told.sentence
    assert (ember.data_dir / "ember.db").read_bytes() == b"<html>no database</html>"
    assert ember.engines == []


def test_a_data_folder_that_cannot_be_made_ends_with_4(ember, tmp_path):
    (tmp_path / "file").touch()
    ember.data_dir = tmp_path / "file" / "data"
    for arguments in (["conversations"], ["cache"], ["ask", "Hello"]):
        told = ember(*arguments)
        assert (told.code, "--data-dir" in told.sentence) == (4, True)


def test_a_full_disk_ends_with_4_after_the_whole_reply_was_shown(ember):
    from tests.app.test_crash_safety import largest_file

    ember("ask", "Hello")
    with largest_file(150_000):
        told = ember("ask", "Hello again", parts=("long " * 100_000,))
    assert told.code == 4
    assert told.out == "long " * 100_000 + "\n"
    assert "free some space" in told.sentence
    assert ember.messages()[:3] == [("user", "Hello"), ("assistant", "Hello there."), ("user", "Hello again")]


# the real process


def in_a_process(data_dir: Path, *arguments: str | bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "app", "--data-dir", str(data_dir), *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, check=False)


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}], ids=["C", "ASCII"]
)
def test_hangul_is_written_in_any_locale(data_dir, locale):
    store = ConversationStore(data_dir / "ember.db")
    conversation = store.create_conversation()
    store.set_title(conversation.id, "값을 읽다 🍊")
    store.close()
    result = in_a_process(data_dir, "conversations", **locale)
    assert (result.returncode, result.stderr) == (0, b"")
    assert "값을 읽다 🍊" in result.stdout.decode("utf-8")
    unknown = in_a_process(data_dir, "show", "없는 대화", **locale)
    assert (unknown.returncode, unknown.stdout) == (2, b"")
    assert unknown.stderr.decode("utf-8").startswith("ember: There is no conversation 없는 대화; ")


def test_a_data_folder_named_in_hangul_works_in_any_locale(tmp_path):
    folder = tmp_path / "자료"
    for locale in ({"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        result = in_a_process(folder, "conversations", "--json", **locale)
        assert (result.returncode, result.stdout, result.stderr) == (0, b'{"conversations": []}\n', b"")
    assert (folder / "ember.db").exists()


def test_a_message_that_is_no_text_ends_with_2_in_any_locale(data_dir):
    result = in_a_process(data_dir, "ask", b"caf\xe9\xff", LC_ALL="C.UTF-8")
    assert result.returncode == 2
    assert b"UTF-8" in result.stderr


def test_a_reader_that_leaves_hears_no_complaint(data_dir):
    store = ConversationStore(data_dir / "ember.db")
    conversation = store.create_conversation()
    store.add_message(conversation.id, Role.USER, "long\n" * 100_000)
    store.close()
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "--data-dir", str(data_dir), "show", conversation.id],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0
