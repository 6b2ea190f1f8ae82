"""Every gauge of the strip and the memory panel against the engine's events, `ember cache --json`, the tensors, the
files and the system, with the real model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pytestqt.qtbot import QtBot

from app.paths import DataPaths
from app.settings import Settings, save_settings
from engine.kv.resident import Resident
from engine.protocol.commands import ReportCache
from engine.protocol.events import (
    BlockPlace,
    BlocksReported,
    CacheReported,
    CacheState,
    Finished,
    ModelLoaded,
    SnapshotSaved,
    StatisticsChanged,
)
from engine.runtime import Runtime
from tests.end_to_end.conftest import Ember, long_message
from tests.end_to_end.test_restart import stored_files
from tests.end_to_end.test_window import WAIT_MS, Program
from ui import numbers

pytestmark = pytest.mark.timeout(400)
NUM_SENTENCES = 6  # some whole blocks, and a last one that is not full


def runtime_of(program: Program) -> Runtime:
    """Of the engine's thread, while it waits for commands."""
    frame = sys._current_frames()[program.engine._thread.ident or 0]
    while frame is not None:
        if isinstance(found := frame.f_locals.get("runtime"), Runtime):
            return found
        frame = frame.f_back
    raise AssertionError("no model was ever loaded")


def tensors_of(resident: Resident) -> Iterator[tuple[int, int]]:
    """(identity, bytes) of what holds a chat's cached tokens: views of the filled part, and whole blocks."""
    if resident.working is not None:
        rows = resident.working.length - resident.working.hot_start
        for tensor in resident.working.arena.groups:
            yield id(tensor), tensor[:, :rows].nbytes
    for block in resident.blocks:
        for tensor in block.tensors:
            yield id(tensor), tensor.nbytes


def plain(text: str) -> str:
    """With spaces that may break."""
    return text.replace("\u00a0", " ")


@pytest.fixture
def program(qtbot: QtBot, data_dir: Path, default_model: Path) -> Iterator[Program]:
    paths = DataPaths(data_dir)
    data_dir.mkdir(parents=True, exist_ok=True)
    save_settings(paths.settings, Settings(language="en", theme="light", temperature=0.0, max_new_tokens=8))
    program = Program(qtbot, paths)
    program.wait(ModelLoaded)
    yield program
    program.close()


def test_all_gauges_are_true(qtbot: QtBot, program: Program, data_dir: Path) -> None:
    window = program.window
    panel = window.memory
    panel.open()
    chats: list[str] = []
    for number, words in enumerate(("", " And the tide?")):
        window.controller.open(None)
        program.send(long_message(NUM_SENTENCES) + words)
        program.wait(SnapshotSaved, number + 1)
        chats.append(window.controller.current or "")
    num_reports = sum(isinstance(event, CacheReported) for event in program.events)
    program.engine.submit(ReportCache("now"))
    program.wait(CacheReported, num_reports + 1)
    num_blocks = sum(isinstance(event, BlocksReported) for event in program.events)
    program.wait(BlocksReported, num_blocks + 1)  # the panel asks by itself: something may have changed
    qtbot.waitUntil(lambda: not panel._draw_timer.isActive() and not window.meter._timer.isActive(), timeout=WAIT_MS)
    finished = [event for event in program.events if isinstance(event, Finished)][-1]
    statistics = [event for event in program.events if isinstance(event, StatisticsChanged)][-1]
    blocks = [event for event in program.events if isinstance(event, BlocksReported)][-1]
    report = [event for event in program.events if isinstance(event, CacheReported)][-1]
    meter, page = window.meter, panel.page
    assert page is not None

    # the strip and the events
    cache = finished.statistics.cache
    assert meter.cache.value.text() == numbers.size(cache.bytes)
    assert meter.context.value.text() == f"{numbers.count(cache.tokens)} / {numbers.count(statistics.context_length)}"
    assert meter.speed.value.text() == numbers.speed(finished.statistics.decode_tps)
    assert numbers.count(finished.statistics.reused_tokens) in meter.context.toolTip()
    memory = psutil.virtual_memory()
    reading = meter.reading.memory
    assert reading is not None
    assert reading.host_total_bytes == memory.total
    assert reading.host_free_bytes == pytest.approx(memory.available, rel=0.25)  # other programs live
    assert reading.process_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)

    # the panel and the events, the tensors
    caches = runtime_of(program)._caches
    assert caches is not None
    residents = {one.conversation_id: one for one in caches.residents}
    unique: dict[int, int] = {}
    told = {row.conversation_id: row for row in report.conversations}
    for row in blocks.conversations:
        chat = told[row.conversation_id]
        assert chat.state is CacheState.WARM
        assert (row.tokens, row.held_bytes) == (chat.tokens, chat.memory_bytes)
        tensors = dict(tensors_of(residents[row.conversation_id]))
        unique |= tensors
        in_runs = sum(run.bytes for run in row.runs if run.place is not BlockPlace.DISK)
        assert in_runs == pytest.approx(sum(tensors.values()), rel=0.01)
        shown = plain(page.rows[row.conversation_id].detail.text())
        assert f"{numbers.count(row.tokens)} tokens · {numbers.size(row.held_bytes)} · 16 bit · in memory" == shown
        assert page.rows[row.conversation_id].map.num_cells == -(-row.tokens // 32)
    assert {row.conversation_id for row in blocks.conversations} == set(chats)
    waste = sum(chat.waste_bytes for chat in told.values())
    assert blocks.memory_bytes == report.memory_bytes
    assert blocks.memory_bytes - blocks.spare_bytes - waste == pytest.approx(sum(unique.values()), rel=0.01)
    assert sum(page.budget.bytes_of_kinds().values()) == blocks.memory_bytes - blocks.spare_bytes

    # the disk: files, the command line, the panel
    on_disk = sum(file.stat().st_size for file in stored_files(data_dir))
    listed = Ember(data_dir).json("cache")
    assert blocks.disk_bytes == on_disk == listed["disk_bytes"]
    assert {row["id"]: row["tokens"] for row in listed["conversations"]} == {one: told[one].tokens for one in chats}
    assert plain(page.disk_card.figure.text()) == f"{numbers.size(on_disk)} of {numbers.size(blocks.disk_cap_bytes)}"

    # put away: the same, from disk
    page.rows[chats[0]].free_button.click()
    qtbot.waitUntil(lambda: "on disk" in plain(page.rows[chats[0]].detail.text()), timeout=WAIT_MS)
    assert {run.place for run in page.rows[chats[0]].map.runs} == {BlockPlace.DISK}
    panel.close()
