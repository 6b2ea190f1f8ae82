"""Searching: what finds what, what the excerpt shows, and an index that never is what a text hangs on."""

from __future__ import annotations

import random
import sqlite3
import time
import unicodedata

import pytest

from app.conversation import MessageState, SearchHit
from app.conversation_store import IN_MEMORY, ConversationStore
from app.excerpt import excerpt_of
from app.folding import Folded, character_at, flat, fold
from app.search_words import words_of
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason
from tests.benchmarks.bench_search import fill
from tests.benchmarks.varied_text import sentence


@pytest.fixture
def store(data_dir):
    store = ConversationStore(data_dir / "ember.db")
    yield store
    store.close()


def said(store, *texts: str, is_incognito: bool = False) -> list[int]:
    conversation = store.create_conversation(is_incognito=is_incognito)
    return [store.add_message(conversation.id, Role.USER, text).id for text in texts]


def found(store, query: str) -> list[int | None]:
    return [hit.message_id for hit in store.search(query)]


def marked(hit: SearchHit) -> list[str]:
    return [hit.excerpt[start : start + length] for start, length in hit.matches]


NFC, NFD = (lambda text: unicodedata.normalize("NFC", text)), (lambda text: unicodedata.normalize("NFD", text))


@pytest.mark.parametrize("stored", [NFC, NFD], ids=["NFC", "NFD"])
@pytest.mark.parametrize("typed", [NFC, NFD], ids=["NFC", "NFD"])
@pytest.mark.parametrize(
    ("text", "query", "expected"),
    [
        ("오늘은 한국어를 배운다", "한국어", ["한국어"]),
        ("오늘은 한국어를 배운다", "하", ["한"]),
        ("오늘은 한국어를 배운다", "한구", ["한국"]),
        ("오늘은 한국어를 배운다", "ㅎ", ["한"]),
        ("오늘은 한국어를 배운다", "어를", ["어를"]),
        ("오늘은 한국어를 배운다", "를", ["를"]),
        ("오늘은 한국어를 배운다", "배운다 한국", ["한국", "배운다"]),
        ("값을 읽다, 각하!", "값", ["값"]),
        ("쭉 가세요", "쭉", ["쭉"]),
        ("Un Café à la crème", "cafe", ["Café"]),
        ("Un cafe a la creme", "CAFÉ À", ["cafe", "a", "a"]),
        ("Straße und Fluß", "strasse", ["Straße"]),
        ("the cache keeps", "ACHE", ["ache"]),
        ("한국어 and English together", "english 한국", ["한국", "English"]),
        ("🍊 귤 하나", "🍊", ["🍊"]),
        ("ﬁle name", "file", ["ﬁle"]),
        ("x = a[0] * (b + c)  # note", "a[0] * (b", ["a[0]", "*", "(b"]),
    ],
)
def test_what_is_typed_finds_what_was_written(store, stored, typed, text, query, expected):
    (message_id,) = said(store, stored(text))
    said(store, stored("무엇도 같지 않은 다른 글"), "QQQ")
    hits = [hit for hit in store.search(typed(query)) if hit.message_id == message_id]
    assert len(hits) == 1
    assert sorted(map(NFC, marked(hits[0]))) == sorted(expected)


@pytest.mark.parametrize(
    ("query", "is_there"),
    [
        ("alpha gamma", True),
        ("gamma alpha", True),
        ("alpha delta", False),
        ('"alpha beta"', True),
        ('"alpha gamma"', False),
        ('"beta gamma', True),
        ("“beta gamma”", True),
        ('alpha"beta gamma"', True),
        ("AND alpha", False),
        ("lpha et", True),
        ("a z", False),
    ],
)
def test_every_word_has_to_be_there_in_any_order_and_a_phrase_as_it_stands(store, query, is_there):
    (message_id,) = said(store, "alpha beta\n\n  gamma")
    assert found(store, query) == ([message_id] if is_there else [])


