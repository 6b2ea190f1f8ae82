"""`ember cache`: which conversations resume at once, and what that costs. Reads the disk; no engine, no lock."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from app.commands.call import Call
from engine.kv.store.report import report_disk
from engine.protocol.events import CacheState, ConversationCache


def cache(call: Call) -> int:
    with call.store() as store:
        conversations = store.conversations()
    settings = call.settings()
    report = report_disk(call.paths.kv_dir, settings.memory_budget_bytes)
    report = replace(report, disk_cap_bytes=settings.disk_cap_bytes)
    kept = {entry.conversation_id: entry for entry in report.conversations}
    known = {conversation.id for conversation in conversations}
    rows = [_row(kept.get(one.id) or _cold(one.id), one.title, one.is_pinned) for one in conversations]
    rows += [_row(entry, "", False) for unknown, entry in kept.items() if unknown not in known]
    if call.arguments.json:
        content = asdict(report)
        del content["request_id"], content["memory"]  # of an engine, which does not run
        call.print_json(content | {"conversations": rows})
        return 0
    for row in rows:
        own, shared = _size(row["disk_bytes"] - row["shared_bytes"]), _size(row["shared_bytes"])
        call.print(
            f"{row['id']}  {row['state']:7}  {row['tokens']:6,} tokens  {_form(row):14}  "
            f"on disk: own {own:>10}  shared {shared:>10}  {row['title']}"
        )
    cap, shared = f"{settings.disk_cap_mb:,} MB", _size(report.shared_bytes)
    call.print(f"{_size(report.disk_bytes)} of {cap} on disk, {shared} shared")
    return 0


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"


def _form(row: dict[str, Any]) -> str:
    """The precision it comes back in, and how much of it was kept where it is compressed."""
    return f"{row['precision']} {row['kept']:.0%}" if row["kept"] < 1.0 else str(row["precision"])


def _row(entry: ConversationCache, title: str, is_pinned: bool) -> dict[str, Any]:
    content = asdict(replace(entry, is_pinned=is_pinned))
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
