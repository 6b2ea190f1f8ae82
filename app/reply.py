"""One reply being written: what has come of it so far, and how its end is kept. Used by `app.chat_session` only."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.conversation import Message
from app.conversation_store import ConversationStore
from engine.protocol.config import Sampling
from engine.protocol.errors import ContextOverflowError
from engine.protocol.events import Failed, Finished, FinishReason, TextArrived


@dataclass(slots=True)
class Reply:
    """`end` is the event that ended the reply, or None for one the program itself gives up (it is closing)."""

    request_id: str
    question: Message
    answer: Message
    title_before: str
    sampling: Sampling
    max_new_tokens: int
    tokenizer_id: str | None = None
    is_stopped: bool = False
    is_failure_told: bool = False
    saved_at: float | None = None
    end: Finished | Failed | None = None
    _texts: list[str] = field(default_factory=list)
    _token_ids: list[int] = field(default_factory=list)

    @property
    def conversation_id(self) -> str:
        return self.question.conversation_id

    def take(self, event: TextArrived) -> None:
        self._texts.append(event.text)
        self._token_ids.extend(event.token_ids)

    def save_partial(self, store: ConversationStore) -> None:
        """Raises StorageError."""
        store.update_reply(
            self.answer.id,
            text="".join(self._texts),
            token_ids=tuple(self._token_ids),
            tokenizer_id=self.tokenizer_id,
        )

    def settle(self, store: ConversationStore) -> None:
        """Keep the end of the reply; may be tried again after a StorageError."""
        match self.end:
            case Finished() as finished:
                store.finish_reply(
                    self.answer.id,
                    text=finished.text,
                    token_ids=finished.token_ids if finished.ids_match_text else None,
                    tokenizer_id=self.tokenizer_id,
                    finish_reason=finished.finish_reason,
                    statistics=finished.statistics,
                )
            case Failed(code=ContextOverflowError.code):
                self._withdraw(store)
            case Failed() if not "".join(self._texts):
                store.delete_message(self.answer.id)
            case _:
                self._keep_as_cancelled(store)

    def _withdraw(self, store: ConversationStore) -> None:
        """The message was too long: it goes back to where it was written, before anything typed since."""
        with store.transaction():
            draft = store.conversation(self.conversation_id).draft.text
            store.delete_message(self.answer.id)
            store.delete_message(self.question.id)
            store.set_title(self.conversation_id, self.title_before)
            store.set_draft(self.conversation_id, f"{self.question.text}\n{draft}" if draft else self.question.text)

    def _keep_as_cancelled(self, store: ConversationStore) -> None:
        """The ids are dropped: they may run ahead of the text by half a character, and the text is the truth."""
        store.finish_reply(
            self.answer.id,
            text="".join(self._texts),
            token_ids=None,
            tokenizer_id=None,
            finish_reason=FinishReason.CANCELLED,
            statistics=None,
        )
