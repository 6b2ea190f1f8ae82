"""The README's pictures: the real program with the real model, its chats written here, drawn off the screen.

python -m tests.benchmarks.pictures FOLDER [LANGUAGE THEME SCALE]

That of the memory panel is one of `tests.benchmarks.ladder_pictures`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtGui import QImage

SHOTS = (("en", "light", "1"), ("ko", "dark", "1"), ("en", "dark", "1.25"), ("en", "light", "2"))
_WIDEST_PX = 1280
_MOST_COLOURS = 256
_PLAN = r"""## Day one: caves and warm soup

- **Manjanggul** stays dry whatever the sky does; an hour is enough.
- [x] book the ferry
- [ ] pack rain coats

```python
costs = {"cave": 14_000, "porridge": 36_000, "bus": 5_200}
print(sum(costs.values()), "won")
```

For two children the total is $t = 2 \cdot 7{,}000 + 36{,}000 + 5{,}200$, and the mean of $n$ days is

$$\bar{x} = \frac{1}{n} \sum_{i=1}^{n} x_i = \int_0^1 f(x)\,dx$$
"""
_PLAN_KO = r"""## 첫째 날: 동굴과 따뜻한 국

- **만장굴**은 비가 와도 괜찮습니다. 한 시간이면 충분해요.
- [x] 여객선 예약
- [ ] 비옷 챙기기

| 곳 | 비용 |
|:--|--:|
| 만장굴 | 14,000원 |
| 전복죽 | 36,000원 |

합계는 $t = 2 \cdot 7{,}000 + 36{,}000$ 입니다.
"""


class Waiting:
    """What the tests' `Program` wants of pytest-qt."""

    def waitUntil(self, is_so: Callable[[], bool], timeout: int = 120_000) -> None:  # noqa: N802 - pytest-qt's name
        end = time.monotonic() + timeout / 1000
        while not is_so():
            if time.monotonic() > end:
                raise TimeoutError
            self.wait(10)

    def wait(self, milliseconds: int) -> None:
        from PySide6.QtCore import QCoreApplication

        end = time.monotonic() + milliseconds / 1000
        while time.monotonic() < end:
            QCoreApplication.processEvents()
            time.sleep(0.002)


def take(folder: Path, language: str, theme: str, scale: str) -> None:
    """The pictures of one language, theme and scale; in a process of its own, since Qt scales once."""
    from PySide6.QtWidgets import QApplication, QWidget

    from app.paths import DataPaths
    from app.settings import Settings, save_settings
    from engine.protocol.commands import BenchName, Role
    from engine.protocol.events import BenchFinished, Estimated, Finished, ModelLoaded
    from tests.end_to_end.test_window import Program

    application = QApplication.instance() or QApplication([])
    waiting = Waiting()
    name = f"{language}_{theme}" + ("" if scale == "1" else f"_{float(scale) * 100:.0f}")

    def keep(widget: QWidget, what: str) -> None:
        waiting.wait(400)
        picture = widget.grab().toImage()
        if picture.width() > _WIDEST_PX:
            picture = picture.scaledToWidth(_WIDEST_PX, Qt.TransformationMode.SmoothTransformation)
        in_few_colours(picture).save(str(folder / f"{what}_{name}.png"))

    with tempfile.TemporaryDirectory() as data:
        paths = DataPaths(Path(data))
        save_settings(paths.settings, Settings(language=language, theme=theme, max_new_tokens=48, temperature=0.0))
        program = Program(waiting, paths)  # type: ignore[arg-type]
        window, store = program.window, program.store
        window.resize(1280, 820)
        program.wait(ModelLoaded)

        def chat(title: str, question: str, answer: str, folder_id: int | None = None) -> str:
            conversation = store.create_conversation(folder_id=folder_id)
            store.add_message(conversation.id, Role.USER, question)
            store.add_message(conversation.id, Role.ASSISTANT, answer)
            store.set_title(conversation.id, title)
            return conversation.id

        is_korean = language == "ko"
        work, practice = store.create_folder("일" if is_korean else "Work"), store.create_folder("한국어 연습")
        chat("Rust lifetimes", "What is a lifetime?", "A region of code for which a reference is valid.", work.id)
        chat("존댓말 연습", "안녕", "안녕하세요! 무엇을 도와드릴까요?", practice.id)
        store.set_pinned(chat("Tax letter, second draft", "Write it.", "Dear Sir or Madam,"), True)
        chat("Names for a small bakery", "Ideas?", "Crumb, Rise, and the Ferry Bakery.")
        plan = (
            chat("비 오는 제주 사흘", "아이 둘과 비 오는 제주에서 사흘을 보내려고 해요.", _PLAN_KO)
            if is_korean
            else chat("Three rainy days in Jeju", "Plan three rainy days in Jeju with two children.", _PLAN)
        )
        window.refresh_conversations()
        window.controller.open(plan)
        program.send("고마워요. 짧게 인사해 주세요." if is_korean else "Which places did you name? One sentence.")
        program.wait(Finished)
        waiting.wait(300)
        window.page.transcript.regenerate_requested.emit(store.messages(plan)[-1].id)
        program.wait(Finished, 2)
        before = sum(isinstance(event, Estimated) for event in program.events)
        window.page.composer.edit.setPlainText("우산도 챙길까요?" if is_korean else "What shall we pack for the ferry?")
        waiting.waitUntil(lambda: sum(isinstance(event, Estimated) for event in program.events) > before)
        waiting.wait(1500)
        keep(window, "main")
        window.sidebar.filter.setText("만장" if is_korean else "ferry")
        keep(window, "search")
        window.sidebar.filter.clear()
        window.dialogs.open_settings()
        dialog = window.dialogs.open_dialog
        assert dialog is not None
        keep(dialog, "settings")
        dialog.close()
        window.lab.open()
        assert window.lab.window is not None
        window.lab.window.resize(1100, 760)
        page = window.lab.window.show_page(BenchName.USE_CACHE)
        page.choose_context(256)
        page.run_button.click()
        waiting.waitUntil(lambda: any(isinstance(event, BenchFinished) for event in program.events))
        keep(window.lab.window, "lab")
        program.close()
    application.processEvents()


def in_few_colours(picture: QImage) -> QImage:
    """In 256 colours, a quarter of the size: near ones count as one, so that a rare hue keeps its own."""
    whole = picture.convertToFormat(QImage.Format.Format_RGB32)
    colours, counts = np.unique(np.frombuffer(whole.constBits(), np.uint32), return_counts=True)
    order = np.argsort(-counts)
    near = colours[order] & 0x00F0F0F0  # of those alike in their upper bits the most frequent one stands for all
    _, first = np.unique(near, return_index=True)
    firsts = np.sort(first)[:_MOST_COLOURS]
    others = np.setdiff1d(order, order[firsts], assume_unique=True)
    others = others[np.argsort(-counts[others])][: _MOST_COLOURS - len(firsts)]
    table = [int(colour) for colour in (*colours[order][firsts], *colours[others])]
    return whole.convertToFormat(QImage.Format.Format_Indexed8, table, Qt.ImageConversionFlag.AvoidDither)


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    if len(arguments) == 4:
        take(folder, *arguments[1:])
        return 0
    for language, theme, scale in SHOTS:
        environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen", "QT_SCALE_FACTOR": scale}
        command = [sys.executable, "-m", "tests.benchmarks.pictures", str(folder), language, theme, scale]
        subprocess.run(command, env=environment, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
