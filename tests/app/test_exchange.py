"""Out of Ember and in again: nothing is lost, files of other programs come in, and broken ones are refused."""

from __future__ import annotations

import json
import random
import time
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from app.conversation import Attachment, ChatOptions, Draft, Message, MessageState
from app.conversation_store import ConversationStore
from app.errors import ExportFailedError, ImportFailedError
from app.exchange.ember_json import export_json
from app.exchange.export_file import write_export
from app.exchange.failures import (
    ImportDamagedError,
    ImportEmptyError,
    ImportNewerError,
    ImportNotJsonError,
    ImportNotTextError,
    ImportTooLargeError,
    ImportUnknownFormatError,
    ImportUnreadableError,
)
from app.exchange.html_export import export_html
from app.exchange.import_file import ImportResult, import_file
from app.exchange.markdown_export import export_markdown
from app.exchange.names import Names
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason
from tests.fakes import some_statistics

FILE = Attachment("표 <1>.csv", "가,나\n1,2", 12)


@pytest.fixture
def store(data_dir):
    store = ConversationStore(data_dir / "ember.db")
    yield store
    store.close()


def file_with(tmp_path: Path, content: object, name: str = "chats.json") -> Path:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def shape(message: Message, tree: list[Message], parent_id: int | None = None) -> dict[str, Any]:
    """A message and all below it, without ids: what has to be equal after a way round."""
    return {
        "message": (
            message.role,
            message.text,
            message.created_at,
            message.state,
            message.token_ids,
            message.tokenizer_id,
            message.finish_reason,
            message.statistics,
            message.model,
            message.version,
            message.num_versions,
            message.attachments,
        ),
        "below": [shape(one, tree) for one in tree if one.parent_id == message.id],
    }


def everything(store: ConversationStore) -> list[object]:
    """Every conversation as trees of messages, what is shown of it, and all that is set for it."""
    folders = {folder.id: folder.name for folder in store.folders()}
    found: list[object] = []
    for chat in store.conversations():
        tree, shown = store.tree(chat.id), store.messages(chat.id)
        position = {message.id: number for number, message in enumerate(tree)}
        found.append(
            {
                "head": (
                    chat.title,
                    chat.created_at,
                    chat.updated_at,
                    chat.system_prompt,
                    chat.model,
                    chat.draft,
                    chat.is_pinned,
                    chat.options,
                    folders.get(chat.folder_id or 0),
                ),
                "view_from": position.get(chat.view_from or 0),
                "trees": [shape(root, tree) for root in tree if root.parent_id is None],
                "shown": [position[message.id] for message in shown],
                "selected": sorted(position[known] for known in store.selected_ids(chat.id)),
            }
        )
    return found


def filled(store: ConversationStore, seed: int, num_chats: int = 4) -> None:
    """Conversations with everything in them that there can be."""
    chance = random.Random(seed)
    folders = [store.create_folder("일"), store.create_folder("놀이")]
    for number in range(num_chats):
        chat = store.create_conversation(
            system_prompt=chance.choice(["", "Be brief.", "짧게"]),
            options=chance.choice([ChatOptions(), ChatOptions(temperature=0.3, top_k=5, min_p=0.0)]),
            model=chance.choice([None, "tiny"]),
            folder_id=chance.choice([None, *(folder.id for folder in folders)]),
        )
        store.set_title(chat.id, f"chat {number} 제목 🍊")
        for _ in range(chance.randrange(0, 25)):
            known = [message.id for message in store.tree(chat.id)]
            role = chance.choice([Role.USER, Role.ASSISTANT])
            text = f"{chance.random()} 안녕 ᄒ\u1161\u11ab \0 “quotes” <b> \\ \n\n```x"
            files = chance.choice([(), (FILE,), (FILE, FILE)])
            message = store.add_message(
                chat.id, role, text, parent_id=chance.choice([None, *known, *known[-3:]]), attachments=files
            )
            if role is Role.ASSISTANT:
                store.finish_reply(
                    message.id,
                    text=text,
                    token_ids=chance.choice([None, (), (1, 2**32 - 1)]),
                    tokenizer_id="t",
                    finish_reason=chance.choice(list(FinishReason)),
                    statistics=chance.choice([None, some_statistics()]),
                )
        if shown := store.messages(chat.id):
            store.set_view_from(chat.id, chance.choice(shown).id)
            store.select_version(chance.choice(store.tree(chat.id)).id)
        store.set_pinned(chat.id, chance.random() < 0.5)
        store.set_draft(chat.id, chance.choice([Draft(), Draft("half a thought", (FILE,))]))


