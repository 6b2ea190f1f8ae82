"""Sets Ember up in this checkout and starts it: python3 packaging/bootstrap.py VERB [arguments].

  run       set up what is missing, then open the window           (arguments go to the program)
  test      set up, then ruff, mypy and the tests                  (with arguments: only pytest, with them)
  setup     set up and stop there
  check     ruff and mypy only
  test-gpu  only the tests that need an NVIDIA GPU                 (arguments go to pytest)
  bench     the measurements of tests/benchmarks                   (arguments go to pytest)
  peers     Ember beside transformers and llama.cpp on this machine                  (--help: the arguments)
  fidelity  what every cache scheme costs, as `ember bench fidelity` finds            (--help: the arguments)
  equality  the compiled step beside the model's own pass, 20 prompts                (--help: the arguments)
  visits    chats in a small memory budget, visited at random, every reply checked   (--help: the arguments)
  corruption  files damaged in a thousand ways, every reply checked                  (--help: the arguments)
  launch    what the launcher calls: run, with failures shown in a dialog
  desktop   put Ember into the applications menu and on the desktop; --remove takes it away

Standard library only; it must start on an old Python to be able to say that it is too old.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import desktop_launcher
import qt_libraries
from default_model import DefaultModel
from failure_dialog import show_failure
from progress import Reporter, SetupError
from setup_lock import setup_lock
from venv_setup import VirtualEnvironment, too_old_python

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CHECKOUT = Path(__file__).resolve().parent.parent
NO_TESTS_COLLECTED = 5
# Two files at a time, for some tests use two threads themselves; in the order of tests/conftest.py, the longest first.
_WHOLE_SUITE = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
_MEMORY = Path("/dev/shm")
_SUITE_BYTES = 1024**3  # several times what the suite has written at a time


class Bootstrap:
    """The verbs. Each returns the exit code."""

    def __init__(self, checkout: Path, reporter: Reporter) -> None:
        self._checkout = checkout
        self._reporter = reporter
        self._environment = VirtualEnvironment(checkout)
        self._model = DefaultModel(checkout)

    def verbs(self) -> Mapping[str, Callable[[list[str]], int]]:
        return {
            "run": self.run,
            "launch": self.run,
            "test": self.test,
            "setup": self.setup,
            "check": self.check,
            "test-gpu": self.test_gpu,
            "bench": self.bench,
            "peers": lambda arguments: self._measure("peers", arguments),
            "fidelity": lambda arguments: self._measure("fidelity", arguments),
            "equality": lambda arguments: self._measure("equality", arguments),
            "visits": lambda arguments: self._measure("visits", arguments),
            "corruption": lambda arguments: self._measure("corruption", arguments),
            "desktop": self.desktop,
        }

    def run(self, arguments: list[str]) -> int:
        self._prepare()
        if obstacle := qt_libraries.window_obstacle(self._environment.path, os.environ):
            raise SetupError(obstacle)
        # -P: the folder this is called from may have an `app` of its own.
        argv = [str(self._environment.python), "-P", "-m", "app", *arguments]
        if os.name != "nt":
            sys.stdout.flush()
            os.execv(argv[0], argv)  # becomes the program: signals and the exit code are its own
        return subprocess.call(argv)

    def setup(self, arguments: list[str]) -> int:
        refuse(arguments)
        self._prepare()
        self._compile_kernels()
        self._reporter.say("Ember is ready: make run (or python3 packaging/bootstrap.py run) opens it.")
        return 0

    def test(self, arguments: list[str]) -> int:
        self._prepare()
        started = time.monotonic()
        lint_code = 0 if arguments else self._lint()
        code = self._pytest(arguments) if arguments else self._whole_suite()
        self._say_result(lint_code or code, started)
        return lint_code or code

    def check(self, arguments: list[str]) -> int:
        refuse(arguments)
        self._prepare(model=False)
        started = time.monotonic()
        code = self._lint()
        self._say_result(code, started)
        return code

    def test_gpu(self, arguments: list[str]) -> int:
        self._prepare()
        code = self._pytest(["-m", "cuda", *arguments])
        if code == NO_TESTS_COLLECTED:
            self._reporter.say("There are no tests that need a GPU.")
            return 0
        if sentence := self._missing_gpu():
            self._reporter.say(sentence)
        return code

    def bench(self, arguments: list[str]) -> int:
        self._prepare()
        return self._pytest(
            ["-s", "-o", "python_files=bench_*.py", "--timeout=0", *(arguments or ["tests/benchmarks"])]
        )

    def _measure(self, name: str, arguments: list[str]) -> int:
        self._prepare()
        self._compile_kernels()
        return self._tool(f"tests.benchmarks.{name}", *arguments)

    def desktop(self, arguments: list[str]) -> int:
        if arguments == ["--remove"]:
            desktop_launcher.remove(self._reporter)
            return 0
        refuse(arguments)
        self._prepare()
        desktop_launcher.install(self._checkout, self._environment.python, self._reporter)
        return 0

    def _prepare(self, *, model: bool = True) -> None:
        def is_ready() -> bool:
            return self._environment.is_current() and (self._model.is_ready() or not model)

        if not is_ready():
            started = time.monotonic()
            with setup_lock(self._checkout, self._reporter):
                if not is_ready():  # unless another set-up, which was waited for, did it
                    self._environment.prepare(self._reporter)
                    if model:
                        self._model.prepare(self._reporter, self._environment.python)
            self._compile_kernels()
            self._reporter.say(f"Set up in {time.monotonic() - started:.0f} s.")
        if model:
            self._model.keep_numbers(self._reporter, self._environment.python)

    def _compile_kernels(self) -> None:
        """Once for this state of the sources, about 20 s; after an update `run` leaves it to the program."""
        self._tool("engine.kernels.compile", "--wait")

    def _lint(self) -> int:
        """Runs all three and returns the exit code of the first that failed."""
        codes = [
            self._tool("ruff", "check", "."),
            self._tool("ruff", "format", "--check", "."),
            self._tool("mypy"),
        ]
        return next((code for code in codes if code), 0)

    def _pytest(self, arguments: list[str]) -> int:
        if missing := qt_libraries.missing_for_tests(self._environment.path):
            raise SetupError(missing)
        self._compile_kernels()
        return self._tool("pytest", *arguments)

    def _whole_suite(self) -> int:
        """With its files in memory where that is possible: it writes and syncs thousands of small ones."""
        if not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _SUITE_BYTES:
            return self._pytest(_WHOLE_SUITE)
        with tempfile.TemporaryDirectory(prefix="ember-tests-", dir=_MEMORY, ignore_cleanup_errors=True) as folder:
            return self._pytest([*_WHOLE_SUITE, f"--basetemp={folder}/files", "-o", "tmp_path_retention_policy=failed"])

    def _missing_gpu(self) -> str:
        """Why the tests that need a GPU were skipped; empty where there is one."""
        script = "import torch; print(torch.__version__, torch.version.cuda or '-', torch.cuda.is_available())"
        words = subprocess.run(
            [str(self._environment.python), "-W", "ignore", "-c", script], capture_output=True, text=True, check=False
        ).stdout.split()
        if len(words) != 3 or words[2] == "True":
            return ""
        version, cuda, _ = words
        why = (
            "is built without CUDA"
            if cuda == "-"
            else f"(CUDA {cuda}) finds no NVIDIA GPU, or no driver that it can use"
        )
        return f"No GPU: torch {version} {why}. Nothing was tested."

    def _tool(self, name: str, *arguments: str) -> int:
        # As modules, not as scripts: a script in .venv/bin names the folder it was made in.
        variables = {**os.environ, "QT_QPA_PLATFORM": os.environ.get("QT_QPA_PLATFORM", "offscreen")}
        self._reporter.say(f"-- {' '.join((name, *arguments))}")
        return subprocess.call(
            [str(self._environment.python), "-m", name, *arguments], cwd=self._checkout, env=variables
        )

    def _say_result(self, code: int, started: float) -> None:
        words = "All checks passed" if code == 0 else f"Failed (exit code {code})"
        self._reporter.say(f"{words} in {time.monotonic() - started:.0f} s.")


def refuse(arguments: list[str]) -> None:
    if arguments:
        raise SetupError(f"this verb takes no {' '.join(arguments)}; see python3 packaging/bootstrap.py --help")


def main(argv: list[str]) -> int:
    if sentence := too_old_python():
        print(sentence, file=sys.stderr)
        return 1
    reporter = Reporter(CHECKOUT / ".venv" / "bootstrap.log")
    verbs = Bootstrap(CHECKOUT, reporter).verbs()
    verb, arguments = (argv[0], argv[1:]) if argv else ("--help", [])
    if verb in ("-h", "--help", "help"):
        print(__doc__)
        return 0
    if verb not in verbs:
        print(f"there is no verb '{verb}'; there are {', '.join(verbs)}", file=sys.stderr)
        return 2
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    try:
        return verbs[verb](arguments)
    except KeyboardInterrupt:
        print("\nInterrupted; the next run goes on from here.", file=sys.stderr)
        return 130
    except (SetupError, OSError) as error:
        sentence = str(error) if isinstance(error, SetupError) else f"the set-up cannot go on: {error}"
        sentence = f"{sentence[0].upper()}{sentence[1:]}."
        print(sentence, file=sys.stderr)
        if verb == "launch":
            reporter.note(sentence)
            show_failure(sentence)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