@pytest.mark.parametrize("query", ["", "   ", "\n\t", "\0", "\0 \0"])
def test_nothing_is_found_for_nothing(store, query):
    said(store, "something")
    assert store.search(query) == []


CHARACTERS = [
    *"\"'*()[]{}^:-+~\\/%_;,.?!#@&|<>=`$",
    "AND",
    "OR",
    "NOT",
    "NEAR(",
    "text:",
    "\0",
    "🍊",
    "👩\u200d🚀",
    "\ud800",
    "\u0301",
    "ᆨ",
    "“",
    "가",
    "x",
]


def test_no_query_whatever_fails(store):
    said(store, "a text with 'quotes' \"double\" * and (parentheses) \0 NUL 🍊 가각")
    chance = random.Random(1)
    for character in CHARACTERS:
        store.search(character)
    for _ in range(400):
        store.search("".join(chance.choices([*CHARACTERS, " "], k=chance.randrange(1, 12))))


@pytest.mark.parametrize("character", [*"\"'*()[]{}^:-+~\\/%_;,.?!#@&|<>=`$", "🍊"])
def test_a_special_character_is_found_as_itself(store, character):
    first, second = said(store, f"before{character}after", f"{character}{character}{character}")
    said(store, "none of them")
    assert found(store, character) == [second, first]
    assert found(store, f"e{character}a") == [first]


def test_text_behind_a_nul_is_found(store):
    (message_id,) = said(store, "before\0behind")
    assert found(store, "behind") == [message_id]


def test_newest_conversations_come_first_and_in_each_the_title(store):
    old, new = store.create_conversation(), store.create_conversation()
    old_ids = [store.add_message(old.id, Role.USER, text).id for text in ("the tide", "no", "tides")]
    new_id = store.add_message(new.id, Role.USER, "a tide pool").id
    store.set_title(old.id, "Tides of the sea")
    assert [(hit.conversation_id, hit.message_id) for hit in store.search("tide")] == [
        (new.id, new_id),
        (old.id, None),
        (old.id, old_ids[2]),
        (old.id, old_ids[0]),
    ]
    assert [hit.message_id for hit in store.search("tide", limit=2)] == [new_id, None]
    title = store.search("SEA")[0]
    assert (title.excerpt, marked(title)) == ("Tides of the sea", ["sea"])


def test_all_branches_are_searched(store):
    conversation = store.create_conversation()
    hidden = store.add_message(conversation.id, Role.USER, "hidden words")
    store.add_message(conversation.id, Role.USER, "shown words", parent_id=None)
    assert hidden.id in found(store, "hidden")


def test_the_index_follows_every_change(store):
    conversation = store.create_conversation()
    reply = store.add_message(conversation.id, Role.ASSISTANT, "", state=MessageState.STREAMING)
    store.update_reply(reply.id, text="partial words", token_ids=None, tokenizer_id=None)
    assert found(store, "partial") == []
    store.finish_reply(
        reply.id,
        text="whole words",
        token_ids=None,
        tokenizer_id=None,
        finish_reason=FinishReason.STOP,
        statistics=None,
    )
    assert (found(store, "whole"), found(store, "partial")) == ([reply.id], [])
    store.reopen_reply(reply.id)
    assert found(store, "whole") == [reply.id]
    store.update_reply(reply.id, text="whole words and more", token_ids=None, tokenizer_id=None)
    store.close_interrupted_replies()
    assert found(store, "more") == [reply.id]
    store.set_text(reply.id, "edited words")
    assert (found(store, "edited"), found(store, "more")) == ([reply.id], [])
    removed = store.remove_message(reply.id)
    assert found(store, "edited") == []
    store.put_back(removed)
    assert found(store, "edited") == [reply.id]
    copy = store.duplicate_conversation(conversation.id)
    assert {hit.conversation_id for hit in store.search("edited")} == {conversation.id, copy.id}
    store.delete_conversation(conversation.id)
    assert [hit.conversation_id for hit in store.search("edited")] == [copy.id]