@pytest.mark.parametrize(
    ("seed", "encoding"),
    [*((seed, "utf-8") for seed in range(8)), (1, "utf-8-sig"), (2, "utf-16"), (3, "utf-16-le"), (4, "utf-16-be")],
)
def test_export_delete_everything_import_gives_equal_conversations(store, tmp_path, seed, encoding):
    filled(store, seed)
    before = everything(store)
    exported = export_json(store)
    for chat in store.conversations():
        store.delete_conversation(chat.id)
    for folder in store.folders():
        store.delete_folder(folder.id)
    assert everything(store) == []
    path = tmp_path / "export.json"
    path.write_text(exported, encoding=encoding)
    result = import_file(store, path)
    assert everything(store) == before
    assert result == ImportResult(len(before), sum(chat.num_messages for chat in store.conversations()))
    again = json.loads(export_json(store))["conversations"]
    assert len(again) == len(before)


def test_an_export_is_what_the_format_says(store):
    folder = store.create_folder("일")
    store.create_folder("unused")
    chat = store.create_conversation(folder_id=folder.id, options=ChatOptions(top_k=3))
    question = store.add_message(chat.id, Role.USER, "question", attachments=[FILE])
    store.add_message(chat.id, Role.ASSISTANT, "one")
    store.add_message(chat.id, Role.ASSISTANT, "two", parent_id=question.id)
    content = json.loads(export_json(store))
    assert (content["format"], content["version"]) == ("ember-export", 1)
    assert content["folders"] == [{"id": folder.id, "name": "일"}]
    (exported,) = content["conversations"]
    assert (exported["folder_id"], exported["options"]) == (folder.id, {"top_k": 3})
    assert [(one["text"], one["parent_id"], one["is_selected"]) for one in exported["messages"]] == [
        ("question", None, True),
        ("one", question.id, False),
        ("two", question.id, True),
    ]
    assert exported["messages"][0]["attachments"] == [{"name": FILE.name, "text": FILE.text, "num_bytes": 12}]


def test_importing_never_replaces_and_twice_gives_two_copies(store, tmp_path):
    filled(store, 1, num_chats=2)
    before = everything(store)
    path = file_with(tmp_path, export_json(store))
    known = {message.id for chat in store.conversations() for message in store.tree(chat.id)}
    for _ in range(2):
        import_file(store, path)
    assert len(store.conversations()) == 6
    assert sorted(map(repr, everything(store))) == sorted(map(repr, before * 3))
    assert len({message.id for chat in store.conversations() for message in store.tree(chat.id)}) == 3 * len(known)
    assert len(store.folders()) == 2


def test_what_is_imported_is_found_and_can_be_gone_on_with(store, tmp_path):
    import_file(store, file_with(tmp_path, [{"role": "user", "content": "하늘은 왜 파란가요?"}]))
    (chat,) = store.conversations()
    assert store.search("하늘")[-1].conversation_id == chat.id
    message = store.add_message(chat.id, Role.ASSISTANT, "산란 때문입니다.")
    assert [one.text for one in store.messages(chat.id)][-1] == message.text


def test_incognito_conversations_go_out_only_when_named(store):
    hidden = store.create_conversation(is_incognito=True)
    store.add_message(hidden.id, Role.USER, "whispered")
    assert "whispered" not in export_json(store)
    assert "whispered" in export_json(store, [hidden.id])


