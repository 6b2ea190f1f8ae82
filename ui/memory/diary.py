"""What was done with the chats' memory, in sentences with their times; newest first, and kept for the session."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from PySide6.QtCore import QCoreApplication, QLocale

from engine.protocol.events import CodecsProbed, Compressed, PressureActed, SnapshotSaved
from ui import numbers
from ui.memory.precision_words import is_full, precision_words
from ui.sidebar.row_words import one_line

MOST_ENTRIES = 200
_LONGEST_TITLE = 40
Step = PressureActed | Compressed | SnapshotSaved


def _tr(source: str) -> str:
    return QCoreApplication.translate("Diary", source)


@dataclass(frozen=True, slots=True)
class Entry:
    """`kl`: what the codec costs with this model, in nats a token; None where that is not known or has no meaning."""

    at: datetime
    step: Step
    title: str
    kl: float | None = None

    def time_words(self) -> str:
        return self.at.strftime("%H:%M:%S")

    def words(self) -> str:
        """In the language of now."""
        title = one_line(self.title) or _tr("New chat")
        short = title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 1]}…"
        words = _template(self.step).format(title=short, **_numbers(self.step))
        if self.kl is not None:
            words = f"{words}, KL {QLocale().toString(self.kl, 'g', 2)}"
        back_s = self.step.comes_back_s if isinstance(self.step, PressureActed) else None
        if not back_s:
            return words
        return f"{words} · {_tr('back in about {time}').format(time=numbers.seconds(back_s))}"


class Diary:
    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=MOST_ENTRIES)
        self._kl: dict[str, float] = {}
        self.num_added = 0

    @property
    def entries(self) -> list[Entry]:
        """Newest first."""
        return list(self._entries)

    def take(self, event: object, title_of: Callable[[str], str], clock: Callable[[], datetime]) -> bool:
        """Whether the event is told here."""
        match event:
            case CodecsProbed():
                self._kl = event.kl
                return False
            case SnapshotSaved() if not event.bytes_written:
                return False
            case PressureActed() | Compressed() | SnapshotSaved():
                kl = self._kl.get(event.precision) if isinstance(event, PressureActed) else None
                self._entries.appendleft(Entry(clock(), event, title_of(event.conversation_id), kl))
                self.num_added += 1
                return True
        return False


def _numbers(step: Step) -> dict[str, str]:
    match step:
        case PressureActed():
            return {"size": numbers.size(max(0, step.bytes_freed)), "precision": precision_words(step.precision)}
        case Compressed():
            freed = numbers.size(max(0, step.bytes_before - step.bytes_after))
            return {"size": freed, "precision": precision_words(step.precision, step.kept)}
    return {"size": numbers.size(step.bytes_written)}


def _template(step: Step) -> str:
    match step:
        case SnapshotSaved():
            return _tr("Saved “{title}” to disk: {size} were new")
        case Compressed() if is_full(step.precision):
            return _tr("Brought “{title}” back to full precision")
        case Compressed():
            return _tr("Compressed “{title}”, {precision}: freed {size}")
    match step.action:
        case "save":
            return _tr("Saved “{title}” to disk, so that its memory can be freed")
        case "quantize" if step.precision:
            return _tr("Quantized “{title}” to {precision}: freed {size}")
        case "quantize":
            return _tr("Quantized “{title}”: freed {size}")
        case "compress":
            return _tr("Compressed “{title}” to make room: freed {size}")
        case "to_host":
            return _tr("Moved “{title}” off the graphics card: freed {size}")
        case "drop":
            return _tr("Put “{title}” away from memory: freed {size}")
        case "evict_disk":
            return _tr("Removed the saved cache of “{title}”: freed {size} on disk")
    return _tr("Made room with “{title}”: freed {size}")
