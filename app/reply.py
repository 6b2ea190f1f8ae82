"""One reply being written: what has come of it so far, and how its end is kept. Used by `app.replies` only."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.conversation import Draft, Message
from app.conversation_store import ConversationStore
from engine.protocol.config import Sampling
from engine.protocol.errors import ContextOverflowError
from engine.protocol.events import Failed, Finished, FinishReason, TextArrived


@dataclass(slots=True)
class Reply:
    """`answer` is the stored message it becomes; one that `continues` a stopped reply had its text before.

    `question`: the message stored with it, taken back when it does not fit; None for a reply to one that was there.
    `end` is the event that ended the reply, or None for one the program itself gives up (it is closing).
    """

    request_id: str
    answer: Message
    sampling: Sampling
    max_new_tokens: int
    question: Message | None = None
    title_before: str = ""
    continues: bool = False
    tokenizer_id: str | None = None
    is_stopped: bool = False
    is_failure_told: bool = False
    saved_at: float | None = None
    end: Finished | Failed | None = None
    _texts: list[str] = field(default_factory=list)
    _token_ids: list[int] = field(default_factory=list)

    @property
    def conversation_id(self) -> str:
        return self.answer.conversation_id

    def take(self, event: TextArrived) -> None:
        self._texts.append(event.text)
        self._token_ids.extend(event.token_ids)

    def save_partial(self, store: ConversationStore) -> None:
        """Raises StorageError."""
        store.update_reply(
            self.answer.id,
            text=self._text_so_far,
            token_ids=self._whole_ids(tuple(self._token_ids)),
            tokenizer_id=self.tokenizer_id,
        )

    def settle(self, store: ConversationStore) -> None:
        """Keep the end of the reply; may be tried again after a StorageError."""
        match self.end:
            case Finished() as finished:
                store.finish_reply(
                    self.answer.id,
                    text=self._text_before + finished.text,
                    token_ids=self._whole_ids(finished.token_ids) if finished.ids_match_text else None,
                    tokenizer_id=self.tokenizer_id,
                    finish_reason=finished.finish_reason,
                    statistics=finished.statistics,
                )
            case Failed() if self.continues and not self._texts:
                self._keep_as_before(store)
            case Failed(code=ContextOverflowError.code):
                self._withdraw(store)
            case Failed() if not "".join(self._texts):
                store.remove_branch(self.answer.id)
            case _:
                self._keep_as_cancelled(store)

    @property
    def _text_before(self) -> str:
        return self.answer.text if self.continues else ""

    @property
    def _text_so_far(self) -> str:
        return self._text_before + "".join(self._texts)

    def _whole_ids(self, token_ids: tuple[int, ...]) -> tuple[int, ...] | None:
        """With those of the text before; None where they are not known, or another tokenizer's."""
        if not self.continues:
            return token_ids
        if self.answer.token_ids is None or self.answer.tokenizer_id != self.tokenizer_id:
            return None
        return self.answer.token_ids + token_ids

    def _withdraw(self, store: ConversationStore) -> None:
        """The message was too long: it goes back to where it was written, before anything typed since."""
        with store.transaction():
            store.remove_branch(self.answer.id)
            if self.question is None:
                return
            draft = store.conversation(self.conversation_id).draft
            store.remove_branch(self.question.id)
            store.set_title(self.conversation_id, self.title_before)
            text = "\n".join(filter(None, (self.question.text, draft.text)))
            store.set_draft(self.conversation_id, Draft(text, (*self.question.attachments, *draft.attachments)))

    def _keep_as_before(self, store: ConversationStore) -> None:
        store.finish_reply(
            self.answer.id,
            text=self.answer.text,
            token_ids=self.answer.token_ids,
            tokenizer_id=self.answer.tokenizer_id,
            finish_reason=self.answer.finish_reason or FinishReason.CANCELLED,
            statistics=self.answer.statistics,
        )

    def _keep_as_cancelled(self, store: ConversationStore) -> None:
        """The ids are dropped: they may run ahead of the text by half a character, and the text is the truth."""
        store.finish_reply(
            self.answer.id,
            text=self._text_so_far,
            token_ids=None,
            tokenizer_id=None,
            finish_reason=FinishReason.CANCELLED,
            statistics=None,
        )
