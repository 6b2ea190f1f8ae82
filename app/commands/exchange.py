"""`ember export [ID ...]`, `ember import FILE ...`, `ember search WORDS`."""

from __future__ import annotations

from pathlib import Path

from app.commands.call import Call, argument_text, find_conversation
from app.conversation_store import ConversationStore
from app.errors import UserError
from app.exchange.ember_json import export_json
from app.exchange.export_file import write_export
from app.exchange.html_export import export_html
from app.exchange.import_file import import_file
from app.exchange.markdown_export import export_markdown


def export(call: Call) -> int:
    """To standard output, or to a file. Nothing else is printed to standard output then, unless --json asks for it."""
    with call.store() as store:
        ids = [find_conversation(store, given).id for given in call.arguments.ids]
        ids = list(dict.fromkeys(ids)) or [chat.id for chat in store.conversations()]
        text = _exported(store, ids, call.arguments.format)
    if call.arguments.output is None:
        call.print(text.rstrip("\n"))
        return 0
    path = Path(argument_text(call.arguments.output))
    write_export(path, text.rstrip("\n") + "\n")
    if call.arguments.json:
        call.print_json({"path": str(path), "conversations": len(ids)})
    else:
        call.note(f"{_number(len(ids), 'conversation')} exported to {path}")
    return 0


def _exported(store: ConversationStore, ids: list[str], form: str) -> str:
    if form == "json":
        return export_json(store, ids)
    chats = [(store.conversation(chat), store.messages(chat)) for chat in ids]
    if form == "html":
        return export_html(chats)
    return "\n".join(export_markdown(chat, messages) for chat, messages in chats)


def import_(call: Call) -> int:
    """All files or none."""
    paths = [Path(argument_text(given)) for given in call.arguments.files]
    with call.own_store() as store, store.transaction():
        results = [(path, import_file(store, path)) for path in paths]
    if call.arguments.json:
        files = [
            {
                "path": str(path),
                "conversations": result.num_conversations,
                "messages": result.num_messages,
                "skipped": list(result.skipped),
            }
            for path, result in results
        ]
        call.print_json({"files": files})
        return 0
    for path, result in results:
        counts = _number(result.num_conversations, "conversation"), _number(result.num_messages, "message")
        call.print(f"{path}: {' with '.join(counts)}")
        for words in result.skipped:
            call.print(f"    left out: {words}")
    return 0


def search(call: Call) -> int:
    query = argument_text(" ".join(call.arguments.words))
    if not query.strip():
        raise UserError("There is nothing to look for; give a word.")
    with call.store() as store:
        hits = store.search(query)
        titles = {hit.conversation_id: store.conversation(hit.conversation_id).title for hit in hits}
    if call.arguments.json:
        content = [
            {
                "conversation_id": hit.conversation_id,
                "title": titles[hit.conversation_id],
                "message_id": hit.message_id,
                "excerpt": hit.excerpt,
                "matches": [list(match) for match in hit.matches],
            }
            for hit in hits
        ]
        call.print_json({"hits": content})
        return 0
    if not hits:
        call.note("Nothing found: try fewer words.")
    shown = None
    for hit in hits:
        if hit.conversation_id != shown:
            shown = hit.conversation_id
            call.print(f"{shown}  {titles[shown] or '(empty)'}")
        if hit.message_id is not None:
            call.print(f"    {hit.excerpt}")
    return 0


def _number(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
