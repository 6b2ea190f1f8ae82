"""`ember cache`: which conversations resume at once, and what that costs. Reads the disk; no engine, no lock."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from app.commands.call import Call
from engine.kv.snapshots import report_disk
from engine.protocol.events import CacheState, ConversationCache


def cache(call: Call) -> int:
    with call.store() as store:
        titles = {conversation.id: conversation.title for conversation in store.conversations()}
    budget_bytes = call.settings().memory_budget_mb * 1024**2
    report = report_disk(call.paths.kv_dir, budget_bytes)
    kept = {entry.conversation_id: entry for entry in report.conversations}
    rows = [_row(kept.get(known) or _cold(known), title) for known, title in titles.items()]
    rows += [_row(entry, "") for known, entry in kept.items() if known not in titles]
    if call.arguments.json:
        content = asdict(report)
        del content["request_id"]
        call.print_json(content | {"conversations": rows})
        return 0
    for row in rows:
        size = f"{row['disk_bytes'] / 1e6:,.1f} MB"
        call.print(f"{row['id']}  {row['state']:7}  {row['tokens']:6,} tokens  {size:>12}  {row['title']}")
    call.print(f"{report.disk_bytes / 1e6:,.1f} MB on disk")
    return 0


def _row(entry: ConversationCache, title: str) -> dict[str, Any]:
    content = asdict(entry)
    return {"id": content.pop("conversation_id"), "title": title, **content, "state": entry.state.value}


def _cold(conversation_id: str) -> ConversationCache:
    return ConversationCache(
        conversation_id=conversation_id,
        tokens=0,
        memory_bytes=0,
        disk_bytes=0,
        shared_bytes=0,
        precision="",
        place="none",
        state=CacheState.COLD,
    )
