"""The one style sheet, generated from the tokens. Widgets are told apart by object name and by the property `kind`."""

from __future__ import annotations

from string import Template

from app.paths import resources_dir
from ui.tokens import RADIUS_CARD, RADIUS_COMPOSER, RADIUS_CONTROL, SECONDARY_PX, SMALL_PX, TEXT_PX, TITLE_PX, Tokens

_SHEET = Template("""
* { outline: none; }
QMainWindow, QDialog, QWidget#page, QWidget#memoryPage, QWidget#transcriptContent { background: $window; }
QToolTip { background: $surface; color: $text; border: 1px solid $line; padding: 4px 8px; font-size: ${secondary}px; }

QWidget#sidebar { background: $sidebar; border-right: 1px solid $line; }
QWidget#header { background: $window; border-bottom: 1px solid $line; }
QGroupBox#meterCell { background: transparent; border: none; margin: 0px; padding: 0px; }
QFrame[kind="divider"] { background: $line; border: none; max-width: 1px; min-width: 1px; }

QFrame[kind="rule"] { background: $line; border: none; max-height: 1px; min-height: 1px; }

QLabel { background: transparent; color: $text; }
QLabel[kind="muted"] { color: $muted; font-size: ${secondary}px; }
QLabel[kind="line"] { color: $text; font-size: ${secondary}px; }
QLabel[kind="value"] { color: $text; font-size: ${secondary}px; font-weight: 600; }
QLabel[kind="title"] { color: $text; font-size: ${title}px; font-weight: 600; }
QLabel[kind="strong"] { color: $text; font-weight: 600; }
QLabel[kind="greeting"] { color: $text; font-size: 20px; font-weight: 600; }
QLabel[kind="key"] { color: $muted; font-size: ${small}px; border: 1px solid $line; border-radius: 4px;
    padding: 0px 5px; background: $window; }
QLabel[kind="notice"] { color: $text; }

QScrollArea, QAbstractScrollArea { background: transparent; border: none; }
QTextBrowser, QTextEdit, QPlainTextEdit, QListView { background: transparent; border: none; color: $text;
    selection-background-color: $selection_text_behind; selection-color: $text; placeholder-text-color: $muted; }

QLineEdit { background: $surface; color: $text; border: 1px solid $line; border-radius: ${control}px;
    padding: 0px 10px; placeholder-text-color: $muted;
    selection-background-color: $selection_text_behind; selection-color: $text; }
QLineEdit:focus { border: 2px solid $accent; padding: 0px 9px; }

QPushButton { background: $surface; color: $text; border: 1px solid $line; border-radius: ${control}px;
    padding: 6px 12px; }
QPushButton:hover { background: $selection; }
QPushButton:focus { border: 2px solid $accent; padding: 5px 11px; }
QPushButton:disabled { color: $muted; }
QPushButton[kind="accent"] { background: $accent; color: $on_accent; border: 2px solid $accent; font-weight: 600;
    padding: 6px 14px; }
QPushButton[kind="accent"]:hover { background: $accent_hover; border-color: $accent_hover; }
QPushButton[kind="accent"]:focus { border: 4px double $on_accent; padding: 4px 12px; }
QPushButton[kind="accent"]:disabled { background: $line; border-color: $line; color: $muted_strong; }
QPushButton[kind="flat"] { background: transparent; color: $muted; border: 1px solid transparent; border-radius: 4px;
    padding: 1px 5px; font-size: ${secondary}px; }
QPushButton[kind="flat"]:hover { color: $text; background: $hover; }
QPushButton[kind="flat"]:checked { color: $text; background: $hover; }
QPushButton[kind="flat"]:focus { border: 2px solid $accent; padding: 0px 4px; color: $text; }
QPushButton[kind="action"] { background: transparent; color: $accent; border: 1px solid transparent; border-radius: 4px;
    padding: 1px 5px; font-size: ${secondary}px; }
QPushButton[kind="action"]:hover { background: $hover; }
QPushButton[kind="action"]:focus { border: 2px solid $accent; padding: 0px 4px; }
QPushButton[kind="action"]:disabled { color: $muted; }
QFrame[kind="card"] { background: $surface; border: 1px solid $line; border-radius: ${card}px; }
QPushButton[kind="link"] { background: transparent; color: $muted; border: 1px solid transparent; border-radius: 4px;
    padding: 1px 0px; font-size: ${secondary}px; }
QPushButton[kind="link"]:hover { color: $text; }
QPushButton[kind="link"]:focus { border: 1px solid $accent; color: $text; }
QPushButton[kind="pill"] { background: transparent; color: $muted; border: 1px solid $line; border-radius: 13px;
    min-height: 24px; max-height: 24px; padding: 0px 11px; font-size: ${secondary}px; }
QPushButton[kind="pill"]:hover { color: $text; background: $hover; }
QPushButton[kind="pill"]:focus { border: 2px solid $accent; min-height: 22px; max-height: 22px;
    padding: 0px 10px; }
QPushButton[kind="pill"]::menu-indicator { image: none; width: 0px; }
QPushButton[kind="menu"]::menu-indicator { image: none; width: 0px; }
QPushButton[kind="jump"] { background: $surface; color: $text; border: 1px solid $line; border-radius: 15px;
    min-height: 28px; max-height: 28px; padding: 0px 14px; font-size: ${secondary}px; }
QPushButton[kind="jump"]:hover { background: $selection; }
QPushButton[kind="jump"]:focus { border: 2px solid $accent; min-height: 26px; max-height: 26px;
    padding: 0px 13px; }
QPushButton[kind="suggestion"] { text-align: left; padding: 10px 14px; border-radius: 12px; }
QPushButton[kind="suggestion"]:focus { padding: 9px 13px; }

QPushButton[kind="new"] { text-align: left; padding: 0px 8px; font-weight: 500; }
QPushButton[kind="new"]:focus { padding: 0px 7px; }

QRadioButton, QCheckBox { color: $text; spacing: 8px; padding: 1px 2px 1px 1px; background: transparent;
    border: 2px solid transparent; border-radius: 6px; }
QRadioButton:disabled, QCheckBox:disabled { color: $muted; }
QRadioButton::indicator, QCheckBox::indicator { width: 14px; height: 14px; border: 1px solid $muted;
    background: $surface; }
QRadioButton::indicator { border-radius: 8px; }
QCheckBox::indicator { border-radius: 4px; }
QRadioButton::indicator:checked { width: 6px; height: 6px; border: 5px solid $accent; background: $surface; }
QCheckBox::indicator:checked { border: 1px solid $accent; background: $accent; image: url("$check"); }
QRadioButton:focus, QCheckBox:focus { border-color: $accent; }

QFrame#composerCard { background: $surface; border: 1px solid $line; border-radius: ${composer}px; }
QFrame#composerCard[active="true"] { border: 1px solid $focus_line; }
QFrame#composerCard[drop="true"] { border: 2px dashed $accent; }
QFrame[kind="chip"] { background: $code; border: 1px solid $line; border-radius: ${control}px; }
QFrame[kind="chip"] QLabel { font-size: ${secondary}px; }
QPushButton[kind="attach"] { background: transparent; color: $muted; padding: 6px 11px; }
QPushButton[kind="attach"]:hover { color: $text; background: $hover; }
QLabel[loud="true"] { background: $accent_behind; border-radius: 6px; color: $text; }
QFrame#editorCard { background: $surface; border: 1px solid $focus_line; border-radius: ${card}px; }
QPushButton[kind="file"] { background: $surface; color: $text; border: 1px solid $line; border-radius: ${control}px;
    padding: 0px 8px; font-size: ${secondary}px; text-align: left; }
QPushButton[kind="file"]:hover { background: $selection; }
QPushButton[kind="file"]:focus { border: 1px solid $accent; }
QPlainTextEdit#attachmentText { background: $code; border: 1px solid $line; border-radius: ${control}px; padding: 8px; }
QFrame#codeCard { background: $code; border: 1px solid $line; border-radius: 8px; }
QFrame#codeHead { background: transparent; border: none; border-bottom: 1px solid $line; }
QFrame#notice { background: $code; border: 1px solid $line; border-left: 3px solid $accent; border-radius: 8px; }
QFrame#undoBar { background: $surface; border: 1px solid $line; border-radius: ${control}px; }

QComboBox, QAbstractSpinBox { background: $surface; color: $text; border: 1px solid $line;
    border-radius: ${control}px; padding: 3px 8px; min-height: 22px;
    selection-background-color: $selection_text_behind; selection-color: $text; }
QComboBox { padding-left: 10px; combobox-popup: 0; }
QComboBox:focus, QAbstractSpinBox:focus { border: 2px solid $accent; padding: 2px 7px; }
QComboBox:focus { padding-left: 9px; }
QComboBox:disabled, QAbstractSpinBox:disabled { color: $muted; background: $window; }
QComboBox::drop-down { border: none; width: 22px; }
QComboBox::down-arrow { image: url("$arrow_down"); width: 14px; height: 14px; }
QHeaderView::section { background: $surface; color: $text; border: none; border-bottom: 1px solid $line;
    padding: 4px 8px; }
QTreeView { background: $surface; color: $text; border: 1px solid $line; }
QComboBox QAbstractItemView { background: $surface; color: $text; border: 1px solid $line;
    selection-background-color: $selection; selection-color: $text; padding: 4px; }
QAbstractSpinBox::up-button, QAbstractSpinBox::down-button { border: none; background: transparent; width: 20px;
    subcontrol-origin: border; margin-right: 3px; }
QAbstractSpinBox::up-button { subcontrol-position: top right; margin-top: 2px; }
QAbstractSpinBox::down-button { subcontrol-position: bottom right; margin-bottom: 2px; }
QAbstractSpinBox::up-arrow { image: url("$arrow_up"); width: 12px; height: 12px; }
QAbstractSpinBox::down-arrow { image: url("$arrow_down"); width: 12px; height: 12px; }
QSlider::groove:horizontal { height: 4px; border-radius: 2px; background: $line; }
QSlider::sub-page:horizontal { height: 4px; border-radius: 2px; background: $accent; }
QSlider::handle:horizontal { width: 14px; height: 14px; margin: -6px 0px; border-radius: 8px; background: $surface;
    border: 1px solid $muted; }
QSlider::sub-page:horizontal:disabled { background: $muted; }
QPlainTextEdit[kind="field"] { background: $surface; border: 1px solid $line; border-radius: ${control}px;
    padding: 4px 6px; }
QPlainTextEdit[kind="field"]:focus { border: 2px solid $accent; padding: 3px 5px; }
QScrollArea[kind="pane"] { border: 2px solid transparent; border-radius: ${control}px; }
QScrollArea[kind="pane"]:focus { border-color: $accent; }
QListWidget#settingsGroups { border: 2px solid transparent; border-radius: ${control}px; }
QListWidget#settingsGroups:focus { border: 2px solid $accent; }
QListWidget#settingsGroups::item { padding: 7px 10px; border-radius: 6px; color: $text; }
QListWidget#settingsGroups::item:hover { background: $hover; }
QListWidget#settingsGroups::item:selected { background: $selection; color: $text; }
QWidget#settingsContent { background: transparent; }

QMenu { background: $surface; color: $text; border: 1px solid $line; border-radius: ${control}px; padding: 4px; }
QMenu::item { padding: 6px 28px 6px 12px; border-radius: 4px; background: transparent; }
QMenu::item:selected { background: $selection; color: $text; }
QMenu::item:disabled { color: $muted; }
QMenu::separator { height: 1px; background: $line; margin: 4px 8px; }
QMenu::indicator { width: 12px; height: 12px; margin-left: 8px; }
QMenu::indicator:exclusive:checked { background: $accent; border-radius: 4px; width: 8px; height: 8px;
    margin-left: 10px; }

QScrollBar:vertical { background: transparent; width: 10px; margin: 0px; }
QScrollBar::handle:vertical { background: $thumb; border-radius: 3px; min-height: 28px; margin: 2px; }
QScrollBar:horizontal { background: transparent; height: 10px; margin: 0px; }
QScrollBar::handle:horizontal { background: $thumb; border-radius: 3px; min-width: 28px; margin: 2px; }
QScrollBar::handle:hover { background: $muted; }
QScrollBar::add-line, QScrollBar::sub-line { width: 0px; height: 0px; }
QScrollBar::add-page, QScrollBar::sub-page { background: transparent; }
""")


