"""Which theme is shown: tokens -> palette, fonts and style sheet. Follows the system when the mode is "system"."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from PySide6.QtCore import QObject, Qt, Signal, Slot
from PySide6.QtGui import QColor, QFont, QFontDatabase, QFontInfo, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

from ui.style_sheet import style_sheet
from ui.tokens import TEXT_PX, Tokens, load_tokens

_HANGUL_FAMILIES = ["Noto Sans CJK KR", "Noto Sans KR", "Apple SD Gothic Neo", "Malgun Gothic", "NanumGothic"]
_BETTER_THAN_DEJAVU = ["Inter", "Noto Sans", "Cantarell", "Ubuntu", "Open Sans"]
_MONO_FAMILIES = ["JetBrains Mono", "SF Mono", "Menlo", "Cascadia Mono", "Consolas", "DejaVu Sans Mono", "monospace"]


class Theme(QObject):
    """Owns the tokens in use; custom painted widgets read `tokens` when they paint."""

    changed = Signal()

    def __init__(self, themes_dir: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._all = {name: load_tokens(themes_dir, name) for name in ("light", "dark")}
        self._mode = "system"
        self._tokens = self._all["light"]
        self._is_applied = False
        QGuiApplication.styleHints().colorSchemeChanged.connect(self._on_color_scheme_changed)

    @property
    def tokens(self) -> Tokens:
        return self._tokens

    @property
    def mode(self) -> str:
        return self._mode

    def color(self, name: str) -> QColor:
        return QColor(getattr(self._tokens, name))

    def set_mode(self, mode: str) -> None:
        """Show "light", "dark" or what the "system" says, in the whole application."""
        self._mode = mode
        tokens = self._all[self._wanted()]
        if tokens is self._tokens and self._is_applied:
            return
        self._tokens = tokens
        self._is_applied = True
        self._apply()
        self.changed.emit()

    @Slot(Qt.ColorScheme)
    def _on_color_scheme_changed(self, _scheme: Qt.ColorScheme) -> None:
        if self._mode == "system" and self._is_applied:
            self.set_mode("system")

    def _wanted(self) -> str:
        if self._mode in self._all:
            return self._mode
        return "dark" if is_system_dark() else "light"

    def _apply(self) -> None:
        application = QApplication.instance()
        assert isinstance(application, QApplication)
        if application.style().objectName() != "fusion":
            application.setStyle("Fusion")
        application.setFont(ui_font())
        application.setPalette(_palette(self._tokens))
        application.setStyleSheet(style_sheet(self._tokens))


def is_system_dark() -> bool:
    return QGuiApplication.styleHints().colorScheme() == Qt.ColorScheme.Dark


def ui_font(pixels: int = TEXT_PX, weight: QFont.Weight = QFont.Weight.Normal) -> QFont:
    """The system's font at `pixels`, with a Hangul font beside it and figures of equal width."""
    font = QFont()
    font.setFamilies(_families())
    font.setPixelSize(pixels)
    font.setWeight(weight)
    font.setFeature(QFont.Tag("tnum"), 1)
    return font


@lru_cache(maxsize=1)
def _families() -> list[str]:
    """The system's family first. DejaVu is what fontconfig falls back to where no desktop has chosen a font."""
    family = QFontInfo(QFontDatabase.systemFont(QFontDatabase.SystemFont.GeneralFont)).family()
    installed = set(QFontDatabase.families())
    better = [name for name in _BETTER_THAN_DEJAVU if name in installed] if family.startswith("DejaVu") else []
    hangul = [name for name in _HANGUL_FAMILIES if name in installed and name != family]
    return [*better[:1], family, *hangul]


def mono_font(pixels: int) -> QFont:
    """The code font; Hangul comes from a mono font where there is one."""
    font = QFont()
    font.setFamilies([*_MONO_FAMILIES, "NanumGothicCoding", *_HANGUL_FAMILIES])
    font.setStyleHint(QFont.StyleHint.Monospace)
    font.setPixelSize(pixels)
    return font


def _palette(tokens: Tokens) -> QPalette:
    palette = QPalette()
    roles = {
        QPalette.ColorRole.Window: tokens.window,
        QPalette.ColorRole.WindowText: tokens.text,
        QPalette.ColorRole.Base: tokens.surface,
        QPalette.ColorRole.AlternateBase: tokens.sidebar,
        QPalette.ColorRole.Text: tokens.text,
        QPalette.ColorRole.Button: tokens.surface,
        QPalette.ColorRole.ButtonText: tokens.text,
        QPalette.ColorRole.ToolTipBase: tokens.surface,
        QPalette.ColorRole.ToolTipText: tokens.text,
        QPalette.ColorRole.PlaceholderText: tokens.muted,
        QPalette.ColorRole.Link: tokens.accent,
        QPalette.ColorRole.LinkVisited: tokens.accent,
        QPalette.ColorRole.Highlight: tokens.accent,
        QPalette.ColorRole.HighlightedText: tokens.on_accent,
        QPalette.ColorRole.Accent: tokens.accent,
    }
    for role, colour in roles.items():
        palette.setColor(role, QColor(colour))
    for role in (QPalette.ColorRole.Text, QPalette.ColorRole.WindowText, QPalette.ColorRole.ButtonText):
        palette.setColor(QPalette.ColorGroup.Disabled, role, QColor(tokens.muted))
    return palette
