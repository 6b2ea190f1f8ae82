"""What was wrong with stored settings, in the window's words."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication

from app.settings import LoadedSettings, SettingProblem
from ui.settings.words import field_words

_LONGEST_VALUE = 40
_MOST_NAMED = 6


def _tr(source: str) -> str:
    return QCoreApplication.translate("Settings", source)


def loaded_words(loaded: LoadedSettings) -> str:
    """ "" where nothing was wrong."""
    if loaded.damaged is not None:
        return _tr("The settings file could not be read, so the defaults are used. It lies here: {path}").format(
            path=loaded.damaged
        )
    if not loaded.problems:
        return ""
    return _tr("The settings file held values that cannot be used; the defaults are used there: {names}").format(
        names=problem_names(loaded.problems)
    )


def problem_names(problems: Sequence[SettingProblem]) -> str:
    """As "Theme (“pink”), Top k (“many”)"."""
    named = [_name(problem) for problem in problems[:_MOST_NAMED]]
    if len(problems) > _MOST_NAMED:
        named.append(_tr("and {count} more").format(count=len(problems) - _MOST_NAMED))
    return ", ".join(named)


def _name(problem: SettingProblem) -> str:
    if problem.name == "preset":
        label = _tr("Preset")
    else:
        try:
            label = field_words(problem.name).label
        except KeyError:
            label = problem.name  # of another version, or what belongs to a window
    value = " ".join(str(problem.value).split())
    shown = value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - 1] + "…"
    return f"{label} (“{shown}”)"
