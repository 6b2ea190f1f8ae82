"""A run of blocks without code between them: text, lists, tables, formulas."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import QEvent, Qt
from PySide6.QtWidgets import QWidget

from ui.markdown.blocks import Block, Maths, block_spans
from ui.theme import Theme
from ui.tokens import Tokens
from ui.transcript.flow_text import FlowText
from ui.transcript.footnotes import Footnotes
from ui.transcript.prose_document import ProseWriter


class ProsePart(FlowText):
    """Keeps its blocks, to draw them again in another theme."""

    def __init__(
        self, theme: Theme, notes: Footnotes, is_first: bool, is_quiet: bool = False, parent: QWidget | None = None
    ) -> None:
        """`is_quiet`: in the muted colour."""
        super().__init__(theme, parent)
        self._notes = notes
        self._blocks: list[Block] = []
        self._formulas: list[str] = []
        self._is_first = is_first
        self._is_quiet = is_quiet
        self._writer = self._new_writer()
        self._retranslate()

    def append_blocks(self, blocks: list[Block]) -> None:
        self._blocks += blocks
        self._writer.write(blocks)
        self._look_at(blocks)

    def replace(self, blocks: list[Block]) -> None:
        if blocks != self._blocks:
            self._blocks = blocks
            self._rewrite()

    def number_notes(self, labels: set[str]) -> None:
        """The footnotes with these `labels` have numbers now."""
        if any(span.note in labels for block in self._blocks for span in block_spans(block)):
            self._rewrite()

    def recolour(self) -> None:
        self._rewrite()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    def _retranslate(self) -> None:
        self.setAccessibleName(self.tr("Reply"))

    def _look_at(self, blocks: list[Block]) -> None:
        """The keyboard reaches prose with links in it, to open them; other prose would only be in the way. A screen
        reader finds one character for a formula, so the description has what they say."""
        spans = [span for block in blocks for span in block_spans(block)]
        if any(span.href for span in spans):
            self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        formulas = [span.text for span in spans if span.maths]
        formulas += [block.latex for block in blocks if isinstance(block, Maths)]
        if formulas:
            self._formulas += formulas
            self.setAccessibleDescription(self.tr("Formulas: {formulas}").format(formulas="; ".join(self._formulas)))

    def _rewrite(self) -> None:
        self.document().clear()
        self._writer = self._new_writer()
        self._writer.write(self._blocks)
        self._formulas = []
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self._look_at(self._blocks)

    def _new_writer(self) -> ProseWriter:
        return ProseWriter(self.document(), self._tokens(), self._is_first, self._notes)

    def _tokens(self) -> Tokens:
        tokens = self._theme.tokens
        return replace(tokens, text=tokens.muted) if self._is_quiet else tokens
