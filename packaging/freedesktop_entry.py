"""The text of a freedesktop.org desktop entry (Desktop Entry Specification 1.5): quoting and keys, nothing else."""

from __future__ import annotations

# Inside a quoted argument of Exec these four take a backslash; everything reserved is then harmless.
_ESCAPED_IN_QUOTES = '"`$\\'
_UNQUOTED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./+:@,")

ENTRY = """\
[Desktop Entry]
Type=Application
Name=Ember
Name[ko]=엠버
GenericName=Local AI chat
GenericName[ko]=내 컴퓨터의 AI 대화
Comment=Chat with a language model on this computer; it never reads a conversation twice
Comment[ko]=내 컴퓨터에서 도는 언어 모델과 대화하기; 읽은 대화는 다시 읽지 않습니다
Keywords=chat;AI;LLM;assistant;language model;
Keywords[ko]=채팅;대화;인공지능;언어 모델;
Exec={execute}
TryExec={try_execute}
Icon=ember
Terminal=false
Categories=Utility;
StartupNotify=true
StartupWMClass={window_class}
"""


def render(argv: list[str], window_class: str) -> str:
    """The entry that starts `argv`; desktops hide it when argv[0] is gone. ValueError for a path with a line break."""
    # WORKAROUND GLib (2.74): it looks for the program before it turns %% into %, and then refuses the entry.
    started = ["/usr/bin/env", *argv] if "%" in argv[0] else argv
    return ENTRY.format(
        execute=exec_value(started), try_execute=_string_value(argv[0]), window_class=_string_value(window_class)
    )


def exec_value(argv: list[str]) -> str:
    """The value of Exec: arguments quoted, `%` doubled so that it is no field code, then escaped as a string value."""
    return _string_value(" ".join(_quoted(argument) for argument in argv))


def _quoted(argument: str) -> str:
    doubled = argument.replace("%", "%%")
    if doubled and all(character in _UNQUOTED for character in doubled):
        return doubled
    escaped = "".join(f"\\{character}" if character in _ESCAPED_IN_QUOTES else character for character in doubled)
    return f'"{escaped}"'


def _string_value(text: str) -> str:
    """Values of type string escape the backslash itself; line breaks have no business in a path."""
    if "\n" in text or "\r" in text:
        raise ValueError("a desktop entry cannot name a path with a line break")
    return text.replace("\\", "\\\\")
