"""Every code the engine may give has words in both languages; what this version does not know keeps its sentence."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.paths import resources_dir
from app.records import statistics_from_json
from engine.protocol.events import SnapshotNotSaved
from engine.protocol.misses import _WORDS, Miss, MissCode, SaveProblem
from tests.ui.conftest import Desk
from tests.ui.fakes import turn_statistics
from ui.language import Language
from ui.reason_words import miss_words, not_saved_words
from ui.transcript.statistics_line import statistics_tooltip

FALLBACK = "the flux was low"
PARAMS = {"field": "dtype", "saved": "bf16", "now": "float32", "token": "12", "detail": "checksum"}


@pytest.fixture(params=["en", "ko"])
def spoken(request: pytest.FixtureRequest, qapp: object) -> Iterator[str]:
    language = Language(resources_dir() / "translations")
    language.set_mode(request.param)
    yield request.param
    language.set_mode("en")


def statistics(code: str | None, params: dict[str, str]) -> Any:
    return replace(turn_statistics(miss_reason=FALLBACK), miss_code=code, miss_params=params)


def is_in(language: str, words: str) -> bool:
    return bool(re.search("[가-힣]", words)) == (language == "ko") and FALLBACK not in words


@pytest.mark.parametrize("code", list(MissCode))
def test_every_miss_has_words_in_both_languages_from_its_own_parameters(spoken: str, code: MissCode) -> None:
    names = {name for _, name, _, _ in string.Formatter().parse(_WORDS[code]) if name}
    params = {name: value for name, value in PARAMS.items() if name in names}
    words = miss_words(statistics(code.value, params))
    assert is_in(spoken, words)
    shown = [value for name, value in params.items() if name != "field"]
    assert all(value in words for value in shown)
    assert str(Miss(code, params))
    if names:
        assert miss_words(statistics(code.value, {})) == FALLBACK


@pytest.mark.parametrize("code", list(SaveProblem))
def test_every_problem_of_saving_has_words_in_both_languages(spoken: str, code: SaveProblem) -> None:
    assert is_in(spoken, not_saved_words(SnapshotNotSaved("c", "r", FALLBACK, code, {"detail": "EIO"})))


def test_a_code_unknown_to_this_version_keeps_the_sentence(spoken: str) -> None:
    assert miss_words(statistics("tides_changed", PARAMS)) == FALLBACK
    later: Any = "tides_changed"
    assert not_saved_words(SnapshotNotSaved("c", "r", FALLBACK, later)) == FALLBACK


def test_a_field_that_people_know_is_named_in_their_words(spoken: str) -> None:
    for field, words in (("weights", "가중치 정밀도"), ("numbers", "가중치 정밀도"), ("rope", "rope")):
        params = {"field": field, "saved": "16bit", "now": "4bit"}
        assert (words in miss_words(statistics("settings_changed", params))) == (spoken == "ko" or field == "rope")


def test_a_reply_of_an_earlier_version_keeps_its_english_sentence(spoken: str) -> None:
    stored = statistics_from_json(
        '{"prompt_tokens": 4, "reused_tokens": 0, "prefilled_tokens": 4, "new_tokens": 3, "load_s": 0.0,'
        ' "miss_reason": "the model changed", "restore_s": 0.0, "ttft_s": 0.2, "prefill_tps": 1.0, "decode_tps": 1.0,'
        ' "cache": {"tokens": 7, "bytes": 9, "precision": "bf16", "place": "cpu"}}'
    )
    assert stored is not None
    assert statistics_tooltip(stored).endswith(": the model changed")


def test_nothing_is_said_where_nothing_was_read_twice() -> None:
    assert miss_words(turn_statistics()) == ""
    assert "because" not in statistics_tooltip(turn_statistics())


def test_the_window_words_a_full_disk_and_is_silent_about_an_incognito_chat(desk: Desk) -> None:
    request = desk.send("hello")
    desk.engine.finish(request, "hi")
    told = (request.conversation_id, request.request_id)
    desk.engine.tell(SnapshotNotSaved(*told, "This chat is incognito.", SaveProblem.INCOGNITO))
    desk.settle()
    assert desk.window.page.transcript.notice is None
    desk.engine.tell(SnapshotNotSaved(*told, "No space left on device.", SaveProblem.DISK_FULL))
    desk.settle()
    assert desk.window.page.transcript.notice is not None
    assert desk.window.page.transcript.notice.text.endswith("not saved: the disk is full; free some space.")
    desk.window.preferences.choose_language("ko")
    desk.settle()
    assert desk.window.page.transcript.notice.text.endswith("못했습니다: 디스크가 가득 찼습니다. 공간을 비우세요.")
