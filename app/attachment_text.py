"""Bytes of a file -> text: which encoding it is in, by what it holds, never by its name. Pure functions.

Short texts are the hard ones: every pair of high bytes is a character in several East Asian encodings. What decides is
how likely the characters are together (Hangul that KS X 1001 has, kana), before charset-normalizer is asked.
"""

from __future__ import annotations

import codecs
import re

_BOMS = (  # the longer one first: UTF-32 LE begins with the mark of UTF-16 LE
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_PICTURES = (b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"RIFF", b"II*\x00", b"MM\x00*")
_ARCHIVES = (b"PK\x03\x04", b"\x1f\x8b", b"BZh9", b"\xfd7zXZ", b"7z\xbc\xaf", b"Rar!", b"\x28\xb5\x2f\xfd")
_PROGRAMS = (b"\x7fELF", b"MZ\x90", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"\xd0\xcf\x11\xe0", b"GGUF")
_EAST_ASIAN = ("cp949", "cp932", "euc_jp")
_OTHERS = ("cp1252", "cp1250", "cp1251", "koi8_r", "cp1253", "cp1254", "gb18030", "big5hkscs")
_WESTERN = frozenset("àáâãäåæçèéêëìíîïñòóôõöøùúûüýÿßœÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝŒ–—‘’“”„…«»¡¿€£§°·\u00a0")
_SAMPLE_BYTES = 64 * 1024
_LEAST_LIKELY = 0.6
_KS_SYMBOL_ROWS = (0xA1, 0xA2, 0xA3, 0xA7, 0xA8, 0xA9)  # quotation marks, squares, ①, ㎡; not box lines, Greek, kana
_CONTROLS = re.compile(
    r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]"
)  # not: tab, line ends, escape, NEL
_MOST_CONTROLS = 0.002


def decoded(data: bytes) -> str | None:
    """The text with "\\n" line ends; None where it is none: a picture, an archive, a program."""
    text = _decoded(data)
    if text is None:
        return None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return None if "\0" in text or len(_CONTROLS.findall(text)) > len(text) * _MOST_CONTROLS else text


def _decoded(data: bytes) -> str | None:
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return _mended(data[len(mark) :], encoding)
    if data.startswith((*_PICTURES, *_ARCHIVES, *_PROGRAMS)):
        return None
    if b"\0" in data:
        wide = _wide_encoding(data)
        return _mended(data, wide) if wide else None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    return _nearly_utf8(data) or _east_asian(data) or _western(data) or _other(data)


def _wide_encoding(data: bytes) -> str | None:
    """UTF-16 or UTF-32 without a mark: the zeros of its ASCII characters stand at every second or fourth place."""
    sample = data[:_SAMPLE_BYTES]
    zeros = [sample[place::4].count(0) / max(1, len(sample[place::4])) for place in range(4)]
    if min(zeros[1:]) > 0.9 or min(zeros[:3]) > 0.9:
        return "utf-32-le" if zeros[0] < 0.5 else "utf-32-be"
    even, odd = (zeros[0] + zeros[2]) / 2, (zeros[1] + zeros[3]) / 2
    if sample.count(0) > 1 and max(even, odd) > 0.1 and min(even, odd) < 0.01:
        return "utf-16-le" if odd > even else "utf-16-be"
    return None


def _mended(data: bytes, encoding: str) -> str | None:
    """Decoded; half characters become U+FFFD, but not many of them."""
    text = data.decode(encoding, "replace")
    return None if text.count("\ufffd") > 1 + len(text) * 0.01 else text


def _nearly_utf8(data: bytes) -> str | None:
    """UTF-8 with a few stray bytes, or cut off in the middle of a character."""
    text = data.decode("utf-8", "replace")
    num_bad = text.count("\ufffd")
    num_good = sum(1 for character in text if character > "\x7f") - num_bad
    return text if num_good >= 8 * num_bad or (num_good >= 1 and num_bad == 1 and text.endswith("\ufffd")) else None


def _east_asian(data: bytes) -> str | None:
    likely = []
    for encoding in _EAST_ASIAN:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        likely.append((_likelihood(text[:_SAMPLE_BYTES], encoding), text))
    best = max(likely, key=lambda pair: pair[0], default=(0.0, ""))
    return best[1] if best[0] >= _LEAST_LIKELY else None


def _likelihood(text: str, encoding: str) -> float:
    """How likely the characters beyond ASCII are in a text of that encoding: about 1 for the right one."""
    foreign = [character for character in text if character > "\x7f"]
    weigh = _korean_weight if encoding == "cp949" else _japanese_weight
    return sum(map(weigh, foreign)) / max(1, len(foreign))


def _korean_weight(character: str) -> float:
    """By its place in KS X 1001, which nearly all Korean text is written in: 2,350 syllables, letters, symbols."""
    lead, trail = character.encode("cp949").ljust(2, b"\0")[:2]
    if "\uac00" <= character <= "\ud7a3":
        return 1.0 if lead >= 0xB0 and trail >= 0xA1 else -0.5
    if "\u3131" <= character <= "\u318e":
        return 1.0 if character <= "\u3163" else -0.5  # a letter alone, as in ㅋㅋ; the later ones are archaic
    if "\u4e00" <= character <= "\u9fff":
        return 0.2
    return 0.5 if lead in _KS_SYMBOL_ROWS or "\u2160" <= character <= "\u2179" else -0.5


def _japanese_weight(character: str) -> float:
    if "\u3041" <= character <= "\u30ff":
        return 1.0
    if "\u4e00" <= character <= "\u9fff" or character in "、。「」『』・！？（）　～":
        return 0.65
    return -1.0 if "\uff61" <= character <= "\uff9f" or "\ue000" <= character <= "\uf8ff" else -0.2


def _western(data: bytes) -> str | None:
    """Windows-1252, and with it Latin-1: letters beyond ASCII stand among ASCII ones."""
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        return None
    foreign = [character for character in text if character > "\x7f"]
    num_plain = sum(character.isascii() and character.isalpha() for character in text)
    return text if _WESTERN.issuperset(foreign) and len(foreign) <= max(2, num_plain) else None


def _other(data: bytes) -> str | None:
    from charset_normalizer import from_bytes  # noqa: PLC0415  # slow to import, and few files need it

    best = from_bytes(data[:_SAMPLE_BYTES], cp_isolation=list(_OTHERS)).best()
    text = data.decode(best.encoding, "replace") if best is not None else None
    return text if text is not None and text.count("\ufffd") <= len(text) * 0.01 else None
