"""Conversations and messages in SQLite: the text that must never be lost. One thread (that which opened it).

Every change is one transaction; with a write-ahead log and the write order of SQLite, a process killed at any point
leaves the state before or after it. Every failure of the disk is a StorageError.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from app.conversation import Conversation, Message, MessageState
from app.database import Database, Migrations, open_database
from app.errors import UnknownConversationError, from_os_error, from_sqlite_error
from app.migrations import MIGRATIONS, check_readable, migrate, schema_version
from app.records import conversation_from, ids_to_blob, message_from, statistics_to_json
from app.title import shortened
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason, TurnStatistics

IN_MEMORY = Path(":memory:")  # SQLite's own name for a database that no file holds
_BUSY_TIMEOUT_S = 5.0
_LONGEST_ECHO = 40
_CONVERSATIONS = """
    SELECT conversations.*, (SELECT count(*) FROM messages WHERE conversation_id = conversations.id) AS num_messages
    FROM conversations
"""


class ConversationStore:
    """Opens (and creates, backs up, migrates) the database at `path`; `IN_MEMORY` is gone when it is closed.

    Raises NewerDatabaseError and DamagedDatabaseError, which leave the file as it is, or another StorageError.
    """

    def __init__(self, path: Path, *, migrations: Migrations = MIGRATIONS) -> None:
        self._path = path
        self._db: Database | None = None
        with self._failures_told():
            if not self.is_in_memory:
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.exists():
                    check_readable(path, supported_version=schema_version(migrations))
            self._db = open_database(path, busy_timeout_s=_BUSY_TIMEOUT_S)
        try:
            with self._failures_told():
                self._prepare(self._db, migrations)
        except BaseException:
            self.close()
            raise

    @property
    def is_in_memory(self) -> bool:
        return self._path == IN_MEMORY

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes made inside are kept together, or none. May be nested."""
        with self._failures_told(), self._open_db.atomic():
            yield

    def conversations(self) -> list[Conversation]:
        """Every conversation, newest update first."""
        return [conversation_from(row) for row in self._query(f"{_CONVERSATIONS} ORDER BY updated_at DESC, rowid DESC")]

    def conversation(self, conversation_id: str) -> Conversation:
        """Raises UnknownConversationError."""
        rows = self._query(f"{_CONVERSATIONS} WHERE id = ?", conversation_id)
        if not rows:
            echo = shortened(conversation_id, _LONGEST_ECHO)
            raise UnknownConversationError(
                f"There is no conversation {echo}; list them with `ember conversations`.",
                id=conversation_id,
            )
        return conversation_from(rows[0])

    def messages(self, conversation_id: str) -> list[Message]:
        """The messages of a conversation, oldest first; none for an unknown one."""
        rows = self._query("SELECT * FROM messages WHERE conversation_id = ? ORDER BY id", conversation_id)
        return [message_from(row) for row in rows]

    def create_conversation(self, *, system_prompt: str = "") -> Conversation:
        conversation_id = uuid4().hex
        now = _now()
        with self.transaction():
            self._open_db.table("conversations").insert(
                {"id": conversation_id, "system_prompt": system_prompt, "created_at": now, "updated_at": now}
            )
        return self.conversation(conversation_id)

    def add_message(
        self,
        conversation_id: str,
        role: Role,
        text: str,
        *,
        state: MessageState = MessageState.COMPLETE,
        model: str | None = None,
    ) -> Message:
        """Append a message. Raises UnknownConversationError."""
        self.conversation(conversation_id)
        with self.transaction():
            row = {
                "conversation_id": conversation_id,
                "role": role.value,
                "text": text,
                "state": state.value,
                "created_at": _now(),
                "model": model,
            }
            message_id = self._open_db.table("messages").insert(row).last_pk
            self._touch(conversation_id)
        return message_from(self._query("SELECT * FROM messages WHERE id = ?", message_id)[0])

    def update_reply(
        self, message_id: int, *, text: str, token_ids: tuple[int, ...] | None, tokenizer_id: str | None
    ) -> None:
        """Keep what has come of a reply so far."""
        self._change("messages", message_id, text=text, token_ids=ids_to_blob(token_ids), tokenizer_id=tokenizer_id)

    def finish_reply(
        self,
        message_id: int,
        *,
        text: str,
        token_ids: tuple[int, ...] | None,
        tokenizer_id: str | None,
        finish_reason: FinishReason,
        statistics: TurnStatistics | None,
    ) -> None:
        """Keep the whole reply; its conversation becomes the newest."""
        with self.transaction():
            self._change(
                "messages",
                message_id,
                text=text,
                token_ids=ids_to_blob(token_ids),
                tokenizer_id=tokenizer_id if token_ids is not None else None,
                finish_reason=finish_reason.value,
                statistics=statistics_to_json(statistics),
                state=MessageState.COMPLETE.value,
            )
            for row in self._query("SELECT conversation_id FROM messages WHERE id = ?", message_id):
                self._touch(row["conversation_id"])

    def delete_message(self, message_id: int) -> None:
        with self.transaction():
            self._open_db.execute("DELETE FROM messages WHERE id = ?", [message_id])

    def delete_conversation(self, conversation_id: str) -> None:
        """Delete a conversation with its messages. Raises UnknownConversationError."""
        self.conversation(conversation_id)
        with self.transaction():
            self._open_db.execute("DELETE FROM conversations WHERE id = ?", [conversation_id])

    def set_title(self, conversation_id: str, title: str) -> None:
        self._change("conversations", conversation_id, title=title)

    def set_draft(self, conversation_id: str, draft: str) -> None:
        self._change("conversations", conversation_id, draft=draft)

    def set_model(self, conversation_id: str, model: str | None) -> None:
        self._change("conversations", conversation_id, model=model)

    def set_pinned(self, conversation_id: str, is_pinned: bool) -> None:
        self._change("conversations", conversation_id, is_pinned=int(is_pinned))

    def pinned_ids(self) -> frozenset[str]:
        return frozenset(row["id"] for row in self._query("SELECT id FROM conversations WHERE is_pinned"))

    def close_interrupted_replies(self) -> int:
        """At start-up: replies that were being written when the program ended become cancelled ones; how many.

        Their token ids are dropped: the ids may run ahead of the text by half a character, and the text is the truth.
        """
        with self.transaction():
            cursor = self._open_db.execute(
                "UPDATE messages SET state = ?, finish_reason = ?, token_ids = NULL, tokenizer_id = NULL "
                "WHERE state = ?",
                [MessageState.COMPLETE.value, FinishReason.CANCELLED.value, MessageState.STREAMING.value],
            )
            return int(cursor.rowcount)

    @property
    def _open_db(self) -> Database:
        if self._db is None:
            raise RuntimeError("the conversation store is closed")
        return self._db

    def _prepare(self, db: Database, migrations: Migrations) -> None:
        if self.is_in_memory:
            db.execute("PRAGMA temp_store = MEMORY")  # SQLite may sort in a file otherwise
        elif db.journal_mode != "wal":
            db.enable_wal()
        db.execute("PRAGMA synchronous = NORMAL")
        migrate(db, self._path, migrations)
        db.execute("PRAGMA foreign_keys = ON")  # after migrating: a step may rebuild a table that others refer to

    def _query(self, sql: str, *values: object) -> list[dict[str, Any]]:
        with self._failures_told():
            return list(self._open_db.query(sql, values))

    def _change(self, table: str, key: str | int, **values: object) -> None:
        """Set columns of one row; a row that is gone is no error, since a late event may speak of it."""
        columns = ", ".join(f"{column} = ?" for column in values)
        with self.transaction():
            self._open_db.execute(f"UPDATE {table} SET {columns} WHERE id = ?", [*values.values(), key])

    def _touch(self, conversation_id: str) -> None:
        self._change("conversations", conversation_id, updated_at=_now())

    @contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise from_sqlite_error(error, self._path) from error
        except OSError as error:
            raise from_os_error(error, self._path) from error


def _now() -> str:
    """UTC with a fixed width, so that the texts sort as the times do."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