def test_a_reply_being_written_goes_out_as_a_cancelled_one(store, tmp_path):
    chat = store.create_conversation()
    reply = store.add_message(chat.id, Role.ASSISTANT, "", state=MessageState.STREAMING)
    store.update_reply(reply.id, text="so far", token_ids=(1,), tokenizer_id="t")
    path = file_with(tmp_path, export_json(store))
    store.delete_conversation(chat.id)
    import_file(store, path)
    (kept,) = store.messages(store.conversations()[0].id)
    assert (kept.text, kept.state, kept.finish_reason, kept.token_ids) == (
        "so far",
        MessageState.COMPLETE,
        FinishReason.CANCELLED,
        None,
    )


def node(parent: str | None, role: str | None, *parts: object, children: tuple[str, ...] = (), **more: object) -> Any:
    content_type = more.pop("content_type", "text")
    message = {
        "author": {"role": role},
        "create_time": more.pop("at", 1_700_000_000.5),
        "content": {"content_type": content_type, "parts": list(parts)},
        "metadata": more.pop("metadata", {}),
    }
    return {"message": message if role else None, "parent": parent, "children": list(children), **more}


CHATGPT = {
    "title": "파도 이야기",
    "create_time": 1_700_000_000.0,
    "update_time": 1_700_000_100.0,
    "current_node": "a2",
    "mapping": {
        "root": node(None, None, children=("sys",)),
        "sys": node("root", "system", "", children=("q1", "q1b")),
        "q1": node("sys", "user", "What are tides?", children=("a1", "a2"), at=1_700_000_001),
        "a2": node("q1", "assistant", "Second answer", metadata={"model_slug": "gpt-4"}),
        "a1": node("q1", "assistant", "First answer", children=("q2",)),
        "q2": node("a1", "user", "Thanks", {"content_type": "image_asset_pointer"}, content_type="multimodal_text"),
        "q1b": node("sys", "user", "What are waves?", children=("think",)),
        "think": node("q1b", "assistant", content_type="thoughts", children=("part",)),
        "part": node("think", "assistant", "Let me look.", children=("tool",)),
        "tool": node("part", "tool", "search results", children=("a3",)),
        "a3": node("tool", "assistant", "They come from wind."),
    },
}


def test_an_export_of_chatgpt_comes_in_with_its_branches(store, tmp_path):
    result = import_file(store, file_with(tmp_path, [CHATGPT]))
    (chat,) = store.conversations()
    assert (chat.title, chat.created_at) == ("파도 이야기", datetime.fromtimestamp(1_700_000_000, UTC))
    assert chat.updated_at == datetime.fromtimestamp(1_700_000_100, UTC)
    shown = store.messages(chat.id)
    assert [(one.role, one.text, one.version, one.num_versions) for one in shown] == [
        (Role.USER, "What are tides?", 1, 2),
        (Role.ASSISTANT, "Second answer", 2, 2),
    ]
    assert (shown[0].created_at, shown[1].model) == (datetime.fromtimestamp(1_700_000_001, UTC), "gpt-4")
    first_answer, second_question = store.versions(shown[1].id)[0], store.versions(shown[0].id)[1]
    store.select_version(first_answer)
    assert [one.text for one in store.messages(chat.id)][1:] == ["First answer", "Thanks\n\n[…]"]
    store.select_version(second_question)
    assert [one.text for one in store.messages(chat.id)] == [
        "What are waves?",
        "Let me look.\n\nThey come from wind.",
    ]
    assert result.num_messages == 6
    assert result.skipped == (
        "pictures and other files, “[…]” in their place: 1",
        "results of tools: 1",
    )


