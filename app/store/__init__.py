"""The rooms of the conversation store, each one subject; `app.conversation_store` puts them together."""
