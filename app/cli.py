"""The command line: parsing, and the one place where failures become a sentence and an exit code."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TextIO

from app.commands.call import Call
from app.engine_port import MakeEngine
from app.errors import AppError, InterruptedCallError, exit_code_of
from app.experiments import WORDS
from app.log_setup import logging_to
from app.paths import DataPaths, default_data_dir
from engine.protocol.config import KV_AUTO, KV_PRECISIONS, Weights
from engine.protocol.errors import EngineError

_log = logging.getLogger(__name__)
_LARGEST_SEED = 2**63 - 1
_MOST_DIGITS = 20
_SIZES = {
    "--layers": "layers that keep tokens",
    "--heads": "query heads, to tell MHA, GQA and MQA apart",
    "--kv-heads": "heads with keys and values",
    "--head-dim": "numbers of a head",
    "--tokens": "length of the chat (default: all that the model reads; 1 where that is not told)",
}
_SIZE_PRECISIONS = ["16bit", "bf16", "fp16", "float32", *(name for name in KV_PRECISIONS if name != KV_AUTO)]
_LEAST_KEPT, _MOST_KEPT, _DEFAULT_KEPT = 10, 90, 30  # percent


class _Parser(argparse.ArgumentParser):
    """Says one sentence where argparse would print the whole usage."""

    def error(self, message: str) -> NoReturn:
        sentence = message[:1].upper() + message[1:]
        self.exit(2, f"ember: {sentence}; see `{self.prog} --help`.\n")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """`verb` is None where the window is meant. Exits with 2 on wrong usage, as argparse does."""
    parsed = _parser().parse_args(arguments)
    data_dir = getattr(parsed, "data_dir", None)
    parsed.data_dir = Path(data_dir).expanduser().absolute() if data_dir else default_data_dir().absolute()
    return parsed


def run(
    arguments: argparse.Namespace,
    *,
    make_engine: MakeEngine,
    resources_dir: Path,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Carry out a parsed call. Returns the exit code of the public contract."""
    err = err or sys.stderr
    paths = DataPaths(arguments.data_dir)
    call = Call(arguments, paths, resources_dir, make_engine, out or sys.stdout, err)
    with logging_to(paths.log) as log:
        try:
            return _verb(arguments.verb)(call)
        except AppError as error:
            _say(err, str(error))
            return error.exit_code
        except EngineError as error:
            _say(err, str(error))
            return exit_code_of(error.code)
        except KeyboardInterrupt:
            return InterruptedCallError.exit_code
        except BrokenPipeError:
            _forget_output(call.out)
            return 0
        except Exception:  # noqa: BLE001 (a loop top: what is not known is a bug, told in one sentence and logged)
            _log.exception("The call failed: %s", arguments.verb)
            _say(
                err, f"Something went wrong inside Ember; {f'the details are in {log}' if log else 'no log was kept'}."
            )
            return 1


def _verb(name: str) -> Callable[[Call], int]:
    """Only the module of the verb that was asked for is imported: a call should not wait for the others."""
    module, function = _VERBS[name]
    verb: Callable[[Call], int] = getattr(importlib.import_module(f"app.commands.{module}"), function)
    return verb