def test_parts_of_a_reply_stay_apart_where_another_version_follows_the_first(store, tmp_path):
    mapping = {
        "q": node(None, "user", "question"),
        "part": node("q", "assistant", "Let me look."),
        "a1": node("part", "assistant", "First end."),
        "a2": node("part", "assistant", "Second end."),
    }
    import_file(store, file_with(tmp_path, {"mapping": mapping, "current_node": "a1"}))
    (chat,) = store.conversations()
    shown = store.messages(chat.id)
    assert [one.text for one in shown] == ["question", "Let me look.", "First end."]
    assert len(store.versions(shown[2].id)) == 2


@pytest.mark.parametrize(
    "mapping",
    [
        {},
        {"a": None},
        {"a": {}},
        {"a": node("a", "user", "x")},
        {"a": node("b", "user", "x", children=("b",)), "b": node("a", "user", "y", children=("a",))},
        {"a": node(None, "user", "x", children=("a", "b", "b", "gone")), "b": node("a", "assistant", "y")},
        {"a": node(None, "user", "x", at=float("inf")), "b": node("a", "assistant", "y", at="never")},
        {"a": node(None, "user", "x", at=1e300), "b": node("a", "assistant", "y", at=-1e300)},
        {"a": node(None, "user", 7, None, ["x"], {"text": 3})},
        {"a": node(None, "user", "x", metadata=7), "b": {"message": {"author": [], "content": "x"}, "parent": 7}},
        {"a": node(None, "user", "\ud800 half", metadata={"model_slug": "\udfff"})},
        {"a": node({}, "user", "x", children=({}, [])), "b": node([], "assistant", "y")},
    ],
)
@pytest.mark.parametrize("current", [None, "a", "gone", 7, []])
def test_whatever_chatgpt_wrote_comes_in_or_is_left_out(store, tmp_path, mapping, current):
    whole = [CHATGPT, {"mapping": mapping, "title": 7, "create_time": "x", "current_node": current}]
    result = import_file(store, file_with(tmp_path, whole))
    assert result.num_conversations in (1, 2)
    for chat in store.conversations():
        assert store.messages(chat.id)


QUESTION, ANSWER = {"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}
LINES = "\n".join(json.dumps(one) for one in (QUESTION, ANSWER))


@pytest.mark.parametrize(
    ("content", "num_conversations"),
    [
        ([QUESTION, ANSWER], 1),
        ([[QUESTION, ANSWER], [QUESTION, ANSWER]], 2),
        ({"messages": [QUESTION, ANSWER]}, 1),
        ([{"messages": [QUESTION, ANSWER]}, [QUESTION, ANSWER], []], 2),
        (LINES, 1),
        (LINES.replace("\n", "\r\n\r\n") + "\n", 1),
        ("\n".join([json.dumps([QUESTION, ANSWER])] * 3), 3),
        ("\n".join([json.dumps({"messages": [QUESTION, ANSWER]})] * 2), 2),
        ([{"role": "user", "content": [{"type": "text", "text": "question"}, {"type": "image"}]}, ANSWER], 1),
        ([QUESTION, {"role": "tool", "content": "x"}, {"role": "assistant"}, ANSWER, 7, None], 1),
    ],
)
def test_plain_lists_come_in(store, tmp_path, content, num_conversations):
    result = import_file(store, file_with(tmp_path, content))
    assert (result.num_conversations, result.num_messages) == (num_conversations, 2 * num_conversations)
    for chat in store.conversations():
        assert [(one.role, one.text) for one in store.messages(chat.id)] == [
            (Role.USER, "question"),
            (Role.ASSISTANT, "answer"),
        ]
        assert chat.title == "question"


def test_a_system_message_becomes_the_system_prompt_and_parts_of_a_reply_one_reply(store, tmp_path):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "And kind."},
        QUESTION,
        ANSWER,
        {"role": "assistant", "content": "more"},
        {"role": "system", "content": "too late"},
    ]
    result = import_file(store, file_with(tmp_path, {"title": "A\ntitle", "messages": messages}))
    (chat,) = store.conversations()
    assert (chat.title, chat.system_prompt) == ("A title", "Be brief.\n\nAnd kind.")
    assert [one.text for one in store.messages(chat.id)] == ["question", "answer\n\nmore"]
    assert result.skipped == ("messages without text, or of another role than user and assistant: 1",)


