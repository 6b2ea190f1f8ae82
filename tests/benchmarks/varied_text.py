"""Sentences in English and Korean, none like another: texts of any length, a pure function of the random generator."""

from __future__ import annotations

import random
from collections.abc import Callable

_ENGLISH = (
    "At {hour}:{minute:02d} the {who} from {place} sold {count} {things} to a {other}.",
    "Nobody in {place} remembers why {count} {things} were left beside the {spot}.",
    "The {who} wrote in her notebook: {things}, {count}; weather, {weather}; visitors, one {other}.",
    "When it turned {weather}, the {who} carried {count} {things} from the {spot} to {place}.",
    "Is it true that a {other} in {place} once traded {count} {things} for a single {spot}?",
)
_KOREAN = (
    "{hour}시 {minute}분에 {place}에서 온 {who}가 {things} {count}개를 {other}에게 팔았다.",
    "{place} 사람들은 {spot} 옆에 왜 {things} {count}개가 남아 있는지 아무도 모른다.",
    "{who}의 일기에는 이렇게 적혀 있다: {things} {count}개, 날씨는 {weather}, 손님은 {other} 한 명.",
    "날씨가 {weather} 되자 {who}는 {spot}에 있던 {things} {count}개를 {place}(으)로 옮겼다.",
)
_ENGLISH_WORDS = {
    "who": ("ferry captain", "baker", "clockmaker", "surveyor", "young botanist", "lighthouse keeper"),
    "other": ("traveller", "schoolteacher", "retired pilot", "violinist", "customs officer"),
    "things": ("brass lamps", "maps", "baskets of plums", "letters", "tide tables", "blue bottles", "spare keys"),
    "place": ("Marrow Bay", "the upper town", "Kestrel Island", "the old station", "Lindqvist Street"),
    "spot": ("fountain", "granary", "observatory", "north gate", "footbridge"),
    "weather": ("foggy", "bright", "bitterly cold", "windy", "strangely warm"),
}
_KOREAN_WORDS = {
    "who": ("선장", "제빵사", "시계공", "측량사", "젊은 식물학자", "등대지기"),
    "other": ("여행자", "교사", "은퇴한 조종사", "바이올린 연주자", "세관원"),
    "things": ("놋쇠 등잔", "지도", "자두 바구니", "편지", "조석표", "파란 병", "여벌 열쇠"),
    "place": ("강릉", "윗마을", "매섬", "옛 역", "느티나무 거리"),
    "spot": ("분수", "곳간", "천문대", "북문", "구름다리"),
    "weather": ("흐리게", "맑게", "몹시 춥게", "바람 불게", "이상하게 따뜻하게"),
}
_QUESTIONS = (
    "What did the {who} carry?",
    "Who was in {place}?",
    "And the {things}?",
    "Sum that up in one sentence.",
    "{who}는 무엇을 팔았나요?",
    "{place}에 대해 더 말해 주세요.",
    "날씨는 어땠나요?",
)


def sentence(rng: random.Random, *, is_korean: bool) -> str:
    templates, words = (_KOREAN, _KOREAN_WORDS) if is_korean else (_ENGLISH, _ENGLISH_WORDS)
    chosen = {name: rng.choice(choices) for name, choices in words.items()}
    return rng.choice(templates).format(
        hour=rng.randrange(24), minute=rng.randrange(60), count=rng.randrange(2, 9_999), **chosen
    )


def question(rng: random.Random) -> str:
    """A short message about nothing in particular."""
    template = rng.choice(_QUESTIONS)
    words = _ENGLISH_WORDS if template.isascii() else _KOREAN_WORDS
    return template.format(**{name: rng.choice(choices) for name, choices in words.items()})


def text_of(num_tokens: int, rng: random.Random, count_tokens: Callable[[str], int]) -> str:
    """At least `num_tokens` tokens, by less than a sentence more; a quarter of it in Korean."""
    parts: list[str] = []
    total = 0
    while total < num_tokens:
        parts.append(sentence(rng, is_korean=rng.random() < 0.25))
        total += count_tokens(" " + parts[-1])
    return " ".join(parts)
