"""Conversations as one page of HTML: nothing is fetched, nothing runs, everything people or models wrote is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

from app.conversation import Conversation, Message
from app.exchange.names import Names
from engine.protocol.commands import Role

_STYLE = """
:root { color-scheme: light dark; --text: #1b1b1f; --page: #ffffff; --soft: #f1f1f4; --line: #d5d5dc; --quiet: #5c5c66; --link: #0b57c2; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e7e7ec; --page: #17171a; --soft: #232328; --line: #3c3c44; --quiet: #a5a5b0; --link: #8ab4ff; }
}
body { margin: 0 auto; max-width: 46rem; padding: 1.5rem; color: var(--text); background: var(--page);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", "Apple SD Gothic Neo", "Malgun Gothic", "Noto Sans KR", "Noto Sans CJK KR", NanumGothic, sans-serif;
  overflow-wrap: anywhere; word-break: keep-all; }
h1.title { font-size: 1.6rem; line-height: 1.3; margin-bottom: 0; }
.when, .file { color: var(--quiet); font-size: .875rem; }
article { margin: 1.25rem 0; }
article.user, article.system { background: var(--soft); border-radius: .75rem; padding: .25rem 1rem; }
h2.who { font-size: .875rem; margin: .5rem 0; color: var(--quiet); }
a { color: var(--link); }
pre, code { font-family: ui-monospace, "Cascadia Mono", Menlo, Consolas, D2Coding, "Noto Sans Mono CJK KR", monospace; font-size: .9em; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem; overflow-x: auto; white-space: pre; }
article.user pre, article.system pre { background: var(--page); }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid var(--line); padding: .3rem .6rem; }
blockquote { border-left: 3px solid var(--line); margin-left: 0; padding-left: 1rem; color: var(--quiet); }
section + section { border-top: 1px solid var(--line); margin-top: 3rem; }
@media print { body { max-width: none; } pre { white-space: pre-wrap; } }
"""  # noqa: E501
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def export_html(
    chats: Sequence[tuple[Conversation, Sequence[Message]]],
    names: Names = Names(),  # noqa: B008 (frozen)
) -> str:
    """Each with the messages of the branch shown, oldest first; below each other on one page."""
    title = names.title(chats[0][0]) if len(chats) == 1 else "Ember"
    body = "\n".join(_section(chat, messages, names) for chat, messages in chats)
    return f"""<!DOCTYPE html>
<html lang="{escape(names.language)}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{_escaped(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
{body}
</body>
</html>
"""


def _section(conversation: Conversation, messages: Sequence[Message], names: Names) -> str:
    when = conversation.created_at.astimezone()
    parts = [
        f'<h1 class="title">{_escaped(names.title(conversation))}</h1>',
        f'<p class="when"><time datetime="{when.isoformat(timespec="seconds")}">{when:%Y-%m-%d %H:%M}</time></p>',
    ]
    if conversation.system_prompt.strip():
        parts.append(_article(Role.SYSTEM, names.system, "", conversation.system_prompt))
    for message in messages:
        files = "".join(f'<p class="file">{_escaped(names.file(each))}</p>\n' for each in message.attachments)
        parts.append(_article(message.role, names.of(message), files, message.text))
    return "<section>\n{}\n</section>".format("\n".join(parts))


def _article(role: Role, who: str, files: str, text: str) -> str:
    """People end a line where they want it to end; a model's text is Markdown."""
    body = _markdown(keeps_lines=role is not Role.ASSISTANT).render(_printable(text))
    return f'<article class="{role.value}">\n<h2 class="who">{_escaped(who)}</h2>\n{files}{body}</article>'


def _escaped(words: str) -> str:
    return escape(_printable(words))


def _printable(text: str) -> str:
    """Without the control characters that no page may hold."""
    return "".join(character for character in text if character in "\n\t" or not _is_control(character))


def _is_control(character: str) -> bool:
    return character < " " or "\x7f" <= character <= "\x9f"


def _markdown(*, keeps_lines: bool) -> MarkdownIt:
    """HTML in the text is shown as text; a picture becomes its description, since showing it would fetch it."""
    markdown = MarkdownIt("commonmark", {"html": False, "breaks": keeps_lines}).enable(["table", "strikethrough"])
    markdown.add_render_rule("image", _picture)
    markdown.add_render_rule("link_open", _link)
    return markdown


def _picture(self: RendererHTML, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Any) -> str:
    return escape(f"[{tokens[idx].content or tokens[idx].attrGet('src') or ''}]")


def _link(self: RendererHTML, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Any) -> str:
    tokens[idx].attrSet("rel", "noopener noreferrer")
    return self.renderToken(tokens, idx, options, env)