def an_export(**changes: object) -> dict[str, Any]:
    message = {"id": 1, "parent_id": None, "role": "user", "text": "x", "created_at": "2026-01-01T00:00:00+00:00"}
    chat = {
        "title": "t",
        "system_prompt": "",
        "created_at": "2026-01-01T00:00:00+00:00",
        "updated_at": "2026-01-01T00:00:00+00:00",
        "messages": [{**message, **changes}],
    }
    return {"format": "ember-export", "version": 1, "conversations": [chat]}


def changed(**changes: object) -> dict[str, Any]:
    content = an_export()
    content["conversations"][0] |= changes
    return content


GOOD = an_export()["conversations"][0]
DAMAGED = [
    an_export(role="wizard"),
    an_export(role=None),
    an_export(role=[]),
    an_export(text=None),
    an_export(text=7),
    an_export(created_at="yesterday"),
    an_export(created_at=None),
    an_export(parent_id=1),
    an_export(parent_id=2),
    an_export(parent_id=[]),
    an_export(id=None),
    an_export(id={}),
    an_export(model=7),
    changed(title=None),
    changed(messages=7),
    changed(messages=[7]),
    changed(messages=GOOD["messages"] * 2),
    changed(draft=[1]),
    changed(folder_id=[]),
    {"format": "ember-export", "version": 1, "conversations": [GOOD, 7]},
    {"format": "ember-export", "version": 1, "conversations": 7},
    {"format": "ember-export", "version": 1, "conversations": [GOOD], "folders": [{"id": 1}]},
    {"format": "ember-export", "version": "1", "conversations": [GOOD]},
    {"format": "ember-export", "conversations": [GOOD]},
]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_export_is_refused_whole(store, tmp_path, content):
    with pytest.raises(ImportDamagedError, match="damaged"):
        import_file(store, file_with(tmp_path, content))
    assert store.conversations() == []
    assert store.folders() == []


def test_in_an_export_what_only_speeds_things_up_may_make_no_sense(store, tmp_path):
    odd = an_export(
        token_ids=[1, "2"], tokenizer_id="t", finish_reason="tired", statistics={"cache": 7}, attachments=[7, {}], new=1
    )
    odd["conversations"][0] |= {"options": {"top_k": "many"}, "view_from": 99, "folder_id": 3, "draft": None}
    import_file(store, file_with(tmp_path, odd))
    (chat,) = store.conversations()
    (message,) = store.messages(chat.id)
    assert (message.text, message.token_ids, message.tokenizer_id, message.statistics) == ("x", None, None, None)
    assert (chat.options, chat.view_from, chat.folder_id, chat.draft) == (ChatOptions(), None, None, Draft())


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", ImportEmptyError),
        (b"  \n ", ImportEmptyError),
        ("[]", ImportEmptyError),
        ("{}", ImportEmptyError),
        ([[], []], ImportEmptyError),
        ([{"role": "user", "content": ""}], ImportEmptyError),
        ({"format": "ember-export", "version": 1, "conversations": []}, ImportEmptyError),
        ("hello", ImportNotJsonError),
        ('{"messages": [', ImportNotJsonError),
        (LINES + "\n{", ImportNotJsonError),
        ("[" + "9" * 10_000 + "]", ImportNotJsonError),
        ("<html>404</html>", ImportNotJsonError),
        ("7", ImportUnknownFormatError),
        ("7\n7", ImportUnknownFormatError),
        ("null", ImportUnknownFormatError),
        ('"text"', ImportUnknownFormatError),
        ([1, 2], ImportUnknownFormatError),
        ({"recipes": []}, ImportUnknownFormatError),
        ([{"messages": [QUESTION]}, {"recipes": []}], ImportUnknownFormatError),
        ("[" * 1_000_000, ImportUnknownFormatError),
        ("[" * 1_000_000 + "]" * 1_000_000, ImportUnknownFormatError),
        ('{"a":' * 500_000 + "1" + "}" * 500_000, ImportUnknownFormatError),
        ({**an_export(), "version": 2}, ImportNewerError),
        (b"\xff\xfe\x00", ImportNotTextError),
        (b'["\xff"]', ImportNotTextError),
        ('["가"]'.encode("cp949"), ImportNotTextError),
        (b"PK\x03\x04" + bytes(range(256)), ImportNotTextError),
        (bytes(1000), ImportNotJsonError),
    ],
)
def test_a_file_that_is_nothing_of_the_kind_is_refused_in_one_sentence(store, tmp_path, content, kind):
    path = file_with(tmp_path, content)
    with pytest.raises(kind) as caught:
        import_file(store, path)
    assert type(caught.value) is kind
    assert isinstance(caught.value, ImportFailedError)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.params["name"] == path.name
    assert store.conversations() == []


