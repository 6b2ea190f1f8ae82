"""Searching titles and messages."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from app.conversation import SearchHit
from app.excerpt import excerpt_of
from app.folding import fold
from app.records import text_from
from app.search_words import words_of
from app.store.base import as_list
from app.store.copies import Copies
from app.store.incognito import SCHEMAS, schema_of
from app.store.search_index import TERM, is_index_broken, phrase, rebuild_index

_NEWEST = " UNION ALL ".join(f"SELECT id, title, updated_at FROM {schema}.conversations" for schema in SCHEMAS)


@dataclass(frozen=True, slots=True)
class _Words:
    """Those that the index knows, and those too short for it, which are looked for in each text that has the others."""

    all: tuple[str, ...]

    @property
    def long(self) -> list[str]:
        return [word for word in self.all if len(word) >= TERM]

    @property
    def short(self) -> list[str]:
        return [word for word in self.all if len(word) < TERM]


class Search(Copies):
    def search(self, query: str, limit: int = 200) -> list[SearchHit]:
        """The titles and messages, of all branches, that hold every word of `query` (see `app.search_words`).

        Newest conversations first; of each its title, then its messages, newest first. None for a blank query.
        """
        words = _Words(words_of(query))
        if not words.all:
            return []
        with self._failures_told():
            try:
                return self._hits(words, limit)
            except sqlite3.DatabaseError as error:
                broken = [schema for schema in SCHEMAS if is_index_broken(self._open_db, schema, error)]
                if not broken:
                    raise
                for schema in broken:
                    rebuild_index(self._open_db, schema)
                return self._hits(words, limit)

    def _hits(self, words: _Words, limit: int) -> list[SearchHit]:
        texts: dict[int, str] = {}
        with self._open_db.atomic():  # another process may be writing: every look has to see the same
            found = list(islice(self._found(words), limit))
            for schema in SCHEMAS:
                ids = as_list(known for _, known, _ in found if known is not None and schema_of(known) == schema)
                sql = f"SELECT id, text FROM {schema}.messages WHERE id IN (SELECT value FROM json_each(?))"
                texts.update((known, text_from(text)) for known, text in self._open_db.execute(sql, [ids]))
        return [
            SearchHit(conversation_id, known, *excerpt_of(title if known is None else texts[known], words.all))
            for conversation_id, known, title in found
            if known is None or known in texts
        ]

    def _found(self, words: _Words) -> Iterator[tuple[str, int | None, str]]:
        """Conversation, message (None for the title) and title of every hit, in order; no more is looked at than taken.

        A word that is everywhere is found enough times in the newest conversations; the index answers for the others.
        """
        indexed = {schema: self._indexed(schema, words.long) for schema in SCHEMAS} if words.long else None
        newest = self._open_db.execute(f"{_NEWEST} ORDER BY updated_at DESC, id DESC").fetchall()
        for conversation_id, stored_title, _ in newest:
            if not isinstance(conversation_id, str):
                continue
            title = text_from(stored_title)
            if title and _holds(fold(title), words.all):
                yield conversation_id, None, title
            schema = schema_of(conversation_id)
            if indexed is None:
                ids = self._ids_of(schema, "conversation_id = ?", conversation_id, words.short)
            else:
                ids = indexed[schema].get(conversation_id, [])
                if ids and words.short:
                    in_them = "messages.id IN (SELECT value FROM json_each(?))"
                    ids = self._ids_of(schema, in_them, as_list(ids), words.short)
            for known in sorted(ids, reverse=True):
                yield conversation_id, known, title

    def _indexed(self, schema: str, words: Sequence[str]) -> dict[str, list[int]]:
        """The messages that hold all of these words, by conversation."""
        match = " AND ".join(map(phrase, words))
        sql = f"SELECT rowid FROM {schema}.message_index WHERE message_index MATCH ?"
        ids = as_list(known for (known,) in self._open_db.execute(sql, [match]))
        found = defaultdict(list)
        sql = f"SELECT id, conversation_id FROM {schema}.messages WHERE id IN (SELECT value FROM json_each(?))"
        for known, conversation_id in self._open_db.execute(sql, [ids]):
            found[conversation_id].append(known)
        return found

    def _ids_of(self, schema: str, condition: str, value: str, words: Sequence[str]) -> list[int]:
        """The messages under a condition that hold all of these words."""
        sql = f"""
            SELECT messages.id FROM {schema}.messages
            JOIN {schema}.message_index ON message_index.rowid = messages.id
            WHERE {condition} {"AND instr(message_index.text, ?) " * len(words)}"""
        return [known for (known,) in self._open_db.execute(sql, [value, *words])]


def _holds(folded: str, words: Sequence[str]) -> bool:
    return all(word in folded for word in words)
