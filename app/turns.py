"""The turns of a chat: a message is sent, or a reply asked for again, after another wording, or to its end.

Invariant: what a person wrote is stored before the engine hears of it. The session's thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from uuid import uuid4

from app.conversation import Conversation, Draft, Message, MessageState
from app.conversation_store import ConversationStore
from app.errors import EmptyMessageError, NothingToContinueError
from app.history import well_formed, well_formed_draft
from app.model_switch import ModelSwitch
from app.reply import Reply
from app.reply_requests import ReplyRequests
from app.settings import Settings
from app.title import title_from
from engine.protocol.commands import Role
from engine.protocol.config import Sampling
from engine.protocol.events import FinishReason


class Turns:
    """`ready` gives a conversation once nothing runs in it and its own model is there or on its way; raises as `send`
    does.
    """

    def __init__(
        self,
        store: ConversationStore,
        requests: ReplyRequests,
        models: ModelSwitch,
        settings: Callable[[], Settings],
        ready: Callable[[str], Conversation],
    ) -> None:
        self._store = store
        self._requests = requests
        self._models = models
        self._settings = settings
        self._ready = ready

    def send(
        self,
        conversation_id: str,
        draft: Draft | str,
        *,
        sampling: Sampling | None = None,
        max_new_tokens: int | None = None,
    ) -> str:
        """Store the message and an empty reply, then ask the engine. Returns the request id.

        Raises EmptyMessageError, BusyError, UnknownConversationError, EngineFailedError (its own model is gone),
        StorageError; nothing was asked for then.
        """
        draft = well_formed_draft(Draft(draft) if isinstance(draft, str) else draft)
        if draft.is_blank:
            raise EmptyMessageError("The message is empty; write something first.")
        conversation = self._ready(conversation_id)
        with self._store.transaction():
            question = self._store.add_message(conversation_id, Role.USER, draft.text, attachments=draft.attachments)
            answer = self._add_answer(conversation_id, question.id)
            if not conversation.title:
                first_file = draft.attachments[0].name if draft.attachments else ""
                self._store.set_title(conversation_id, title_from(draft.text) or title_from(first_file))
            self._store.set_draft(conversation_id, Draft())
        reply = self._reply_for(conversation, answer, sampling, max_new_tokens)
        reply.question, reply.title_before = question, conversation.title
        return self._requests.begin(reply)

    def regenerate(self, conversation_id: str, message_id: int) -> str:
        """Ask for another version of a reply; the one there is kept. Returns the request id. Raises as `send` does."""
        conversation = self._ready(conversation_id)
        before = self._store.message(message_id)
        asked_by = before.parent_id if before.role is Role.ASSISTANT else before.id
        return self._requests.begin(self._reply_for(conversation, self._add_answer(conversation_id, asked_by)))

    def edit(self, conversation_id: str, message_id: int, text: str) -> str | None:
        """Keep another wording of a message beside the old one. One of the user's is answered anew.

        Returns the request id, or None where nothing was asked for. Raises as `send` does.
        """
        text = well_formed(text)
        before = self._store.message(message_id)
        if not text.strip() and not before.attachments:
            raise EmptyMessageError("The message is empty; write something first.")
        conversation = self._ready(conversation_id)
        with self._store.transaction():
            after = self._store.add_message(
                conversation_id,
                before.role,
                text,
                attachments=before.attachments,
                parent_id=before.parent_id,
                model=before.model,
            )
            if before.role is not Role.USER:
                return None
            answer = self._add_answer(conversation_id, after.id)
        reply = self._reply_for(conversation, answer)
        reply.question, reply.title_before = after, conversation.title
        return self._requests.begin(reply)

    def continue_reply(self, conversation_id: str) -> str:
        """Go on with the last reply, which was stopped or cut short. Returns the request id.

        Raises NothingToContinueError, and as `send` does.
        """
        conversation = self._ready(conversation_id)
        last = next(iter(reversed(self._store.messages(conversation_id))), None)
        if last is None or not _is_continuable(last):
            raise NothingToContinueError("The last reply is whole; send a message to go on.")
        self._store.reopen_reply(last.id)
        reply = self._reply_for(conversation, last)
        reply.continues = True
        return self._requests.begin(reply)

    def _add_answer(self, conversation_id: str, question_id: int | None) -> Message:
        return self._store.add_message(
            conversation_id,
            Role.ASSISTANT,
            "",
            state=MessageState.STREAMING,
            model=self._models.name,
            parent_id=question_id,
        )

    def _reply_for(
        self,
        conversation: Conversation,
        answer: Message,
        sampling: Sampling | None = None,
        max_new_tokens: int | None = None,
    ) -> Reply:
        """As the call says, else the conversation's own options, else the settings."""
        settings = self._settings()
        chosen = {name: value for name, value in dataclasses.asdict(conversation.options).items() if value is not None}
        longest = chosen.pop("max_new_tokens", settings.max_new_tokens)
        return Reply(
            request_id=uuid4().hex,
            answer=answer,
            sampling=sampling or dataclasses.replace(settings.sampling(), **chosen),
            max_new_tokens=max_new_tokens or longest,
        )


def _is_continuable(message: Message) -> bool:
    """Whether a reply was stopped, or hit the length limit, after it had begun."""
    is_cut = message.finish_reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
    is_reply = message.role is Role.ASSISTANT and message.state is MessageState.COMPLETE
    return is_reply and is_cut and bool(message.text.strip())