def test_what_cannot_be_read_is_refused(store, tmp_path, monkeypatch):
    for path in (tmp_path, tmp_path / "gone.json", Path("/dev/zero")):
        with pytest.raises(ImportUnreadableError):
            import_file(store, path)
    monkeypatch.setattr("app.exchange.import_file._MOST_MB", 0)
    with pytest.raises(ImportTooLargeError):
        import_file(store, file_with(tmp_path, [QUESTION]))
    monkeypatch.undo()
    monkeypatch.setattr("app.exchange.import_file._MOST_LINES", 2)
    with pytest.raises(ImportUnknownFormatError):
        import_file(store, file_with(tmp_path, "[]\n" * 4))


def test_a_failure_while_storing_leaves_nothing(store, tmp_path, monkeypatch):
    filled(store, 2)
    path, before = file_with(tmp_path, export_json(store)), everything(store)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("app.store.imports.attachments_to_json", fail)
    with pytest.raises(ZeroDivisionError):
        import_file(store, path)
    assert everything(store) == before


def test_large_and_deep_conversations_come_in_quickly(store, tmp_path):
    """A chain of 20,000 nodes, and 20,000 parts of one reply: neither recursion nor copying over and over."""
    mapping = {
        f"n{number}": node(f"n{number - 1}" if number else None, ("user", "assistant")[number % 2], f"text {number}")
        for number in range(20_000)
    }
    parts = [QUESTION, *({"role": "assistant", "content": "part of it"} for _ in range(20_000))]
    content = [{"mapping": mapping, "current_node": "n19999"}, parts]
    started = time.process_time()
    result = import_file(store, file_with(tmp_path, content))
    assert time.process_time() - started < 20
    assert (result.num_conversations, result.num_messages) == (2, 20_002)
    assert max(len(store.messages(chat.id)) for chat in store.conversations()) == 20_000


def chat_of(store: ConversationStore, *texts: str, title: str = "Tides", system_prompt: str = "") -> Any:
    chat = store.create_conversation(system_prompt=system_prompt)
    store.set_title(chat.id, title)
    for number, text in enumerate(texts):
        role = (Role.USER, Role.ASSISTANT)[number % 2]
        store.add_message(chat.id, role, text, attachments=(FILE,) if number == 0 else ())
    return store.conversation(chat.id), store.messages(chat.id)


def test_markdown_has_the_branch_shown_as_it_was_written(store):
    chat, messages = chat_of(store, "Why *two*?", "| a | b |\n|---|---|", title="A_b *c*", system_prompt="Be brief.")
    store.add_message(chat.id, Role.ASSISTANT, "another version", parent_id=messages[0].id)
    text = export_markdown(chat, messages)
    assert text.startswith("# A\\_b \\*c\\*\n\n*")
    for part in ("## System prompt\n\nBe brief.", "## You\n\n*Attached: 표 \\<1\\>.csv (12 B)*\n\nWhy *two*?"):
        assert part in text
    assert "## Assistant\n\n| a | b |\n|---|---|\n" in text
    assert "another version" not in text
    korean = export_markdown(chat, messages, Names(user="나", assistant="답변", language="ko"))
    assert "## 나\n" in korean


