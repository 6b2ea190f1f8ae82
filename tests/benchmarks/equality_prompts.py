"""Twenty conversations to continue: English, Korean, code, dialogue. Each ends with what the user said last."""

from __future__ import annotations

_LETTER = """\
Dear Ms Okafor, the boxes came on Tuesday, two of them wet through. The maps are safe, the tide tables are not, and
of the forty letters I could read eleven. I have hung the rest over the stove. If the captain asks, tell him that the
salt did it and not the rain, and that the log of 1911 is whole but for its last page."""

_CODE = """\
def merge(left: list[int], right: list[int]) -> list[int]:
    merged = []
    while left and right:
        merged.append(left.pop(0) if left[0] <= right[0] else right.pop(0))
    return merged
"""

_TABLE = """\
station,opened,platforms
Marrow Bay,1887,2
Kestrel Island,1902,1
Lindqvist Street,1931,6
"""

CONVERSATIONS: dict[str, tuple[str, ...]] = {
    "question": ("Why does the sea look blue although a glass of water does not?",),
    "story": ("Write the beginning of a story about a clockmaker who never sleeps.",),
    "list": ("Name ten things to take along on a night train, and say why for each.",),
    "letter": (f"Summarize this letter in two sentences.\n\n{_LETTER}",),
    "continue": (_LETTER,),
    "arithmetic": (
        "A ferry carries 48 people each way and makes 7 crossings a day. How many people is that in a week?",
    ),
    "repeat": ("Repeat the word 'lantern' twenty times, with commas.",),
    "recipe": ("How do I bake a plum cake without an oven? Number the steps.",),
    "translate": ("Translate into Korean: The last bus leaves at nine, so hurry.",),
    "definition": ("Explain in simple words what a logarithm is.",),
    "poem": ("Four lines about fog over a harbour, in rhyme.",),
    "korean question": ("바다는 왜 파랗게 보이나요? 쉽게 설명해 주세요.",),
    "korean story": ("잠을 자지 않는 시계공에 대한 이야기의 첫 부분을 써 주세요.",),
    "korean letter": ("화요일에 상자가 도착했습니다. 두 개는 흠뻑 젖었고 지도만 무사합니다. 답장을 써 주세요.",),
    "code review": (f"What is slow about this function, and how would you write it?\n\n{_CODE}",),
    "code": ("Write a Python class for a queue with a fixed capacity, with type annotations and a docstring.",),
    "table": (f"Turn this table into JSON.\n\n{_TABLE}",),
    "shell": ("A shell command that finds the ten largest files below the current folder.",),
    "dialogue": (
        "Hello! I am planning a walk along the coast.",
        "That sounds lovely. How long do you want to walk, and in which season?",
        "Three days in October. What should I know about the tides?",
    ),
    "korean dialogue": (
        "안녕하세요, 강릉에 처음 가요.",
        "반갑습니다! 바다를 보고 싶으세요, 아니면 산을 오르고 싶으세요?",
        "둘 다요. 하루 일정을 짜 주세요.",
    ),
}


def messages(turns: tuple[str, ...]) -> list[dict[str, str]]:
    """As a chat template takes them: the user speaks first and last."""
    roles = ("user", "assistant")
    return [{"role": roles[index % 2], "content": text} for index, text in enumerate(turns)]