def test_a_change_that_is_undone_is_undone_in_the_index(store):
    (message_id,) = said(store, "first words")

    def change_and_fail() -> None:
        with store.transaction():
            store.set_text(message_id, "second words")
            assert found(store, "second") == [message_id]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_and_fail()
    assert (found(store, "second"), found(store, "first")) == ([], [message_id])


def test_incognito_conversations_are_found_while_they_last(store, data_dir):
    (hidden,) = said(store, "whispered words", is_incognito=True)
    (kept,) = said(store, "written words")
    assert found(store, "words") == [kept, hidden]
    store.close()
    again = ConversationStore(data_dir / "ember.db")
    try:
        assert found(again, "words") == [kept]
    finally:
        again.close()


def test_a_whole_store_in_memory_is_searched(tmp_path):
    store = ConversationStore(IN_MEMORY)
    (message_id,) = said(store, "whispered words")
    assert found(store, "whisper") == [message_id]
    store.close()


@pytest.mark.parametrize("form", [NFC, NFD], ids=["NFC", "NFD"])
def test_the_excerpt_is_one_line_around_the_first_match(form):
    text = form(
        "앞에 있는 말들이 길게 이어진다. " * 20 + "\n\n여기에\t찾는 낱말이 있고 " + "뒤에도 말들이 이어진다. " * 20
    )
    excerpt, matches = excerpt_of(text, words_of(form("찾는 낱말")))
    assert excerpt.startswith("…")
    assert excerpt.endswith("…")
    assert "여기에 찾는 낱말이 있고" in excerpt
    assert 80 <= len(excerpt) <= 125
    assert "\n" not in excerpt
    assert [excerpt[start : start + length] for start, length in matches] == ["찾는", "낱말"]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("match at the very beginning " + "x" * 300, "match"),
        ("x" * 300 + " at the very end match", "match"),
        ("y" * 150 + "match" + "y" * 150, "match"),
        ("short match", "match"),
        ("z" * 500, "z" * 300),
    ],
)
def test_the_match_is_always_in_the_excerpt(text, query):
    excerpt, matches = excerpt_of(text, words_of(query))
    assert len(excerpt) <= 340
    start, length = matches[0]
    assert excerpt[start : start + length] == query


def test_matches_neither_overlap_nor_split_a_syllable():
    excerpt, matches = excerpt_of("banana 하나", ("ana", "nan", fold("하")))
    assert [excerpt[start : start + length] for start, length in matches] == ["anana", "하"]
    decomposed_only = "ᄒᆞᆫ글"  # an old syllable that has no composed form: three characters, seen as one
    excerpt, matches = excerpt_of(decomposed_only, ("\u119e",))
    assert [excerpt[start : start + length] for start, length in matches] == ["ᄒᆞᆫ"]


ODD = "aé하ㅎﬁßİǆ각Ⅷ㎏½🍊\u0301\u0323\u05b0が\u200b \n\u3000" + "A\u030a" + "ᄒᆞᆫ"


@pytest.mark.parametrize("seed", range(30))
def test_every_place_in_a_folded_text_leads_back_to_the_character_it_comes_from(seed, monkeypatch):
    chance = random.Random(seed)
    folded = Folded(flat("".join(chance.choices(ODD, k=40))))
    assert folded.folded == fold(folded.shown)
    lengths = [len(Folded(character).folded) for character in folded.shown]
    owners = [index for index, length in enumerate(lengths) for _ in range(length)]
    assert len(owners) == len(folded.folded)
    for position, owner in enumerate(owners):
        first, last = folded.span(position, position + 1)
        assert first <= owner < last
        assert character_at(folded.shown, position) == owner
        monkeypatch.setattr("app.folding._SHORT", 0)
        assert character_at(folded.shown, position) == owner
        monkeypatch.undo()