@pytest.mark.parametrize(
    ("text", "closing"),
    [
        ("```python\nx = 1", "\n```\n"),
        ("~~~~\nx\n~~~", "\n~~~~\n"),
        ("```\nx\n```", "x\n```\n"),
        ("``` a ` b", "a ` b\n"),
        ("````\n```\n", "```\n````\n"),
    ],
)
def test_a_code_block_left_open_does_not_swallow_what_follows(store, text, closing):
    chat, messages = chat_of(store, "question", text, "next question")
    exported = export_markdown(chat, messages)
    assert closing + "\n## You\n\nnext question" in exported


class Page(HTMLParser):
    """What a page consists of: tags with their attributes, and words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


EVIL = (
    "<script>alert(1)</script> <img src=x onerror=alert(1)> ![pic](http://evil.test/a.png) [x](javascript:alert(1)) "
    '[y](data:text/html,x) <style>body{}</style> </article></section> <iframe src="//evil.test"> '
    '[z](http://ok.test "a\\" onmouseover=\\"alert(1)") ![](file:///etc/passwd) &lt;b&gt; `<i>` \0 \x1b[31m\n\n'
    "<div onclick=x>\n\n```html\n<script>x</script>\n```\n\n"
    "| <b> | ![p](http://evil.test/b.png) |\n|---|---|\n| 1 | 2 |"
)


def test_a_page_runs_nothing_fetches_nothing_and_shows_markup_as_text(store):
    page = export_html([chat_of(store, EVIL, EVIL, title=EVIL, system_prompt=EVIL)])
    parsed = Page(page)
    assert {tag for tag, _ in parsed.tags} <= {
        *("html", "head", "meta", "title", "style", "body", "section", "article", "h1", "h2", "p", "time", "a", "code"),
        *("pre", "table", "thead", "tbody", "tr", "th", "td"),
    }
    for tag, attributes in parsed.tags:
        assert not any(name.startswith("on") or name in ("src", "srcset", "style") for name in attributes), tag
        if tag == "a":
            assert attributes["href"] == "http://ok.test"
            assert attributes["rel"] == "noopener noreferrer"
    assert "<script>alert(1)</script>" in parsed.words
    assert "default-src 'none'" in page
    assert not {"\0", "\x1b"} & set(page)
    assert "@import" not in page
    assert "url(" not in page


def test_a_page_reads_well_in_light_and_dark_and_in_korean(store):
    chat, messages = chat_of(store, "첫 줄\n둘째 줄", "# 제목\n\n**굵게**\n\n- 하나\n- 둘")
    page = export_html([(chat, messages)], Names(user="나", language="ko"))
    assert '<html lang="ko">' in page
    assert "prefers-color-scheme: dark" in page
    assert "Noto Sans KR" in page
    assert "첫 줄<br />\n둘째 줄" in page
    for part in ('<h2 class="who">나</h2>', "<strong>굵게</strong>", "<li>하나</li>", "표 &lt;1&gt;.csv (12 B)"):
        assert part in page


def test_several_conversations_make_one_page(store):
    page = export_html([chat_of(store, "one", title="First"), chat_of(store, "two", title="")])
    assert page.count("<section>") == 2
    assert "<title>Ember</title>" in page
    assert "Untitled" in page


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "out.md"
    write_export(path, "첫\n")
    write_export(path, "둘\n")
    assert path.read_bytes() == "둘\n".encode()
    assert list(tmp_path.iterdir()) == [path]
    for wrong in (tmp_path, tmp_path / "no" / "folder.md", tmp_path / ("x" * 300)):
        with pytest.raises(ExportFailedError, match="another place") as caught:
            write_export(wrong, "x")
        assert caught.value.exit_code == 4
    assert list(tmp_path.iterdir()) == [path]
