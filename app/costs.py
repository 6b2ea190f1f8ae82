"""What a draft would cost, asked of the engine with the history that sending it would give. The session's thread."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from uuid import uuid4

from app.chat_view import ChatViews
from app.conversation import Conversation, Draft, Message
from app.conversation_store import ConversationStore
from app.engine_port import EnginePort
from app.errors import AppError
from app.history import well_formed, well_formed_draft
from app.model_switch import ModelSwitch
from app.settings import Settings
from engine.protocol.commands import CountTokens, Estimate, Role
from engine.protocol.config import ContextPolicy
from engine.protocol.events import ModelInfo


class Costs:
    def __init__(
        self,
        store: ConversationStore,
        engine: EnginePort,
        models: ModelSwitch,
        views: ChatViews,
        settings: Callable[[], Settings],
    ) -> None:
        self._store = store
        self._engine = engine
        self._models = models
        self._views = views
        self._settings = settings

    @property
    def model(self) -> ModelInfo | None:
        """The one that would be asked."""
        return self._models.info

    def estimate(self, conversation_id: str | None, draft: Draft) -> str:
        """Ask what sending this now would cost. Returns the request id. None: a chat that is not stored yet.

        Raises UnknownConversationError, StorageError.
        """
        now, settings = datetime.now(UTC), self._settings()
        if conversation_id is None:
            conversation = Conversation("", "", now, now, well_formed(settings.system_prompt))
        else:
            conversation = self._store.conversation(conversation_id)
        draft = well_formed_draft(draft)
        question = Message(0, conversation.id, Role.USER, draft.text, now, attachments=draft.attachments)
        view = self._views.settled(conversation, question)
        request_id = uuid4().hex
        self._engine.submit(
            Estimate(
                conversation.id,
                request_id,
                view.messages,
                view.started_on,
                view.branch,
                ContextPolicy(settings.context_policy),
                conversation.options.max_new_tokens or settings.max_new_tokens,
            )
        )
        return request_id

    def of_going_on(self, conversation_id: str) -> str | None:
        """Ask what going on with a chat would cost, nothing being said yet. None where it cannot be asked now."""
        try:
            return self.estimate(conversation_id, Draft()) if self.model is not None else None
        except AppError:
            return None

    def count_tokens(self, texts: tuple[str, ...]) -> str:
        """Ask for the lengths of texts in tokens. Returns the request id."""
        request_id = uuid4().hex
        self._engine.submit(CountTokens(request_id, tuple(well_formed(text) for text in texts)))
        return request_id
