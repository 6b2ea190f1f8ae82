"""The use cases of a chat, for the window and the command line alike. No Qt; one thread, that of the store.

Invariant: what a person wrote is stored before the engine hears of it, and an event whose request is unknown (stale,
doubled, of a deleted conversation) changes nothing.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from uuid import uuid4

from app.compressions import Compressions
from app.conversation import ChatOptions, Conversation, Draft, Message, MessageState
from app.conversation_store import ConversationStore
from app.engine_port import EnginePort
from app.errors import (
    BusyError,
    CompressingError,
    EmptyMessageError,
    NothingToCompressError,
    NothingToContinueError,
    StorageError,
)
from app.history import History, history_of, well_formed
from app.model_switch import FindModel, ModelSwitch
from app.replies import Replies
from app.reply import Reply
from app.settings import Settings
from app.store.removal import Removed
from app.title import title_from
from engine.protocol.commands import (
    ChatMessage,
    Compress,
    CompressMethod,
    CountTokens,
    Estimate,
    Forget,
    ForgetUnknown,
    Generate,
    Pin,
    Role,
    Undo,
    Verify,
)
from engine.protocol.config import ContextPolicy, Sampling, Weights
from engine.protocol.events import (
    EngineStopped,
    Event,
    Failed,
    Finished,
    FinishReason,
    ModelInfo,
    TextArrived,
    ViewMoved,
)

_log = logging.getLogger(__name__)


class ChatSession:
    """Incognito conversations, and all those of a store that is in memory only, leave nothing behind in the engine.

    `on_storage_error` is told, once a reply, that saving failed while the engine was answering; chatting goes on.
    `on_load` is told the request id of a load that a conversation's own model asked for.
    """

    def __init__(
        self,
        store: ConversationStore,
        engine: EnginePort,
        settings: Settings,
        *,
        find_model: FindModel | None = None,
        on_storage_error: Callable[[StorageError], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_load: Callable[[str], None] | None = None
        self._store = store
        self._engine = engine
        self._settings = settings
        self._pinned: frozenset[str] = frozenset()  # as the engine was told
        self._models = ModelSwitch(engine, find_model)
        self._replies = Replies(store, on_storage_error, clock)
        self._waiting: list[Reply] = []  # asked for while a model loads: its tokenizer decides which ids may be fed
        self._asked: dict[str, tuple[str, History]] = {}  # by conversation: the last request and what it was given
        self._compressions = Compressions(engine)

    @property
    def model(self) -> ModelInfo | None:
        return self._models.info

    @property
    def on_storage_error(self) -> Callable[[StorageError], None] | None:
        return self._replies.on_storage_error

    @on_storage_error.setter
    def on_storage_error(self, tell: Callable[[StorageError], None] | None) -> None:
        self._replies.on_storage_error = tell

    def is_busy(self, conversation_id: str) -> bool:
        """Whether a reply is being written there."""
        return self._replies.of(conversation_id) is not None

    def is_compressing(self, conversation_id: str) -> bool:
        """Whether its cache is being compressed or brought back, or waits for that."""
        return self._compressions.is_running(conversation_id)

    def load_model(self, path: Path, weights: Weights) -> str:
        """Load a model; replies asked for meanwhile wait for it. Returns the request id."""
        if self._models.name is None:
            self._forget_unknown()
        self._tell_pinned()
        request_id = _new_id()
        self._models.load(request_id, path, weights)
        return request_id

    def new_conversation(
        self,
        system_prompt: str | None = None,
        *,
        is_incognito: bool = False,
        options: ChatOptions | None = None,
        model: str | None = None,
    ) -> Conversation:
        """`system_prompt` None takes the settings' one."""
        return self._store.create_conversation(
            system_prompt=well_formed(self._settings.system_prompt if system_prompt is None else system_prompt),
            is_incognito=is_incognito,
            options=options or ChatOptions(),
            model=model,
        )

    # -- replies ---------------------------------------------------------------------------------------------------

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
        draft = _well_formed(Draft(draft) if isinstance(draft, str) else draft)
        if draft.is_blank:
            raise EmptyMessageError("The message is empty; write something first.")
        conversation = self._ready(conversation_id)
        with self._store.transaction():
            question = self._store.add_message(conversation_id, Role.USER, draft.text, attachments=draft.attachments)
            answer = self._add_answer(question)
            if not conversation.title:
                first_file = draft.attachments[0].name if draft.attachments else ""
                self._store.set_title(conversation_id, title_from(draft.text) or title_from(first_file))
            self._store.set_draft(conversation_id, Draft())
        reply = self._reply_for(conversation, answer, sampling, max_new_tokens)
        reply.question, reply.title_before = question, conversation.title
        return self._begin(reply)

    def regenerate(self, conversation_id: str, message_id: int) -> str:
        """Ask for another version of a reply; the one there is kept. Returns the request id. Raises as `send` does."""
        conversation = self._ready(conversation_id)
        before = self._store.message(message_id)
        asked_by = before.parent_id if before.role is Role.ASSISTANT else before.id
        answer = self._store.add_message(
            conversation_id,
            Role.ASSISTANT,
            "",
            state=MessageState.STREAMING,
            model=self._models.name,
            parent_id=asked_by,
        )
        return self._begin(self._reply_for(conversation, answer))

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
            answer = self._add_answer(after)
        reply = self._reply_for(conversation, answer)
        reply.question, reply.title_before = after, conversation.title
        return self._begin(reply)

    def continue_reply(self, conversation_id: str) -> str:
        """Go on with the last reply, which was stopped or cut short. Returns the request id.

        Raises NothingToContinueError, and as `send` does.
        """
        conversation = self._ready(conversation_id)
        last = next(iter(reversed(self._store.messages(conversation_id))), None)
        if last is None or not is_continuable(last):
            raise NothingToContinueError("The last reply is whole; send a message to go on.")
        self._store.reopen_reply(last.id)
        reply = self._reply_for(conversation, last)
        reply.continues = True
        return self._begin(reply)

    def stop(self, conversation_id: str) -> None:
        """Stop the reply being written, if any; what has come of it is kept. Stops compressing too; no change then."""
        self._compressions.stop(conversation_id)
        reply = self._replies.of(conversation_id)
        if reply is not None:
            reply.is_stopped = True
            self._engine.cancel(reply.request_id)

    # -- messages and conversations --------------------------------------------------------------------------------

    def show_version(self, conversation_id: str, message_id: int) -> None:
        """Take up the branch of another version. Raises BusyError, StorageError."""
        self._refuse_if_busy(conversation_id)
        self._store.select_version(message_id)

    def delete_message(self, conversation_id: str, message_id: int, *, and_below: bool) -> Removed:
        """Delete a message, `and_below` with all that followed it. Raises BusyError, StorageError."""
        self._refuse_if_busy(conversation_id)
        return self._store.remove_branch(message_id) if and_below else self._store.remove_message(message_id)

    def undo_delete(self, conversation_id: str, removed: Removed) -> None:
        """Raises BusyError, StorageError."""
        self._refuse_if_busy(conversation_id)
        self._store.put_back(removed)

    def fork(self, conversation_id: str, message_id: int | None = None) -> Conversation:
        """A copy of a conversation, or of the way to one of its messages. Raises StorageError."""
        return self._store.duplicate_conversation(conversation_id, until=message_id)

    def delete(self, conversation_id: str) -> None:
        """Delete a conversation, its reply being written and its caches. Raises StorageError; nothing is lost then."""
        self._store.delete_conversation(conversation_id)
        reply = self._replies.forget(conversation_id)
        if reply is not None:
            self._waiting = [one for one in self._waiting if one is not reply]
            self._engine.cancel(reply.request_id)
        self._asked.pop(conversation_id, None)
        self._compressions.stop(conversation_id)
        self._engine.submit(Forget(conversation_id))
        self._tell_pinned()

    def set_pinned(self, conversation_id: str, is_pinned: bool) -> None:
        """Whether its cache goes last when memory or disk runs short. Raises StorageError."""
        self._store.set_pinned(conversation_id, is_pinned)
        self._tell_pinned()

    # -- the cache -------------------------------------------------------------------------------------------------

    def estimate(self, conversation_id: str | None, draft: Draft) -> str:
        """Ask what sending this now would cost. Returns the request id. None: a chat that is not stored yet.

        Raises UnknownConversationError, StorageError.
        """
        now = datetime.now(UTC)
        if conversation_id is None:
            conversation = Conversation("", "", now, now, well_formed(self._settings.system_prompt))
            messages, branch = [], ""
        else:
            conversation = self._store.conversation(conversation_id)
            messages, branch = self._settled_messages(conversation_id), self._store.branch_name(conversation_id)
        draft = _well_formed(draft)
        asked = Message(0, conversation.id, Role.USER, draft.text, now, attachments=draft.attachments)
        request_id = _new_id()
        self._engine.submit(
            Estimate(
                conversation.id,
                request_id,
                history_of(conversation, [*messages, asked], self._tokenizer_id).messages,
                _day(conversation),
                branch,
                ContextPolicy(self._settings.context_policy),
                conversation.options.max_new_tokens or self._settings.max_new_tokens,
            )
        )
        return request_id

    def count_tokens(self, texts: tuple[str, ...]) -> str:
        """Ask for the lengths of texts in tokens. Returns the request id."""
        request_id = _new_id()
        self._engine.submit(CountTokens(request_id, tuple(well_formed(text) for text in texts)))
        return request_id

    def verify(self, conversation_id: str) -> str:
        """Ask whether the kept cache answers as a cold one would. Returns the request id."""
        request_id = _new_id()
        conversation = self._store.conversation(conversation_id)
        history, branch = self.history(conversation_id), self._store.branch_name(conversation_id)
        self._engine.submit(Verify(conversation_id, request_id, history, started_on=_day(conversation), branch=branch))
        return request_id

    def compress(
        self,
        conversation_id: str,
        *,
        keep: float,
        method: CompressMethod = CompressMethod.KVZIP,
        is_int8: bool = False,
    ) -> str:
        """Ask to keep only the share `keep` of its cache, 0.1 to 0.9. Returns the request id.

        Raises BusyError, NothingToCompressError, UnknownConversationError, StorageError.
        """
        conversation = self._ready_to_compress(conversation_id)
        request_id = _new_id()
        self._compressions.ask(
            Compress(
                conversation_id,
                request_id,
                self.history(conversation_id),
                keep,
                method,
                is_int8,
                started_on=_day(conversation),
                is_incognito=self._is_incognito(conversation),
                branch=self._store.branch_name(conversation_id),
            )
        )
        return request_id

    def undo_compression(self, conversation_id: str) -> str:
        """Ask for the whole cache in full precision again. Returns the request id. Raises as `compress` does."""
        conversation = self._ready_to_compress(conversation_id)
        request_id = _new_id()
        self._compressions.ask(
            Undo(
                conversation_id,
                request_id,
                self.history(conversation_id),
                started_on=_day(conversation),
                is_incognito=self._is_incognito(conversation),
                branch=self._store.branch_name(conversation_id),
            )
        )
        return request_id

    def history(self, conversation_id: str) -> tuple[ChatMessage, ...]:
        """The messages as the loaded model gets them, without a reply still being written."""
        conversation = self._store.conversation(conversation_id)
        return history_of(conversation, self._settled_messages(conversation_id), self._tokenizer_id).messages

    # -- what comes in ---------------------------------------------------------------------------------------------

    def settings_changed(self, settings: Settings) -> None:
        """The next reply uses them."""
        self._settings = settings

    def handle(self, event: Event) -> None:
        """Keep what an event says. Never raises StorageError: `on_storage_error` is told instead."""
        self._compressions.take(event)
        if self._models.take(event):
            self._ask_waiting()
        match event:
            case TextArrived():
                self._replies.take(event)
            case Finished() | Failed():
                self._on_ended(event)
            case ViewMoved():
                self._on_view_moved(event)
            case EngineStopped():
                self._pinned = frozenset()
                self.close()

    def close(self) -> None:
        """Keep what has come of replies being written, as cancelled ones."""
        self._waiting.clear()
        self._replies.close()

    # -- private ---------------------------------------------------------------------------------------------------

    @property
    def _tokenizer_id(self) -> str | None:
        return self._models.info.tokenizer_id if self._models.info else None

    def _ready(self, conversation_id: str) -> Conversation:
        """The conversation, once nothing runs in it and its own model is there or on its way."""
        self._refuse_if_busy(conversation_id)
        self._replies.settle_all()
        conversation = self._store.conversation(conversation_id)
        path = self._models.missing_for(conversation, self._settings)
        if path is not None:
            request_id = self.load_model(path, self._settings.weights)
            if self.on_load is not None:
                self.on_load(request_id)
        return conversation

    def _add_answer(self, question: Message) -> Message:
        return self._store.add_message(
            question.conversation_id,
            Role.ASSISTANT,
            "",
            state=MessageState.STREAMING,
            model=self._models.name,
            parent_id=question.id,
        )

    def _reply_for(
        self,
        conversation: Conversation,
        answer: Message,
        sampling: Sampling | None = None,
        max_new_tokens: int | None = None,
    ) -> Reply:
        options = conversation.options
        chosen = {name: value for name, value in dataclasses.asdict(options).items() if value is not None}
        longest = chosen.pop("max_new_tokens", self._settings.max_new_tokens)
        return Reply(
            request_id=_new_id(),
            answer=answer,
            sampling=sampling or dataclasses.replace(self._settings.sampling(), **chosen),
            max_new_tokens=max_new_tokens or longest,
        )

    def _begin(self, reply: Reply) -> str:
        self._replies.begin(reply)
        if self._models.is_loading:
            self._waiting.append(reply)
        else:
            self._ask(reply)
        return reply.request_id

    def _ask_waiting(self) -> None:
        """The model is there, or cannot be: the engine answers the waiting requests either way."""
        waiting, self._waiting = self._waiting, []
        for reply in waiting:
            self._ask(reply)

    def _ask(self, reply: Reply) -> None:
        conversation = self._store.conversation(reply.conversation_id)
        reply.tokenizer_id = self._tokenizer_id
        messages = self._store.messages(conversation.id)
        given = messages if reply.continues else messages[:-1]  # what is asked for is the last one
        history = history_of(conversation, given, reply.tokenizer_id)
        self._asked[conversation.id] = (
            reply.request_id,
            history if reply.continues else dataclasses.replace(history, sources=(*history.sources, reply.answer.id)),
        )
        self._engine.submit(
            Generate(
                conversation.id,
                reply.request_id,
                history.messages,
                reply.sampling,
                reply.max_new_tokens,
                started_on=_day(conversation),
                is_incognito=self._is_incognito(conversation),
                branch=self._store.branch_name(conversation.id),
                continues=reply.continues,
                on_overflow=ContextPolicy(self._settings.context_policy),
            )
        )
        if reply.is_stopped:
            self._engine.cancel(reply.request_id)

    def _on_ended(self, event: Finished | Failed) -> None:
        reply = self._replies.end(event)
        if reply is not None:
            self._waiting = [one for one in self._waiting if one is not reply]

    def _on_view_moved(self, event: ViewMoved) -> None:
        request_id, history = self._asked.get(event.conversation_id, ("", None))
        if history is None or request_id != event.request_id:
            return
        try:
            self._store.set_view_from(event.conversation_id, history.source_after(event.num_dropped))
        except StorageError as error:
            _log.error("Where the model's view begins could not be kept: %s", error)

    def _settled_messages(self, conversation_id: str) -> list[Message]:
        messages = self._store.messages(conversation_id)
        return [message for message in messages if message.state is not MessageState.STREAMING]

    def _is_incognito(self, conversation: Conversation) -> bool:
        return conversation.is_incognito or self._store.is_in_memory

    def _refuse_if_busy(self, conversation_id: str) -> None:
        if self.is_busy(conversation_id):
            raise BusyError("This conversation is still answering; wait, or stop the reply first.")
        if self.is_compressing(conversation_id):
            raise CompressingError("This conversation is being compressed; wait, or stop that first.")

    def _ready_to_compress(self, conversation_id: str) -> Conversation:
        self._refuse_if_busy(conversation_id)
        conversation = self._store.conversation(conversation_id)
        if not conversation.num_messages:
            raise NothingToCompressError("The conversation is empty; there is nothing to compress yet.")
        return conversation

    def _forget_unknown(self) -> None:
        """Finish deletions that were cut off: the text is gone, what the engine kept of it goes as well."""
        if self._store.is_in_memory:
            return
        try:
            known = frozenset(conversation.id for conversation in self._store.conversations())
        except StorageError as error:
            _log.error("The conversations cannot be read: %s", error)
            return
        self._engine.submit(ForgetUnknown(known))

    def _tell_pinned(self) -> None:
        """Tell the engine, which begins with none, where the set has changed. A preference: nothing fails for it."""
        try:
            pinned = self._store.pinned_ids()
        except StorageError as error:
            _log.error("The pinned conversations cannot be read: %s", error)
            return
        if pinned != self._pinned:
            self._pinned = pinned
            self._engine.submit(Pin(pinned))


def is_continuable(message: Message) -> bool:
    """Whether a reply was stopped, or hit the length limit, after it had begun."""
    is_cut = message.finish_reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
    is_reply = message.role is Role.ASSISTANT and message.state is MessageState.COMPLETE
    return is_reply and is_cut and bool(message.text.strip())


def _well_formed(draft: Draft) -> Draft:
    attachments = tuple(
        dataclasses.replace(one, name=well_formed(one.name), text=well_formed(one.text)) for one in draft.attachments
    )
    return Draft(well_formed(draft.text), attachments)


def _day(conversation: Conversation) -> date:
    """The user's calendar day on which it began."""
    return conversation.created_at.astimezone().date()


def _new_id() -> str:
    return uuid4().hex
