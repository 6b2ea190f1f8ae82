"""One call of the command line: what it was asked, where its data lies, where its words go."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from app.conversation import Conversation
from app.conversation_store import IN_MEMORY, ConversationStore
from app.engine_port import MakeEngine
from app.errors import UnknownConversationError, UserError
from app.instance_lock import InstanceLock
from app.model_library import ModelLibrary
from app.paths import DataPaths
from app.settings import Settings, load_settings

_WAIT_FOR_OTHERS_S = 3.0
_SHORTEST_ID = 4


@dataclass(frozen=True, slots=True)
class Call:
    arguments: argparse.Namespace
    paths: DataPaths
    resources_dir: Path
    make_engine: MakeEngine
    out: TextIO
    err: TextIO

    def settings(self) -> Settings:
        """As they are kept, but for what this call asks for itself."""
        settings = load_settings(self.paths.settings)
        kv_precision: str | None = getattr(self.arguments, "kv_precision", None)
        return replace(settings, kv_precision=kv_precision) if kv_precision else settings

    def library(self) -> ModelLibrary:
        return ModelLibrary(self.resources_dir, self.paths.data_dir)

    def lock(self) -> InstanceLock:
        """For verbs that write or run the engine: waits briefly, then raises AlreadyRunningError."""
        return InstanceLock(self.paths, _WAIT_FOR_OTHERS_S)

    @contextmanager
    def store(self) -> Iterator[ConversationStore]:
        """The conversations, to be read while another Ember may be open."""
        store = ConversationStore(self.paths.database)
        try:
            yield store
        finally:
            store.close()

    @contextmanager
    def own_store(self) -> Iterator[ConversationStore]:
        """The conversations, with the data folder held; replies that were cut off last time are closed."""
        with self.lock(), self.store() as store:
            store.close_interrupted_replies()
            yield store

    @contextmanager
    def incognito_store(self) -> Iterator[ConversationStore]:
        """An empty one in this process only. The data folder is held for the engine, and none of its chats is read."""
        with self.lock():
            store = ConversationStore(IN_MEMORY)
            try:
                yield store
            finally:
                store.close()

    def print(self, text: str) -> None:
        self.out.write(text + "\n")
        self.out.flush()

    def print_json(self, content: dict[str, Any]) -> None:
        """One object on one line; a number that JSON has no word for becomes null."""
        self.print(json.dumps(_finite(content), ensure_ascii=False, allow_nan=False))

    def note(self, text: str) -> None:
        self.err.write(f"ember: {text}\n")
        self.err.flush()


def find_conversation(store: ConversationStore, id_or_beginning: str) -> Conversation:
    """The conversation with this id, or the only one whose id begins so. Raises UnknownConversationError, UserError."""
    id_or_beginning = argument_text(id_or_beginning)
    try:
        return store.conversation(id_or_beginning)
    except UnknownConversationError:
        if len(id_or_beginning) < _SHORTEST_ID:
            raise
        found = [known for known in store.conversations() if known.id.startswith(id_or_beginning)]
        if not found:
            raise
    if len(found) > 1:
        raise UserError(f"{len(found)} conversations begin with {id_or_beginning}; give more of the id.")
    return found[0]


def argument_text(text: str) -> str:
    """Words from the command line as they were typed, whatever the locale. Raises UserError.

    Python decodes arguments by the locale; a terminal sends UTF-8 even where the locale says otherwise.
    """
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeEncodeError:
        return text
    except UnicodeDecodeError as error:
        if any("\udc80" <= character <= "\udcff" for character in text):
            raise UserError(
                "An argument is not valid UTF-8; set the terminal to UTF-8, or pass the message by standard input (-)."
            ) from error
        return text


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
