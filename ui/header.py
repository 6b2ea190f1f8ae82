"""The line above the transcript: the title, the model with its menu, and the menu of everything else."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QEvent, QSize, Qt, Signal, Slot
from PySide6.QtGui import QFontMetrics, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QMenu, QPushButton, QSizePolicy, QWidget

from app.model_library import ModelLibrary
from app.settings import Settings
from engine.protocol.config import Weights
from engine.protocol.events import ModelInfo
from ui import numbers
from ui.choice_menu import add_choices
from ui.icons import icon
from ui.memory.precision_words import precision_words
from ui.more_menu import MoreMenu
from ui.theme import Theme

_HEIGHT = 52
_FOUR_BIT_CODECS = {"compact", "bnb-nf4"}


class Header(QWidget):
    model_chosen = Signal(str)
    weights_chosen = Signal(str)
    theme_chosen = Signal(str)
    language_chosen = Signal(str)
    send_key_chosen = Signal(str)
    new_incognito_requested = Signal()
    import_requested = Signal()
    export_requested = Signal(str)  # the chat shown, as "markdown", "html" or "json"
    export_all_requested = Signal()
    chat_settings_requested = Signal()
    settings_requested = Signal()
    shortcuts_requested = Signal()
    memory_requested = Signal()
    lab_requested = Signal()
    quit_requested = Signal()
    pin_requested = Signal(bool)
    rename_requested = Signal()
    duplicate_requested = Signal()
    delete_requested = Signal()
    compress_requested = Signal()
    undo_compression_requested = Signal()

    def __init__(self, theme: Theme, library: ModelLibrary, settings: Settings, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("header")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFixedHeight(_HEIGHT)
        self._theme = theme
        self._library = library
        self._settings = settings
        self._model: ModelInfo | None = None
        self._is_loading = True
        self._has_conversation = False
        self._is_incognito = False
        self._refused_codecs: tuple[str, ...] = ()
        self.title = ElidedLabel()
        self.title.setProperty("kind", "title")
        self.model_button = _pill()
        self.more_button = _pill()
        self.model_menu = QMenu(self)
        self.more_menu = MoreMenu(settings, self)
        for menu in (self.model_menu, self.more_menu):
            menu.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # not the button's, whose icon stands behind
        self.model_button.setMenu(self.model_menu)
        self.more_button.setMenu(self.more_menu)
        self.model_menu.aboutToShow.connect(self._on_model_menu_about_to_show)
        self._pass_on_signals()
        row = QHBoxLayout(self)
        row.setContentsMargins(24, 0, 24, 1)
        row.setSpacing(10)
        row.addWidget(self.title, 1)
        row.addWidget(self.model_button)
        row.addWidget(self.more_button)
        theme.changed.connect(self._on_theme_changed)
        self._on_theme_changed()
        self._retranslate()

    def show_conversation(self, title: str | None, *, is_incognito: bool = False) -> None:
        """None: a new chat that is not stored yet."""
        self._has_conversation = title is not None
        self._is_incognito = is_incognito
        self.more_menu.show_conversation(self._has_conversation)
        new_chat = self.tr("New incognito chat") if is_incognito else self.tr("New chat")
        mark = f" · {self.tr('Incognito')}" if title and is_incognito else ""
        self.title.set_full_text(f"{title}{mark}" if title else new_chat)

    def show_pinned(self, is_pinned: bool) -> None:
        self.more_menu.show_pinned(is_pinned)

    def show_compression(self, can_compress: bool, can_undo: bool) -> None:
        """What can be done to the memory of the conversation that is shown."""
        self.more_menu.show_compression(self._has_conversation and can_compress, self._has_conversation and can_undo)

    def show_refused_codecs(self, refused: tuple[str, ...]) -> None:
        """Ways to keep caches small that this model does not bear."""
        self._refused_codecs = refused
        self._retranslate()

    def show_model(self, model: ModelInfo | None, is_loading: bool) -> None:
        self._model = model
        self._is_loading = is_loading
        if is_loading:
            self._refused_codecs = ()
        self._retranslate()

    def show_settings(self, settings: Settings) -> None:
        self._settings = settings
        self.more_menu.show_settings(settings)

    @Slot()
    def open_model_menu(self) -> None:
        """By a key."""
        _open_below(self.model_button, self.model_menu)

    @Slot()
    def open_more_menu(self) -> None:
        _open_below(self.more_button, self.more_menu)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
            if not self._has_conversation:
                self.show_conversation(None, is_incognito=self._is_incognito)
        super().changeEvent(event)

    @Slot()
    def _on_model_menu_about_to_show(self) -> None:
        menu = self.model_menu
        menu.clear()
        menu.addAction(self.tr("Model")).setEnabled(False)
        entries = self._library.models()
        names = {entry.name: f"{entry.name}   {numbers.size(entry.size_bytes)}" for entry in entries}
        shown = self._model.path if self._model else Path(self._settings.model)
        chosen = next((entry.name for entry in entries if entry.path == shown), "")
        add_choices(menu, names, chosen, self.model_chosen.emit)
        if not entries:
            menu.addAction(self.tr("No models are installed")).setEnabled(False)
        menu.addSeparator()
        menu.addAction(self.tr("Weights")).setEnabled(False)
        add_choices(menu, self._weights_choices(shown), self._settings.weights, self.weights_chosen.emit)
        if words := self._refused_words():
            menu.addSeparator()
            menu.addAction(words.replace("&", "&&")).setEnabled(False)

    @Slot()
    def _on_theme_changed(self) -> None:
        self.model_button.setIcon(icon("chevron_down", self._theme.tokens.muted, 12))
        self.more_button.setIcon(icon("more", self._theme.tokens.muted))

    def _pass_on_signals(self) -> None:
        menu = self.more_menu
        for asked, told in (
            (menu.theme_chosen, self.theme_chosen),
            (menu.language_chosen, self.language_chosen),
            (menu.send_key_chosen, self.send_key_chosen),
            (menu.new_incognito_requested, self.new_incognito_requested),
            (menu.import_requested, self.import_requested),
            (menu.export_requested, self.export_requested),
            (menu.export_all_requested, self.export_all_requested),
            (menu.chat_settings_requested, self.chat_settings_requested),
            (menu.settings_requested, self.settings_requested),
            (menu.shortcuts_requested, self.shortcuts_requested),
            (menu.memory_requested, self.memory_requested),
            (menu.lab_requested, self.lab_requested),
            (menu.quit_requested, self.quit_requested),
            (menu.pin_requested, self.pin_requested),
            (menu.rename_requested, self.rename_requested),
            (menu.duplicate_requested, self.duplicate_requested),
            (menu.delete_requested, self.delete_requested),
            (menu.compress_requested, self.compress_requested),
            (menu.undo_compression_requested, self.undo_compression_requested),
        ):
            asked.connect(told)

    def _weights_words(self) -> dict[str, str]:
        return {
            Weights.BITS_16: self.tr("16-bit"),
            Weights.BITS_8: self.tr("8-bit"),
            Weights.BITS_4: self.tr("4-bit"),
        }

    def _weights_choices(self, model: Path) -> dict[str, str]:
        """The words, with what each took when this model was last loaded so."""
        choices, loads = self._weights_words(), self._library.loads(model)
        for weights, load in loads.items():
            choices[weights] = self.tr("{weights}   {size}, loaded in {seconds}").format(
                weights=choices[weights],
                size=numbers.size(load.weights_bytes),
                seconds=numbers.seconds(load.load_s),
            )
        return choices

    def _retranslate(self) -> None:
        if self._model is not None and not self._is_loading:
            words = f"{_short_name(self._model.name)} · {self._weights_words()[self._model.weights]}"
            self.model_button.setToolTip(self._model_tooltip(self._model))
        else:
            words = self.tr("Loading model") if self._is_loading else self.tr("Choose a model")
            self.model_button.setToolTip("")
        self.model_button.setText(words)
        self.model_button.setAccessibleName(self.tr("Model: {name}").format(name=words))
        self.more_button.setAccessibleName(self.tr("More"))
        self.more_button.setToolTip(self.tr("This chat, settings, keyboard shortcuts"))

    def _refused_words(self) -> str:
        if not self._refused_codecs:
            return ""
        if set(self._refused_codecs) <= _FOUR_BIT_CODECS:
            return self.tr("4-bit caches are not used with this model: they changed its answers too much")
        names = "; ".join(precision_words(codec) for codec in self._refused_codecs)
        return self.tr("Not used for this model's caches, since they changed its answers too much: {names}").format(
            names=names
        )

    def _model_tooltip(self, model: ModelInfo) -> str:
        lines = [
            model.name,
            self.tr("Weights {size}, {dtype}, on {device}").format(
                size=numbers.size(model.weights_bytes), dtype=model.dtype, device=model.device
            ),
            self.tr("Context {tokens} tokens, {size} of KV cache a token").format(
                tokens=numbers.count(model.context_length), size=numbers.size(model.kv_bytes_per_token)
            ),
        ]
        lines.extend(model.notes)
        if words := self._refused_words():
            lines.append(words)
        if model.cannot_resume_reason:
            lines.append(self.tr("Chats cannot be resumed: {reason}").format(reason=model.cannot_resume_reason))
        return "\n".join(lines)


class ElidedLabel(QLabel):
    """One line that ends in "…" where there is no room; the whole text is its tooltip then."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._full_text = ""
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    @property
    def full_text(self) -> str:
        return self._full_text

    def set_full_text(self, text: str) -> None:
        self._full_text = text
        self.setAccessibleName(text)
        self._elide()

    def minimumSizeHint(self) -> QSize:
        return QSize(20, super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._elide()

    def _elide(self) -> None:
        self.ensurePolished()
        shown = QFontMetrics(self.font()).elidedText(self._full_text, Qt.TextElideMode.ElideRight, self.width())
        self.setText(shown)
        self.setToolTip(self._full_text if shown != self._full_text else "")


def _pill() -> QPushButton:
    button = QPushButton()
    button.setProperty("kind", "pill")
    button.setLayoutDirection(Qt.LayoutDirection.RightToLeft)  # the icon stands behind the words
    return button


def _open_below(button: QPushButton, menu: QMenu) -> None:
    """As a click does, with an entry chosen to go on from with the arrow keys."""
    menu.popup(button.mapToGlobal(button.rect().bottomLeft()))
    enabled = [action for action in menu.actions() if action.isEnabled() and not action.isSeparator()]
    if enabled:
        menu.setActiveAction(enabled[0])


def _short_name(name: str) -> str:
    return name.removesuffix("-Instruct")
