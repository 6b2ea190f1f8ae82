"""A cell a block: its colour and pattern, its words, and only what is seen is painted."""

from __future__ import annotations

import dataclasses
import html
import time

import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QImage, QPainter
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QScrollArea, QToolTip
from pytestqt.qtbot import QtBot

from engine.protocol.events import BlockPlace, BlockRun
from tests.ui.blocks import PER_TOKEN, chat, run
from ui.memory.cells import CELL, CellTiles, Look, pitch
from ui.memory.chat_row import bytes_by_kind
from ui.memory.legend import LOOKS, Legend
from ui.memory.page_map import PageMap
from ui.theme import Theme
from ui.tokens import PRECISION_FILLS, contrast

SHARED = BlockRun(14, 448, "bf16", True, BlockPlace.MEMORY, 10_000)
FULL = BlockRun(20, 630, "bf16", False, BlockPlace.MEMORY, 10_000)
INT8 = BlockRun(40, 1280, "int8", False, BlockPlace.DEVICE, 10_000)
STORED = BlockRun(5, 160, "kvzip", True, BlockPlace.DISK, 10_000)
FRAME_MS = 16.0


@pytest.fixture
def tiles(theme: Theme) -> CellTiles:
    return CellTiles(theme)


@pytest.fixture
def page_map(qtbot: QtBot, theme: Theme, tiles: CellTiles) -> PageMap:
    page_map = PageMap(theme, tiles)
    qtbot.addWidget(page_map)
    page_map.resize(6 + 10 * (CELL + 2), 50)
    page_map.show_runs((SHARED, FULL, INT8, STORED), "Harbour")
    page_map.show()
    return page_map


def place_of(index: int, columns: int = 10) -> QPoint:
    row, column = divmod(index, columns)
    return QPoint(round(3 + column * pitch(1.0)) + 4, round(3 + row * pitch(1.0)) + 4)


def test_there_is_a_cell_for_each_block_and_all_have_room(page_map: PageMap) -> None:
    assert page_map.num_cells == 14 + 20 + 40 + 5
    assert page_map.columns == 10
    assert page_map.height() == 8 * (CELL + 2) + 6
    assert [page_map.cell_at(place_of(index)) for index in (0, 9, 10, 78)] == [0, 9, 10, 78]
    assert page_map.cell_at(place_of(79)) is None
    assert page_map.cell_at(QPoint(-5, 5)) is None
    page_map.resize(6 + 20 * (CELL + 2), 50)
    assert page_map.height() == 4 * (CELL + 2) + 6


def test_what_a_cell_is_is_said(page_map: PageMap) -> None:
    assert page_map.words_of(0) == (
        "Block 1 of 79: tokens 1 to 32 · 16 bit · in memory · 714 B · shared with another chat"
    )
    assert page_map.words_of(14) == "Block 15 of 79: tokens 449 to 480 · 16 bit · in memory · 508 B"
    assert page_map.words_of(33) == "Block 34 of 79: tokens 1,057 to 1,078 · 16 bit · in memory · 349 B"
    words = "Block 35 of 79: tokens 1,079 to 1,110 · 8 bit (int8) · on the graphics card · 250 B"
    assert page_map.words_of(34) == words
    assert "compressed (KVzip) · on disk · 2 kB · shared with another chat" in page_map.words_of(78)
    page_map.show_runs((SHARED, FULL, INT8, STORED), "Harbour", "Tides")
    assert page_map.words_of(0).endswith(" · 714 B · shared with “Tides”")
    assert page_map.words_of(78).endswith(
        " · 2 kB · shared with another chat"
    )  # on disk it may be one that is not here
    said = page_map.accessibleName()
    assert said.startswith("Harbour: 79 blocks, 14 16 bit in memory (shared), 20 16 bit in memory, 40 8 bit (int8) on")