@pytest.mark.parametrize("seed", range(5))
def test_search_finds_just_what_a_look_at_every_text_would_find(store, seed):
    chance = random.Random(seed)
    texts = [sentence(chance, is_korean=chance.random() < 0.5) for _ in range(60)]
    message_ids = said(store, *texts)
    for _ in range(60):
        words = []
        for _ in range(chance.randrange(1, 3)):
            text = chance.choice(texts)
            start = chance.randrange(len(text))
            words.append(text[start : start + chance.randrange(1, 6)])
        query = " ".join(words).replace('"', "")
        wanted = [word for word in (fold(word) for word in query.split()) if word]
        expected = [
            message_id
            for message_id, text in zip(message_ids, texts, strict=True)
            if wanted and all(word in fold(text) for word in wanted)
        ]
        assert sorted(filter(None, found(store, query))) == expected


def damaged(data_dir, *statements: str) -> None:
    raw = sqlite3.connect(data_dir / "ember.db", isolation_level=None)
    raw.create_function("fold", 1, fold)
    for statement in statements:
        raw.execute(statement)
    raw.close()


DAMAGES = [
    "DROP TABLE message_index",
    *(f"DROP TABLE message_index_{shadow}" for shadow in ("config", "content", "data", "docsize", "idx")),
    *(f"DELETE FROM message_index_{shadow}" for shadow in ("config", "content", "data", "docsize", "idx")),
    "UPDATE message_index_data SET block = x'00'",
    "UPDATE message_index_data SET block = x'ff' WHERE id > 10",
    "UPDATE message_index_config SET v = 99",
    "DELETE FROM message_index WHERE rowid = 1",
    "DROP TRIGGER index_added_message",
    "DROP TRIGGER index_changed_message",
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_index_found_damaged_at_opening_is_made_anew(store, data_dir, damage):
    first, second = said(store, "ember words", "other words")
    store.close()
    damaged(data_dir, damage)
    again = ConversationStore(data_dir / "ember.db")
    try:
        assert found(again, "ember") == [first]
        assert found(again, "wo") == [second, first]
        (third,) = said(again, "third words")
        again.set_text(third, "thirst words")
        assert found(again, "thirst") == [third]
        assert [message.text for message in again.tree(again.conversations()[1].id)] == ["ember words", "other words"]
    finally:
        again.close()


@pytest.mark.parametrize("block", ["x'ff'", "x'00'"])
@pytest.mark.parametrize("is_incognito", [False, True], ids=["in the file", "incognito"])
def test_an_index_that_breaks_while_it_is_written_to_is_made_anew_and_no_text_is_lost(store, block, is_incognito):
    first, second = said(store, "ember words", "other words", is_incognito=is_incognito)
    schema = "incognito" if is_incognito else "main"
    store._open_db.execute(f"UPDATE {schema}.message_index_data SET block = {block}")
    store.set_text(second, "ember again")
    (third,) = said(store, "ember for the third time", is_incognito=is_incognito)
    assert [store.message(known).text for known in (second, third)] == ["ember again", "ember for the third time"]
    assert found(store, "ember") == [third, second, first]


def test_an_index_that_breaks_while_it_is_searched_is_made_anew(store):
    first, _ = said(store, "ember words", "other words")
    store._open_db.execute("UPDATE message_index_data SET block = x'ff' WHERE id > 10")
    assert found(store, "ember") == [first]


def test_a_hundred_words_are_looked_for_at_once(store):
    words = [f"word{number}" for number in range(300)]
    (message_id,) = said(store, " ".join(words))
    assert found(store, " ".join(reversed(words))) == [message_id]
    assert found(store, "x" * 100_000) == []


def test_ten_thousand_messages_are_searched_in_a_blink(store):
    """The bound is generous, for a busy machine; tests/benchmarks/bench_search.py prints the figures."""
    fill(store, num_messages=10_000)
    for query in ("the", "매섬", "하", "q", "nowhere to be found", "zq", "e 다"):
        fastest = min(_seconds(store, query) for _ in range(2))
        assert fastest < 0.3, query


def _seconds(store, query: str) -> float:
    started = time.process_time()
    store.search(query)
    return time.process_time() - started
