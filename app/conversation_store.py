"""Conversations and messages in SQLite: the text that must never be lost. See `app.store.base` for how it is kept."""

from __future__ import annotations

from app.store.base import IN_MEMORY
from app.store.imports import Imports
from app.store.messages import LEAF
from app.store.removal import Removed

__all__ = ["IN_MEMORY", "LEAF", "ConversationStore", "Removed"]


class ConversationStore(Imports):
    """All rooms of the store in one."""