def test_the_arrow_keys_go_from_cell_to_cell(qtbot: QtBot, page_map: PageMap) -> None:
    for key, block in (
        (Qt.Key.Key_Right, 2),
        (Qt.Key.Key_Down, 12),
        (Qt.Key.Key_Left, 11),
        (Qt.Key.Key_Up, 1),
        (Qt.Key.Key_Up, 1),
        (Qt.Key.Key_Left, 1),
        (Qt.Key.Key_End, 79),
        (Qt.Key.Key_Down, 79),
        (Qt.Key.Key_Home, 1),
    ):
        qtbot.keyClick(page_map, key)
        assert page_map.accessibleDescription().startswith(f"Block {block} of 79")


def test_fewer_blocks_leave_no_cell_behind(page_map: PageMap, qtbot: QtBot) -> None:
    qtbot.keyClick(page_map, Qt.Key.Key_End)
    page_map.show_runs((SHARED,), "Harbour")
    assert page_map.accessibleDescription().startswith("Block 14 of 14")
    page_map.show_runs((), "Harbour")
    assert page_map.num_cells == 0
    assert page_map.accessibleDescription() == ""
    page_map.grab()


def tile_image(tiles: CellTiles, look: Look) -> QImage:
    return tiles.tile(look, 2.0).toImage()


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_each_precision_is_told_apart_without_its_colour(theme: Theme, tiles: CellTiles, mode: str) -> None:
    theme.set_mode(mode)
    whole, middle = {}, {}
    for look in LOOKS:
        image = tile_image(tiles, look)
        plain = theme.tokens.precision[look.kind] if look.is_hollow else PRECISION_FILLS[look.kind]
        marks = [
            [
                contrast(image.pixelColor(x, y).name(), plain) > 1.35 or image.pixelColor(x, y).alpha() < 128
                for x in range(image.width())
            ]
            for y in range(image.height())
        ]
        whole[look] = bytes(one for row in marks for one in row)
        middle[look] = bytes(one for row in marks[3:15] for one in row[3:15])  # without its edge
    assert len(set(whole.values())) == len(LOOKS)
    plain_middle = middle[Look("16bit")]
    assert not any(plain_middle)
    assert all(sum(other) > 12 for look, other in middle.items() if look.kind != "16bit")
    assert len({middle[look] for look in LOOKS if not look.is_hollow}) == 5


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_a_cell_has_the_designs_colour_and_an_edge_that_stands_out(theme: Theme, tiles: CellTiles, mode: str) -> None:
    theme.set_mode(mode)
    fills = {"16bit": "#d55e00", "int8": "#56b4e9", "balanced": "#009e73", "compact": "#cc79a7", "kvzip": "#e3c800"}
    for look in LOOKS:
        image = tile_image(tiles, look)
        colours = {
            image.pixelColor(x, y).name() for x in range(18) for y in range(18) if image.pixelColor(x, y).alpha()
        }
        assert look.is_hollow or fills[look.kind] in colours
        for x, y in ((9, 0), (9, 17), (0, 9), (17, 9)):
            edge = image.pixelColor(x, y)
            assert edge.alpha() == 255
            for ground in (theme.tokens.window, theme.tokens.surface):
                assert contrast(edge.name(), ground) >= 3.0, (look, edge.name())


def test_shared_is_outlined_in_the_colour_of_text(theme: Theme, tiles: CellTiles) -> None:
    edge = tile_image(tiles, Look("16bit", is_shared=True)).pixelColor(9, 1)
    assert edge.name() == theme.tokens.text.lower()
    middle = tile_image(tiles, Look("16bit", is_shared=True)).pixelColor(9, 9)
    assert middle.name() == PRECISION_FILLS["16bit"].lower()
    assert tile_image(tiles, Look("16bit", is_hollow=True)).pixelColor(9, 9).alpha() == 0


