"""What was written survives: kill -9 at any point, a full disk, a folder that may not be written."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.chat_session import ChatSession
from app.conversation import MessageState
from app.conversation_store import ConversationStore
from app.errors import DiskFullError
from app.settings import Settings
from engine.protocol.commands import Role
from engine.protocol.events import FinishReason
from tests.fakes import SilentEngine, finished

resource = pytest.importorskip("resource", reason="limits on files are a thing of POSIX")

ROOT = Path(__file__).resolve().parents[2]
PART = "조각 {number} of the reply. "

WRITE = """
import itertools, sys
from pathlib import Path
from app.chat_session import ChatSession
from app.conversation_store import ConversationStore
from app.settings import Settings
from tests.fakes import SilentEngine, finished, text_arrived

seconds = itertools.count(0, 2)
session = ChatSession(ConversationStore(Path(sys.argv[1])), SilentEngine(), Settings(), clock=lambda: next(seconds))
conversation = session.new_conversation()
for turn in itertools.count():
    request_id = session.turns.send(conversation.id, f"질문 {turn}")
    print("asked", turn, flush=True)
    text = ""
    for number in range(7):
        part = sys.argv[2].format(number=number)
        text += part
        session.handle(text_arrived(request_id, part, number))
        print("kept", turn, number, flush=True)
    session.handle(finished(request_id, text, *range(7)))
    print("done", turn, flush=True)
"""


@pytest.mark.parametrize("seed", range(10))
def test_after_kill_9_the_prompt_and_what_had_come_of_the_reply_are_there(data_dir, seed):
    path = data_dir / "ember.db"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE, str(path), PART], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    last = [process.stdout.readline() for _ in range(random.Random(seed).randint(1, 150))][-1].split()
    process.kill()
    rest = process.stdout.read().splitlines()  # what it had still said before it died
    process.wait()
    process.stdout.close()
    last = rest[-1].split() if rest and len(rest[-1].split()) >= 2 else last

    store = ConversationStore(path)
    try:
        (conversation,) = store.conversations()
        messages = store.messages(conversation.id)
        told, turn = last[0], int(last[1])
        assert messages[2 * turn].text == f"질문 {turn}"
        whole = "".join(PART.format(number=number) for number in range(7))
        reply = messages[2 * turn + 1].text
        assert whole.startswith(reply)
        if told == "kept" and len(last) == 3:
            assert reply.startswith("".join(PART.format(number=number) for number in range(int(last[2]) + 1)))
        if told == "done":
            assert reply == whole
        assert all(message.text == whole for message in messages[1 : 2 * turn : 2])
        assert store.close_interrupted_replies() <= 1
        assert all(message.state is MessageState.COMPLETE for message in store.messages(conversation.id))
        _goes_on(store, conversation.id)
    finally:
        store.close()


def _goes_on(store: ConversationStore, conversation_id: str) -> None:
    session = ChatSession(store, SilentEngine(), Settings())
    session.handle(finished(session.turns.send(conversation_id, "Still there?"), "Yes.", 1))
    assert [message.text for message in store.messages(conversation_id)][-2:] == ["Still there?", "Yes."]


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond: to a program this is what a full disk is."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_one_sentence_and_nothing_stored_is_lost(data_dir):
    store = ConversationStore(data_dir / "ember.db")
    try:
        conversation = store.create_conversation()
        stored: list[str] = []

        def write_until_full() -> None:
            for number in range(1000):
                text = f"{number} " + "글" * 10_000
                store.add_message(conversation.id, Role.USER, text)
                stored.append(text)

        with largest_file(500_000), pytest.raises(DiskFullError, match="free some space"):
            write_until_full()
        assert stored, "some fit"
        assert [message.text for message in store.messages(conversation.id)] == stored
        _goes_on(store, conversation.id)
    finally:
        store.close()
    again = ConversationStore(data_dir / "ember.db")
    try:
        assert [message.text for message in again.messages(conversation.id)][: len(stored)] == stored
    finally:
        again.close()


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of one megabyte; only root may make one, and not everywhere."""
    folder = Path(tempfile.mkdtemp())
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        folder.rmdir()
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)
    folder.rmdir()


def test_a_disk_that_is_really_full_loses_nothing(small_disk):
    store = ConversationStore(small_disk / "ember.db")
    conversation = store.create_conversation()
    store.add_message(conversation.id, Role.USER, "before")
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space"):
        filler.write_bytes(b"x" * 2_000_000)
    with pytest.raises(DiskFullError):
        store.add_message(conversation.id, Role.USER, "글" * 100_000)
    filler.unlink()
    store.add_message(conversation.id, Role.USER, "after")
    store.close()
    again = ConversationStore(small_disk / "ember.db")
    assert [message.text for message in again.messages(conversation.id)] == ["before", "after"]
    again.close()


def test_a_reply_that_found_the_disk_full_at_its_end_is_stored_when_there_is_space_again(data_dir):
    store = ConversationStore(data_dir / "ember.db")
    told: list[Exception] = []
    session = ChatSession(store, SilentEngine(), Settings(), on_storage_error=told.append)
    try:
        conversation = session.new_conversation()
        request_id = session.turns.send(conversation.id, "Hello")
        reply = "긴 " * 100_000
        with largest_file(200_000):
            session.handle(finished(request_id, reply, 1))
        assert [type(error) for error in told] == [DiskFullError]
        session.close()
        message = store.messages(conversation.id)[1]
        assert (message.text, message.finish_reason) == (reply, FinishReason.STOP)
    finally:
        store.close()


WITHOUT_ROOTS_WAY_IN = """
import ctypes, os, sys
CAPBSET_DROP, DAC_OVERRIDE = 24, 1
if os.getuid() == 0 and ctypes.CDLL(None).prctl(CAPBSET_DROP, DAC_OVERRIDE, 0, 0, 0):
    sys.exit("capabilities cannot be dropped here")
os.execv(sys.executable, [sys.executable, "-m", "app", *sys.argv[1:]])
"""


@pytest.fixture
def read_only_folder(data_dir: Path) -> Iterator[Path]:
    """A data folder with a conversation in it that may be read and not written."""
    store = ConversationStore(data_dir / "ember.db")
    store.add_message(store.create_conversation().id, Role.USER, "safe")
    store.close()
    data_dir.chmod(0o555)
    (data_dir / "ember.db").chmod(0o444)
    yield data_dir
    data_dir.chmod(0o755)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="root keeps its rights elsewhere")
@pytest.mark.parametrize(
    "verb", [["ask", "Hello"], ["delete", "abcd"], ["models", "add", "/"]], ids=lambda verb: verb[0]
)
def test_a_read_only_folder_is_one_sentence_and_nothing_changes(read_only_folder, verb):
    before = {path.name: path.read_bytes() for path in read_only_folder.iterdir()}
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_ROOTS_WAY_IN, "--data-dir", str(read_only_folder), *verb],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr.startswith(f"ember: Ember cannot write to {read_only_folder}")
    assert result.stderr.count("\n") == 1
    assert {path.name: path.read_bytes() for path in read_only_folder.iterdir()} == before
