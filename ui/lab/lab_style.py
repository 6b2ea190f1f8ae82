"""The lab's own part of the style sheet, from the theme's tokens."""

from __future__ import annotations

from string import Template

from ui.tokens import RADIUS_CONTROL, SECONDARY_PX, Tokens

_SHEET = Template("""
QWidget#cacheLab { background: $window; }
QWidget#labSide { background: $sidebar; border-right: 1px solid $line; }
QWidget#labPage { background: transparent; }
QListWidget#labList { border: none; background: transparent; outline: none; }
QListWidget#labList::item { padding: 8px; border: 2px solid transparent; border-radius: ${control}px; color: $text; }
QListWidget#labList::item:hover { background: $selection; }
QListWidget#labList::item:selected { background: $selection; color: $text; }
QListWidget#labList[isByKey="true"]::item:focus { border-color: $accent; }
QLabel#labWords { color: $muted; }
QLabel#labCommand { color: $muted; font-size: ${secondary}px; }
QProgressBar { background: $line; border: none; border-radius: 3px; max-height: 6px; min-height: 6px; }
QProgressBar::chunk { background: $accent; border-radius: 3px; }
QTableWidget#labTable { background: transparent; border: 2px solid transparent; border-radius: ${control}px;
    color: $text; selection-background-color: $selection; selection-color: $text; }
QTableWidget#labTable:focus { border-color: $accent; }
QTableWidget#labTable::item { border-bottom: 1px solid $line; padding: 0px 8px; }
QTableWidget#labTable::item:selected { background: $selection; color: $text; }
QTableWidget#labTable QHeaderView { background: transparent; border: none; }
QTableWidget#labTable QHeaderView::section { background: transparent; color: $muted; border: none;
    border-bottom: 1px solid $line; padding: 0px 11px; font-size: ${secondary}px; font-weight: 600; }
QLineEdit:disabled { color: $muted; background: $window; }
""")


def lab_style(tokens: Tokens) -> str:
    return _SHEET.substitute(
        window=tokens.window,
        sidebar=tokens.sidebar,
        line=tokens.line,
        selection=tokens.selection,
        text=tokens.text,
        muted=tokens.muted,
        accent=tokens.accent,
        control=RADIUS_CONTROL,
        secondary=SECONDARY_PX,
    )
