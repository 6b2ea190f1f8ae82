"""The pressure ladder watched in the memory panel: a picture of it before, at each thing it did, and after, with what
the panel shows in words. The real program with the real model, in the least memory that its settings allow.

python -m tests.benchmarks.ladder_pictures FOLDER [LANGUAGE THEME]
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

_WIDTH, _HEIGHT = 1100, 900
_SYSTEM = "You are the keeper of the harbour's log and answer in one short sentence. " * 12
_TITLES = {
    "en": (
        "The ferry's winter",
        "Three rainy days in Jeju",
        "Tax letter",
        "Rust lifetimes",
        "Reading: attention",
        "Soup",
    ),
    "ko": ("겨울 여객선", "비 오는 제주 사흘", "세금 편지", "러스트 수명", "어텐션 논문 읽기", "국 끓이기"),
}


def watch(folder: Path, language: str, theme: str) -> None:
    from PySide6.QtWidgets import QApplication

    from app.paths import DataPaths
    from app.settings import Settings, save_settings
    from engine.protocol.commands import CompressMethod
    from engine.protocol.events import Compressed, Finished, ModelLoaded
    from tests.benchmarks.pictures import Waiting, in_few_colours
    from tests.end_to_end.conftest import long_message
    from tests.end_to_end.test_window import Program

    application = QApplication.instance() or QApplication([])
    waiting = Waiting()
    with tempfile.TemporaryDirectory() as data:
        paths = DataPaths(Path(data))
        save_settings(
            paths.settings,
            Settings(
                language=language,
                theme=theme,
                max_new_tokens=24,
                temperature=0.0,
                memory_budget_mb=64,
                system_prompt=_SYSTEM,
            ),
        )
        program = Program(waiting, paths)  # type: ignore[arg-type]
        window = program.window
        program.wait(ModelLoaded)
        window.memory.open()
        page = window.memory.page
        assert page is not None
        page.resize(_WIDTH, _HEIGHT)
        seen: list[str] = []

        def picture(what: str) -> None:
            waiting.wait(1200)  # the panel asks anew
            name = f"{len(seen):02}_{what}_{language}_{theme}.png"
            in_few_colours(page.grab().toImage()).save(str(folder / name))
            seen.append(name)
            print(f"\n{name}: {page.used.text()}; {page.marks.text()}")
            for row in page.rows.values():
                print(f"  {row.title.text()}: {row.detail.text()}")

        def answered() -> int:
            return sum(isinstance(event, Finished) for event in program.events)

        chats: list[str] = []
        for number, title in enumerate(_TITLES[language]):
            window.controller.open(None)
            program.send(f"{title}. {long_message(22 + number)}")
            count = answered()
            program.wait(Finished, count + 1)
            chats.append(window.controller.current or "")
            program.store.set_title(chats[-1], title)
            window.refresh_conversations()
            if number == 0:
                program.session.cache.compress(chats[0], keep=0.5, method=CompressMethod.KVZIP, is_int8=False)
                program.wait(Compressed)
            picture(f"chat{number + 1}")
        window.controller.open(chats[1])
        program.send("Again?")
        program.wait(Finished, answered() + 1)
        picture("resumed")
        for entry in reversed(window.memory.diary.entries):
            print(f"{entry.time_words()} {entry.words()}")
        program.close()
    application.processEvents()


def main(arguments: list[str]) -> int:
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    language, theme = arguments[1:3] if len(arguments) > 2 else ("en", "light")
    watch(folder, language, theme)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
