"""What one chat sets otherwise than the settings do: its system prompt, how its replies are drawn, its model."""

from __future__ import annotations

from dataclasses import fields

from PySide6.QtCore import QEvent, Qt, Signal, Slot
from PySide6.QtGui import QGuiApplication, QShowEvent
from PySide6.QtWidgets import (
    QDialog,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.conversation import ChatOptions, Conversation
from app.model_library import ModelLibrary
from app.presets import Preset, Presets
from app.settings import Settings
from ui.fit_screen import resize_within_screen
from ui.settings.controls import ChoiceControl
from ui.settings.dialog_notice import DialogNotice
from ui.settings.model_choices import chat_model_choices
from ui.settings.option_row import OptionRow
from ui.settings.preset_bar import PresetBar
from ui.tokens import SPACE_L, SPACE_M, SPACE_S, SPACE_XL, SPACE_XS

_SIZE = (640, 760)
_LEAST_SIZE = (600, 330)
_PROMPT_HEIGHT = 130


class ChatSettingsDialog(QDialog):
    """`conversation` is None for a chat that is not stored yet; it starts with the settings' system prompt."""

    accepted_with = Signal(str, object, object)  # system prompt, ChatOptions, model | None (as in the settings)

    def __init__(
        self,
        conversation: Conversation | None,
        presets: Presets,
        library: ModelLibrary,
        settings: Settings,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._conversation = conversation
        self._presets = presets
        self._library = library
        self._settings = settings
        self._prompt_before = conversation.system_prompt if conversation else settings.system_prompt
        self._model_before = conversation.model if conversation else None
        self.notice = DialogNotice()
        self.preset_bar = PresetBar(presets, self.notice)
        self.prompt = QPlainTextEdit()
        self.model = ChoiceControl("model", {})
        shown = {setting.name: setting for setting in fields(Settings)}
        self.options = {
            option.name: OptionRow(shown[option.name], getattr(settings, option.name), self)
            for option in fields(ChatOptions)
        }
        self._heading = _label("title")
        self._prompt_label = _label("strong")
        self._cost = _label("muted")
        self._model_label = _label()
        self._replies_label = _label("strong")
        self.save_button = QPushButton()
        self.save_button.setProperty("kind", "accent")
        self.cancel_button = QPushButton()
        self._lay_out()
        self._retranslate()
        self._show(self._prompt_before, conversation.options if conversation else ChatOptions(), self._model_before)
        self.preset_bar.chosen.connect(self._on_preset_chosen)
        self.preset_bar.save_requested.connect(self._on_save_preset_requested)
        self.prompt.textChanged.connect(self._show_what_follows)
        self.model.changed.connect(self._show_what_follows)
        for row in self.options.values():
            row.changed.connect(self._show_what_follows)
        self.save_button.clicked.connect(self._on_save_clicked)
        self.cancel_button.clicked.connect(self.reject)
        self._show_what_follows()

    @property
    def chosen_options(self) -> ChatOptions:
        return ChatOptions(**{name: row.value for name, row in self.options.items()})  # type: ignore[arg-type]

    @property
    def chosen_model(self) -> str | None:
        return self.model.value() or None

    @property
    def cost_words(self) -> str:
        return self._cost.text()

    # Qt overrides

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
            self._show_what_follows()
        super().changeEvent(event)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.prompt.setFocus(Qt.FocusReason.OtherFocusReason)

    # slots

    @Slot(object)
    def _on_preset_chosen(self, preset: Preset) -> None:
        self._show(
            self.prompt.toPlainText() if preset.system_prompt is None else preset.system_prompt,
            preset.options,
            self.chosen_model if preset.model is None else preset.model,
        )
        self._show_what_follows()

    @Slot(str)
    def _on_save_preset_requested(self, name: str) -> None:
        self._finish_typing()
        self.preset_bar.save(Preset(name, self.prompt.toPlainText(), self.chosen_options, self.chosen_model))

    @Slot()
    def _on_save_clicked(self) -> None:
        self._finish_typing()
        self.accepted_with.emit(self.prompt.toPlainText(), self.chosen_options, self.chosen_model)
        self.accept()

    @Slot()
    def _show_what_follows(self) -> None:
        """What saving this will cost, and which preset it is."""
        text = self.prompt.toPlainText()
        has_begun = self._conversation is not None and self._conversation.num_messages > 0
        if has_begun and self.chosen_model != self._model_before:
            self._cost.setText(self.tr("The model changes: the whole chat is read again with the next message."))
        elif has_begun and text != self._prompt_before:
            self._cost.setText(
                self.tr("The system prompt changes: the whole chat is read again with the next message.")
            )
        else:
            self._cost.setText(self.tr("The model reads it before everything else in this chat."))
        self.preset_bar.show_match(self._match())

    # private

    def _match(self) -> Preset | None:
        text, options, model = self.prompt.toPlainText(), self.chosen_options, self.chosen_model
        fitting = (
            preset
            for preset in self._presets.all()
            if preset.options == options and preset.system_prompt in (None, text) and preset.model in (None, model)
        )
        return next(fitting, None)

    def _show(self, prompt: str, options: ChatOptions, model: str | None) -> None:
        if prompt != self.prompt.toPlainText():
            self.prompt.setPlainText(prompt)
        for name, row in self.options.items():
            row.show_value(getattr(options, name))
        self.model.show_value(model or "")

    def _finish_typing(self) -> None:
        """A syllable that is being composed, and a number that is being typed, count as they stand."""
        if self.prompt.hasFocus():
            QGuiApplication.inputMethod().commit()
        for row in self.options.values():
            row.control.finish()

    def _retranslate(self) -> None:
        title = self._conversation.title if self._conversation else ""
        self.setWindowTitle(self.tr("Chat settings"))
        self._heading.setText(self.tr("Settings of “{title}”").format(title=title or self.tr("New chat")))
        self._prompt_label.setText(self.tr("System prompt"))
        self.prompt.setAccessibleName(self.tr("System prompt"))
        self.prompt.setPlaceholderText(self.tr("For example: Answer in short sentences."))
        self._model_label.setText(self.tr("Model"))
        self.model.set_choices(chat_model_choices(self._library, self._settings))
        self.model.set_name(self.tr("Model"), "")
        self._replies_label.setText(self.tr("Replies"))
        for row in self.options.values():
            row.retranslate()
        self.save_button.setText(self.tr("Save"))
        self.cancel_button.setText(self.tr("Cancel"))

    def _lay_out(self) -> None:
        self.prompt.setProperty("kind", "field")
        self.prompt.setTabChangesFocus(True)
        self.prompt.setMinimumHeight(_PROMPT_HEIGHT)
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_L)
        grid.setVerticalSpacing(SPACE_S)
        grid.setColumnStretch(0, 1)
        grid.addWidget(self._model_label, 0, 0)
        grid.addWidget(self.model, 0, 1, 1, 2)
        for number, row in enumerate(self.options.values(), start=1):
            row.add_to(grid, number)
        content = QWidget()
        content.setObjectName("settingsContent")
        column = QVBoxLayout(content)
        column.setContentsMargins(SPACE_XL, 0, SPACE_XL, 0)
        column.setSpacing(SPACE_S)
        column.addWidget(self.preset_bar)
        column.addSpacing(SPACE_S)
        column.addWidget(self._prompt_label)
        column.addWidget(self.prompt, 1)
        column.addWidget(self._cost)
        column.addSpacing(SPACE_S)
        column.addWidget(self._replies_label)
        column.addLayout(grid)
        scroll = QScrollArea()
        scroll.setWidget(content)
        scroll.setWidgetResizable(True)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        buttons = QHBoxLayout()
        buttons.setContentsMargins(SPACE_XL, 0, SPACE_XL, 0)
        buttons.setSpacing(SPACE_S)
        buttons.addStretch(1)
        for button in (self.cancel_button, self.save_button):
            button.setAutoDefault(False)  # Enter in a field means the field
            buttons.addWidget(button)
        head = QVBoxLayout()
        head.setContentsMargins(SPACE_XL, 0, SPACE_XL, 0)
        head.setSpacing(SPACE_S)
        head.addWidget(self._heading)
        head.addWidget(self.notice)
        whole = QVBoxLayout(self)
        whole.setContentsMargins(0, SPACE_XL, 0, SPACE_L)
        whole.setSpacing(SPACE_M)
        whole.addLayout(head)
        whole.addWidget(scroll, 1)
        whole.addSpacing(SPACE_XS)
        whole.addLayout(buttons)
        self.setMinimumSize(*_LEAST_SIZE)
        resize_within_screen(self, *_SIZE)


def _label(kind: str = "") -> QLabel:
    label = QLabel()
    label.setProperty("kind", kind)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setWordWrap(kind in ("title", "muted"))
    return label