_VERBS = {
    "ask": ("ask", "ask"),
    "conversations": ("chats", "conversations"),
    "show": ("chats", "show"),
    "delete": ("chats", "delete"),
    "pin": ("chats", "pin"),
    "unpin": ("chats", "unpin"),
    "search": ("exchange", "search"),
    "export": ("exchange", "export"),
    "import": ("exchange", "import_"),
    "models": ("models", "models"),
    "models add": ("models", "add_model"),
    "cache": ("cache", "cache"),
    "compress": ("compress", "compress"),
    "uncompress": ("compress", "uncompress"),
    "verify": ("measure", "verify"),
    "bench": ("measure", "bench"),
    "size": ("size", "size"),
}


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ember",
        description="A chat for local language models that remembers what it has read. Without a verb: the window.",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="folder of conversations, caches and settings")
    parser.set_defaults(verb=None)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=_Parser)

    ask = _add(verbs, "ask", "send a message and get the reply")
    which = ask.add_mutually_exclusive_group()
    which.add_argument("--new", action="store_true", help="begin a conversation")
    which.add_argument("--conversation", metavar="ID", help="go on with this one (otherwise: the newest)")
    ask.add_argument("--incognito", action="store_true", help="a new conversation of which nothing is kept")
    _add_model_options(ask)
    ask.add_argument("--system", metavar="TEXT", help="system prompt of a new conversation")
    ask.add_argument("--greedy", action="store_true", help="always the likeliest token")
    ask.add_argument("--seed", type=_seed, metavar="N", help="the same reply every time")
    ask.add_argument("--max-new-tokens", type=_positive, metavar="N", help="longest reply")
    ask.add_argument("--kv-precision", choices=KV_PRECISIONS, help="precision of the caches, in this call only")
    ask.add_argument("message", metavar="MESSAGE", help="- reads standard input")

    _add(verbs, "conversations", "list the conversations")
    _add(verbs, "show", "print a conversation").add_argument("id", metavar="ID")
    _add(verbs, "delete", "delete a conversation").add_argument("id", metavar="ID")
    _add(verbs, "pin", "keep a conversation's cache longest").add_argument("id", metavar="ID")
    _add(verbs, "unpin", "treat its cache as any other again").add_argument("id", metavar="ID")
    search = _add(verbs, "search", "find conversations by their titles and texts")
    search.add_argument("words", nargs="+", metavar="WORDS", help='all have to be there; "several words" as they stand')
    export = _add(verbs, "export", "write conversations to a file, or to standard output")
    export.add_argument("ids", nargs="*", metavar="ID", help="which ones (otherwise: all)")
    export.add_argument(
        "--format",
        choices=["json", "markdown", "html"],
        default="json",
        help="json: all there is, to be imported again (default); the others: what is shown, to be read",
    )
    export.add_argument("--output", metavar="FILE", help="what is there is replaced")
    imported = _add(verbs, "import", "take in conversations of Ember, of ChatGPT, or lists of role and content")
    imported.add_argument("files", nargs="+", metavar="FILE", help="JSON or JSON Lines")
    _add(verbs, "cache", "what is kept of each conversation")
    models = _add(verbs, "models", "list the models, or add one")
    add = _add(models.add_subparsers(metavar="add", parser_class=_Parser), "add", "add a model", verb="models add")
    add.add_argument("source", metavar="PATH_OR_HUB_ID")

    compress = _add(verbs, "compress", "keep only the parts of a conversation's cache that matter most (KVzip)")
    compress.add_argument("id", metavar="ID")
    compress.add_argument(
        "--keep",
        type=_percent_kept,
        metavar="PERCENT",
        default=_DEFAULT_KEPT,
        help=f"how much to keep, {_LEAST_KEPT} to {_MOST_KEPT} (default {_DEFAULT_KEPT})",
    )
    compress.add_argument("--int8", action="store_true", help="store what is kept in 8 bits as well")
    compress.add_argument(
        "--forget-middle",
        action="store_true",
        help="forget the middle: only the beginning and the latest part are kept (StreamingLLM)",
    )
    _add_model_options(compress)
    uncompress = _add(verbs, "uncompress", "bring a compressed conversation's cache back to full precision")
    uncompress.add_argument("id", metavar="ID")
    _add_model_options(uncompress)

    verify = _add(verbs, "verify", "compare a kept cache with reading everything again")
    verify.add_argument("id", metavar="ID")
    _add_model_options(verify)
    bench = _add(verbs, "bench", "measure the engine on this machine")
    bench.formatter_class = argparse.RawDescriptionHelpFormatter
    bench.epilog = "measurements:\n" + "\n".join(f"  {name:<15} {words}" for name, words in WORDS.items())
    bench.add_argument("name", metavar="NAME", choices=[name.value for name in WORDS], help="one of those below")
    bench.add_argument("--context", type=_positive, metavar="N", help="tokens to measure at")
    bench.add_argument("--csv", metavar="FILE", help="write the table there as well, and a second one beside it")
    _add_model_options(bench)

    size = _add(verbs, "size", "how large a KV cache gets, and what fits here")
    size.add_argument("--model", metavar="NAME_OR_PATH", help="a model on disk, in place of the next four")
    for option, words in _SIZES.items():
        size.add_argument(option, type=_positive, metavar="N", help=words)
    size.add_argument("--batch", type=_positive, metavar="N", default=1, help="chats of that length (default 1)")
    size.add_argument("--precision", choices=_SIZE_PRECISIONS, default="16bit", help="default: 16bit")
    size.add_argument("--weights-bytes", type=_positive, metavar="N", help="of the memory here, for the weights")
    return parser


def _add(
    verbs: argparse._SubParsersAction[_Parser], name: str, words: str, *, verb: str | None = None
) -> argparse.ArgumentParser:
    """A verb with what all have. SUPPRESS: options of the outer parser stay as they were where it has none itself."""
    parser = verbs.add_parser(name, help=words, description=words[:1].upper() + words[1:] + ".")
    parser.set_defaults(verb=verb or name)
    parser.add_argument("--data-dir", metavar="DIR", default=argparse.SUPPRESS, help="folder of Ember's data")
    is_nested = verb is not None
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS if is_nested else False,
        help="print one JSON object",
    )
    return parser


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME_OR_PATH", help="see `ember models`")
    parser.add_argument("--weights", choices=[weights.value for weights in Weights], help="storage of the weights")


def _seed(text: str) -> int:
    seed = int(text) if text.isdecimal() else -1
    if not 0 <= seed <= _LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"a seed is between 0 and {_LARGEST_SEED}")
    return seed


def _percent_kept(text: str) -> int:
    number = text.removesuffix("%").strip()
    percent = int(number) if number.isdecimal() else 0
    if not _LEAST_KEPT <= percent <= _MOST_KEPT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share between {_LEAST_KEPT} and {_MOST_KEPT} percent")
    return percent


def _positive(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise argparse.ArgumentTypeError(f"{text[:_MOST_DIGITS]}... is far too much")
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return number


def _say(err: TextIO, sentence: str) -> None:
    err.write(f"ember: {' '.join(sentence.split())}\n")
    err.flush()


def _forget_output(out: TextIO) -> None:
    """The reader has gone: what is still buffered must not fail again while Python exits."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    except (OSError, ValueError):
        return
