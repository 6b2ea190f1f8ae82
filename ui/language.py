"""The language of the window: a JSON catalogue as a translator, changed without a restart."""

from __future__ import annotations

import json
from pathlib import Path

from PySide6.QtCore import QCoreApplication, QLibraryInfo, QLocale, QObject, QTranslator

LANGUAGES = {"en": "English", "ko": "한국어"}  # each in its own words, whatever the window speaks


class CatalogueTranslator(QTranslator):
    """Looks a source text up in {source: translation}; an unknown one is left to Qt, which shows the source."""

    def __init__(self, path: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._entries: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))

    def isEmpty(self) -> bool:
        return not self._entries

    def translate(self, context: str, text: str, disambiguation: str | None = None, n: int = -1, /) -> str:
        return self._entries.get(text)  # type: ignore[return-value]  # None is Qt's null string: not found


class Language(QObject):
    """Installs the translators and the number format of the language chosen."""

    def __init__(self, translations_dir: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._dir = translations_dir
        self._installed: list[QTranslator] = []
        self._current = ""

    @property
    def current(self) -> str:
        """ "en" or "ko"."""
        return self._current

    def set_mode(self, mode: str) -> None:
        """Speak "en", "ko" or what the "system" says. Every widget gets a LanguageChange event."""
        wanted = mode if mode in LANGUAGES else system_language()
        QLocale.setDefault(_locale(mode, wanted))
        if wanted == self._current:
            return
        self._current = wanted
        for old in self._installed:
            QCoreApplication.removeTranslator(old)
        self._installed = []
        catalogue = self._dir / f"{wanted}.json"
        if catalogue.exists():
            qt_words = QTranslator(self)
            if qt_words.load(f"qtbase_{wanted}", QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)):
                self._install(qt_words)
            self._install(CatalogueTranslator(catalogue, self))

    def _install(self, translator: QTranslator) -> None:
        self._installed.append(translator)
        QCoreApplication.installTranslator(translator)


def system_language() -> str:
    """The first language of the system that the window speaks, else English."""
    for name in QLocale.system().uiLanguages():
        language = name.replace("_", "-").split("-")[0]
        if language in LANGUAGES:
            return language
    return "en"


def _locale(mode: str, language: str) -> QLocale:
    if mode == "system" and QLocale.system().language() not in (QLocale.Language.C, QLocale.Language.AnyLanguage):
        return QLocale.system()
    if language == "ko":
        return QLocale(QLocale.Language.Korean, QLocale.Country.SouthKorea)
    return QLocale(QLocale.Language.English, QLocale.Country.UnitedStates)
