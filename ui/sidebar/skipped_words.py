"""What an import left out, in the window's language. `app.exchange` says it in English: the kind, and how many."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from ui import numbers


def skipped_words(sentence: str) -> str:
    """ "results of tools: 1,234" in the words and digits of the language; a kind not known keeps its name."""
    kind, _, number = sentence.rpartition(": ")
    digits = number.replace(",", "")
    if not digits.isdecimal():
        return sentence
    return f"{kind_words().get(kind, kind)}: {numbers.count(int(digits))}"


def kind_words() -> dict[str, str]:
    return {
        "results of tools": _tr("results of tools"),
        "pictures and other files, “[…]” in their place": _tr("pictures and other files, “[…]” in their place"),
        "messages that follow each other in a circle": _tr("messages that follow each other in a circle"),
        "messages without text, or of another role than user and assistant": _tr(
            "messages without text, or of another role than user and assistant"
        ),
        "conversations without a message": _tr("chats without a message"),
    }


def _tr(source: str) -> str:
    return QCoreApplication.translate("Skipped", source)