def style_sheet(tokens: Tokens) -> str:
    """The application's style sheet for one theme."""
    return _SHEET.substitute(
        window=tokens.window,
        surface=tokens.surface,
        sidebar=tokens.sidebar,
        line=tokens.line,
        selection=tokens.selection,
        code=tokens.code,
        text=tokens.text,
        muted=tokens.muted,
        muted_strong=tokens.text if not tokens.is_dark else tokens.muted,
        accent=tokens.accent,
        accent_hover=tokens.accent_hover,
        accent_behind=tokens.accent_behind,
        on_accent=tokens.on_accent,
        hover=tokens.selection,
        thumb=tokens.line,
        focus_line=_mix(tokens.line, tokens.accent, 0.55),
        selection_text_behind=_mix(tokens.accent_behind, tokens.accent, 0.18),
        check=_themed_icon("check", tokens),
        arrow_down=_themed_icon("arrow_down", tokens),
        arrow_up=_themed_icon("arrow_up", tokens),
        control=RADIUS_CONTROL,
        composer=RADIUS_COMPOSER,
        card=RADIUS_CARD,
        title=TITLE_PX,
        text_px=TEXT_PX,
        secondary=SECONDARY_PX,
        small=SMALL_PX,
    )


def _themed_icon(name: str, tokens: Tokens) -> str:
    return (resources_dir() / "icons" / f"{name}_{'dark' if tokens.is_dark else 'light'}.svg").as_posix()


def _mix(first: str, second: str, share: float) -> str:
    pairs = [(int(first[i : i + 2], 16), int(second[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)