def test_another_theme_draws_other_tiles(theme: Theme, tiles: CellTiles) -> None:
    before = tile_image(tiles, Look("int8"))
    theme.set_mode("dark")
    assert tile_image(tiles, Look("int8")) != before


@pytest.mark.parametrize("ratio", [1.0, 1.25, 1.5, 1.75, 2.0])
def test_tiles_are_whole_pixels_at_every_scale(tiles: CellTiles, ratio: float) -> None:
    tile = tiles.tile(Look("int8"), ratio)
    assert tile.width() == pytest.approx(pitch(ratio) * ratio)
    assert tile.width() == round(11 * ratio)


def test_the_legend_names_every_look(qtbot: QtBot, theme: Theme, tiles: CellTiles) -> None:
    legend = Legend(theme, tiles)
    qtbot.addWidget(legend)
    assert len({button.text() for button in legend.buttons.values()}) == len(LOOKS) == 7
    assert len({button.topic for button in legend.buttons.values()}) == len(LOOKS)


@pytest.mark.parametrize("num_runs", [3, 100_000])
def test_a_hundred_thousand_blocks_are_painted_within_a_frame(
    qtbot: QtBot, theme: Theme, tiles: CellTiles, num_runs: int
) -> None:
    """As one sees them: the page's part of a map that is much higher. At worst no two cells are alike."""
    kinds = ["bf16", "int8", "kvzip"]
    count = 100_000 // num_runs
    runs = tuple(
        BlockRun(count, count * 32, kinds[number % 3], number % 2 == 0, BlockPlace.MEMORY, 1)
        for number in range(num_runs)
    )
    page_map = PageMap(theme, tiles)
    scroll = QScrollArea()
    qtbot.addWidget(scroll)
    scroll.setWidget(page_map)
    scroll.setWidgetResizable(True)
    scroll.resize(900, 700)
    scroll.show()
    page_map.show_runs(runs, "Large")
    qtbot.waitUntil(lambda: page_map.height() > 10_000)
    scroll.verticalScrollBar().setValue(5_000)
    image = QImage(900, 700, QImage.Format.Format_ARGB32_Premultiplied)
    times = []
    for top in range(5_000, 5_700, 100):
        painter = QPainter(image)
        painter.translate(0, -top)
        started = time.thread_time()  # other tests run on this machine too
        page_map.paint_cells(painter, QRect(0, top, 900, 700))
        times.append((time.thread_time() - started) * 1e3)
        painter.end()
    assert 4_000 < page_map.num_painted < 6_500
    print(f"\n{page_map.num_painted:,} of 100,000 cells in {num_runs:,} runs: painted in {min(times):.2f} ms")
    assert min(times) < FRAME_MS


def test_a_chats_bar_has_a_part_for_each_precision_it_is_kept_in() -> None:
    row = chat("one", run(64, shared=True), run(640, "int8"), run(128, "kvzip"), run(96), run(320, place="disk"))
    expected = {"16bit": 160, "int8": 320, "balanced": 0, "compact": 0, "kvzip": 38.4}
    assert bytes_by_kind(row) == {kind: round(tokens * PER_TOKEN) for kind, tokens in expected.items()}
    slack = dataclasses.replace(row, held_bytes=row.held_bytes + 5_000)  # of a buffer that has room for more
    assert bytes_by_kind(slack)["16bit"] == 160 * PER_TOKEN + 5_000
    assert sum(bytes_by_kind(slack).values()) == slack.held_bytes


def test_a_title_that_looks_like_html_stays_text_in_a_blocks_tooltip(page_map: PageMap) -> None:
    page_map.show_runs((SHARED, FULL), "<b>bold</b>", "<table><tr><td>other</td></tr></table>")
    page_map.setFocus()
    QTest.keyClick(page_map, Qt.Key.Key_Home)
    words = page_map.words_of(0)
    assert "<table>" in words
    assert QToolTip.text() == f'<p style="white-space: pre-wrap">{html.escape(words)}</p>'
