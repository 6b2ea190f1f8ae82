"""What only a machine with an NVIDIA GPU can show: make test-gpu.

Written without one. The same promises as on the CPU, then what is special here: pinned memory, the side stream, two
kinds of memory to be short of, and a restart on the other device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from app.paths import resources_dir
from engine.kv import transfer
from engine.kv.arena import KVArena
from engine.kv.attention import attend_causal
from engine.kv.block_keys import BLOCK_TOKENS
from engine.kv.codecs.encoded import ENCODED_TOKENS
from engine.kv.codecs.registry import INT8
from engine.kv.geometry import KVGeometry, LayerShape
from engine.kv.pressure import Action, PressureKind
from engine.kv.resident import Resident
from engine.memory import read_memory
from engine.protocol.commands import ChatMessage, Generate
from engine.protocol.config import GREEDY
from engine.protocol.events import Failed, Finished, ModelLoaded, PressureActed
from tests.engine.conftest import ColdReply, Engine, build_model, user
from tests.engine.families import BY_NAME
from tests.engine.random_caches import SavedCaches, bits, filled_resident, new_cache, random_arena
from tests.engine.test_cold import resident_of

CUDA = torch.device("cuda")
SMOLLM2 = KVGeometry(tuple(LayerShape(3, 64, 64) for _ in range(30)), torch.bfloat16)
FAMILIES = ("llama", "gemma3_text", "lfm2", "qwen3_next")  # full, sliding, convolution, recurrent
LONG = "the quick brown fox jumps over the lazy dog and tells a story "

StartEngine = Callable[..., Engine]

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU that torch can use"),
    pytest.mark.filterwarnings("default::UserWarning"),  # what torch says about hardware that we have never seen
]


@pytest.fixture(autouse=True)
def all_of_the_device() -> Iterator[None]:
    """Each test begins without what torch kept of the one before, and may lower what torch takes."""
    torch.cuda.empty_cache()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.fixture(scope="module", params=[*FAMILIES, "default model"])
def any_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param != "default model":
        return BY_NAME[request.param].save(tmp_path_factory.mktemp("families") / request.param)
    folder = resources_dir() / "models" / "SmolLM2-135M-Instruct"
    if not (folder / "config.json").is_file():
        pytest.skip("the default model is not in this checkout")
    return folder


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 KB of cache a token and large activations, so that memory can run out with short chats."""
    return build_model(
        tmp_path_factory.mktemp("models") / "wide",
        hidden_size=256,
        intermediate_size=8192,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=64,
        max_position_embeddings=16384,
    )


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[SavedCaches]:
    caches = SavedCaches(tmp_path / "random", SMOLLM2)
    yield caches
    caches.close()


def first_and_second(start: Callable[[], Engine], between: Callable[[], Engine] | None = None) -> Finished:
    """The second reply of a chat, after something happened or nothing."""
    engine = start()
    messages = [user(LONG * 3)]
    engine.reply("a", messages)
    messages.append(user("and then?"))
    return (between() if between is not None else engine).reply("a", messages)


def active_arena(engine: Engine) -> KVArena:
    caches = engine.runtime._caches
    assert caches is not None
    cache = caches.active_cache("a")
    assert cache is not None
    return cache.arena


# -- the same promises as on the CPU ---------------------------------------------------------------------------------


@pytest.mark.native_dtype
def test_the_model_runs_on_the_gpu(start_engine: StartEngine, tiny_model: Path) -> None:
    engine = start_engine()
    loaded = engine.load(tiny_model)
    assert isinstance(loaded, ModelLoaded)
    assert loaded.model.device == "cuda"
    assert len(engine.reply("a", [user("hello")]).token_ids) > 0


def test_resumed_equals_never_closed(start_engine: StartEngine, any_model: Path, tmp_path: Path) -> None:
    never_closed = first_and_second(lambda: start_engine(any_model, kv_dir=tmp_path / "other"))
    resumed = first_and_second(lambda: start_engine(any_model), lambda: start_engine(any_model))
    assert resumed.token_ids == never_closed.token_ids
    assert resumed.statistics.restore_s > 0
    assert resumed.statistics.reused_tokens > 0
    assert resumed.statistics.miss_reason is None


def test_a_chat_on_the_host_comes_back_the_same(start_engine: StartEngine, any_model: Path, tmp_path: Path) -> None:
    expected = first_and_second(lambda: start_engine(any_model, kv_dir=tmp_path / "other"))
    engine = start_engine(any_model, kv_dir=tmp_path / "host")

    def to_host() -> Engine:
        caches = engine.runtime._caches
        assert caches is not None
        engine.report()  # the worker is idle then
        before = caches.device_bytes
        caches._relief.carry_out(Action(PressureKind.TO_HOST, "a", 0, 0.0))
        (row,) = engine.report().conversations
        assert row.place == "cpu"
        assert row.memory_bytes > 0
        assert caches.device_bytes == 0
        (moved,) = [event for event in engine.events if isinstance(event, PressureActed)]
        assert moved.bytes_freed == before > 0
        return engine

    moved = first_and_second(lambda: engine, to_host)
    assert moved.token_ids == expected.token_ids
    assert moved.statistics.miss_reason is None


def test_a_small_device_budget_keeps_the_memory_down_and_the_replies_right(
    start_engine: StartEngine, cold_reply: ColdReply, tiny_model: Path
) -> None:
    """Eight chats of about 200 KB in half a megabyte."""
    budget = 512 * 1024
    engine = start_engine(tiny_model, device_budget_bytes=budget, memory_budget_bytes=4 * budget)
    chats = {str(number): [user(f"{number} {LONG * 12}")] for number in range(8)}
    largest = 0
    for turn in range(3):
        for name, messages in chats.items():
            if turn:
                messages.append(user(f"go on {turn}"))
            engine.reply(name, messages)
            report = engine.report()
            largest = max(largest, *(row.memory_bytes for row in report.conversations))
            assert report.device_bytes <= budget + largest
    actions = {event.action for event in engine.events if isinstance(event, PressureActed)}
    assert actions & {"quantize", "to_host", "drop"}
    for messages in chats.values():
        assert cold_reply(tiny_model, messages[:-1]).text == messages[-1].text


# -- pinned memory and streams ---------------------------------------------------------------------------------------


def test_staging_is_pinned() -> None:
    assert all(tensor.is_pinned() for tensor in transfer.pinned_arena(SMOLLM2, 256).groups)


@pytest.mark.parametrize(("length", "start", "stop"), [(1, 0, 1), (257, 0, 257), (6001, 0, 5990), (6001, 1300, 6001)])
@pytest.mark.parametrize("place", ["active", "parked", "host"])
def test_save_and_restore_are_bit_exact(saved: SavedCaches, length: int, start: int, stop: int, place: str) -> None:
    source = random_arena(length, geometry=SMOLLM2)
    resident, _ = filled_resident(source, length, CUDA)
    if place != "active":
        resident.park(is_to_host=place == "host")
    manifest = saved.save(resident)
    resident.give_up()
    cache = new_cache(stop, CUDA, geometry=SMOLLM2)
    cache.arena.write(0, source.read(0, start))
    cache.publish(list(range(start)))
    restored = saved.persistence.restore(manifest, stop, cache)
    assert (restored.length, restored.miss) == (stop, None)
    assert bits(cache.arena.read(0, stop)) == bits(source.read(0, stop))


def test_a_restore_waits_for_the_work_before_it_and_is_waited_for(saved: SavedCaches) -> None:
    """Memory that a forward pass still writes to is freed and taken for a restore, many times."""
    tokens = 3000
    source = random_arena(tokens, geometry=SMOLLM2)
    resident, _ = filled_resident(source, tokens, CUDA)
    manifest = saved.save(resident)
    expected = [tensor.to(CUDA) for tensor in source.groups]
    matrix = torch.randn(4096, 4096, device=CUDA) / 64
    differences = torch.zeros((), dtype=torch.long, device=CUDA)
    for round_number in range(30):
        busy = new_cache(tokens, CUDA, geometry=SMOLLM2).arena
        for _ in range(10):
            matrix = matrix @ matrix
            for tensor in busy.groups:
                tensor.fill_(round_number)
        del busy, tensor
        cache = new_cache(tokens, CUDA, geometry=SMOLLM2)
        saved.persistence.restore(manifest, tokens, cache)
        for mine, theirs in zip(cache.arena.read(0, tokens), expected, strict=True):
            differences += (mine != theirs).sum()  # no waiting here: the next round begins at once
        del mine, cache
    assert int(differences) == 0


def test_a_restore_while_another_chat_is_being_answered(
    start_engine: StartEngine, cold_reply: ColdReply, wide_model: Path
) -> None:
    """Commands queue up: the next chat's restore begins where the last one's kernels and reading ahead end."""
    first = start_engine(wide_model)
    chats: dict[str, list[ChatMessage]] = {name: [user(f"{name} {LONG * 20}")] for name in "abcd"}
    for name, messages in chats.items():
        first.reply(name, messages)
        messages.append(user("go on"))
    engine = start_engine(wide_model)
    for name, messages in chats.items():
        engine.worker.submit(Generate(name, name, tuple(messages), GREEDY, 4))
    for name, messages in chats.items():
        finished = engine.wait(Finished, Failed, request_id=name)
        assert isinstance(finished, Finished)
        assert finished.statistics.reused_tokens > 0
        assert finished.token_ids == cold_reply(wide_model, messages, max_new_tokens=4).token_ids


@pytest.mark.parametrize("is_direct", [True, False])
def test_blocks_go_to_the_host_and_back_bit_for_bit(is_direct: bool) -> None:
    source = random_arena(1000, geometry=SMOLLM2)
    resident, pool = filled_resident(source, 1000, CUDA)
    resident.park(is_to_host=is_direct)
    if not is_direct:
        assert pool.device_bytes == pool.nbytes > 0
        assert resident.move_to_host() == pool.nbytes
    assert (resident.place, pool.device_bytes) == ("cpu", 0)
    cache = new_cache(1000, CUDA, geometry=SMOLLM2)
    resident.copy_to(cache, 0, 1000)
    assert bits(cache.arena.read(0, 1000)) == bits(source.groups)


def test_parking_to_the_host_takes_next_to_no_device_memory() -> None:
    source = random_arena(8000, geometry=SMOLLM2)
    resident, _ = filled_resident(source, 8000, CUDA)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    resident.park(is_to_host=True)
    assert torch.cuda.max_memory_allocated() - before <= 2 * BLOCK_TOKENS * SMOLLM2.bytes_per_token
    assert torch.cuda.memory_allocated() <= before - 8000 * SMOLLM2.bytes_per_token


def test_saving_takes_no_device_memory(saved: SavedCaches) -> None:
    resident, _ = filled_resident(random_arena(2000, geometry=SMOLLM2), 2000, CUDA)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    saved.save(resident)
    assert torch.cuda.max_memory_allocated() == before


def test_int8_on_the_device_decodes_alike_everywhere_and_within_its_bound() -> None:
    source = random_arena(BLOCK_TOKENS * 4, geometry=SMOLLM2)
    resident, pool = filled_resident(source, BLOCK_TOKENS * 4, CUDA)
    resident.park()
    assert resident.quantize(INT8) > 0
    assert pool.device_bytes == pool.nbytes
    on_device, on_host = KVArena(SMOLLM2, 128, CUDA), KVArena(SMOLLM2, 128, torch.device("cpu"))
    moved = KVArena(SMOLLM2, 128, CUDA)
    for number, block in enumerate(resident.blocks):
        block.copy_to(on_device, number * ENCODED_TOKENS, ENCODED_TOKENS)
        block.copy_to(on_host, number * ENCODED_TOKENS, ENCODED_TOKENS)
        block.to("cpu")
        block.copy_to(moved, number * ENCODED_TOKENS, ENCODED_TOKENS)
    assert bits(on_device.groups) == bits(on_host.groups) == bits(moved.groups)
    eps = torch.finfo(torch.bfloat16).eps
    for exact, decoded in zip(source.groups, on_device.groups, strict=True):
        exact, error = exact.float(), (exact.float() - decoded.cpu().float()).abs().max()
        assert error <= (exact.max() - exact.min()) / 500 + eps * exact.abs().max()


def test_a_quantized_chat_is_saved_from_the_device(saved: SavedCaches) -> None:
    resident, _ = filled_resident(random_arena(640, geometry=SMOLLM2), 640, CUDA)
    resident.park()
    resident.quantize(INT8)
    manifest = saved.save(resident)
    decoded, restored = (new_cache(640, CUDA, geometry=SMOLLM2) for _ in range(2))
    resident.copy_to(decoded, 0, 640)
    assert saved.persistence.restore(manifest, 640, restored).length == 640
    assert bits(restored.arena.read(0, 640)) == bits(decoded.arena.read(0, 640))


def test_memory_that_torch_keeps_is_counted_as_free() -> None:
    before = read_memory("cuda").device_free_bytes
    tensor = torch.empty(256 * 1024**2, dtype=torch.uint8, device=CUDA)
    held = read_memory("cuda").device_free_bytes
    del tensor
    after = read_memory("cuda").device_free_bytes
    assert before is not None
    assert held is not None
    assert after is not None
    assert before - held > 200 * 1024**2
    assert abs(before - after) < 50 * 1024**2  # other programs use the device as well


# -- memory runs out -------------------------------------------------------------------------------------------------


def allow_bytes(count: int) -> None:
    """Let torch take this much of the device and no more."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(count / torch.cuda.get_device_properties(0).total_memory)


def test_memory_running_out_in_a_reply_puts_other_chats_away_and_tries_again(
    start_engine: StartEngine, wide_model: Path, tmp_path: Path
) -> None:
    messages = {name: [user(f"{name} {LONG * 150}")] for name in "ab"}
    expected = start_engine(wide_model, prefill_chunk=16384, kv_dir=tmp_path / "other").reply("b", list(messages["b"]))
    engine = start_engine(wide_model, prefill_chunk=16384)
    torch.cuda.empty_cache()
    weights = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    engine.reply("a", messages["a"])
    needed = torch.cuda.max_memory_allocated() - weights
    chat = engine.report().device_bytes
    assert needed > chat > 50 * 1024**2
    allow_bytes(weights + needed + chat // 2)  # one chat fits, not two
    finished = engine.reply("b", messages["b"])
    assert finished.token_ids == expected.token_ids
    assert any("Memory ran out" in note for note in finished.notes)
    drops = [event for event in engine.events if isinstance(event, PressureActed) and event.action == "drop"]
    assert [event.conversation_id for event in drops] == ["a"]
    torch.cuda.set_per_process_memory_fraction(1.0)
    messages["a"].append(user("go on"))
    assert engine.reply("a", messages["a"]).statistics.reused_tokens > 0  # from disk


def test_memory_that_is_short_with_one_chat_is_told_and_the_next_reply_works(
    start_engine: StartEngine, wide_model: Path
) -> None:
    engine = start_engine(wide_model, prefill_chunk=16384)
    engine.reply("warm", [user("hello")])
    engine.report()
    torch.cuda.empty_cache()
    allow_bytes(torch.cuda.memory_reserved() + 32 * 1024**2)
    failed = engine.fail("b", [user(LONG * 150)])
    assert failed.code == "out_of_memory"
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert len(engine.reply("b", [user(LONG * 150)]).token_ids) > 0


def test_a_model_that_does_not_fit_is_told_and_a_smaller_one_loads(
    start_engine: StartEngine, wide_model: Path, tiny_model: Path
) -> None:
    engine = start_engine(tiny_model)
    allow_bytes(torch.cuda.memory_reserved() + 16 * 1024**2)
    failed = engine.load(wide_model)
    assert isinstance(failed, Failed)
    assert failed.code == "model_needs_memory"
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert isinstance(engine.load(tiny_model), ModelLoaded)


def test_a_chat_that_cannot_be_made_smaller_for_lack_of_memory_is_put_away(
    start_engine: StartEngine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start_engine(tiny_model)
    messages = [user(LONG)]
    engine.reply("a", messages)
    engine.report()
    caches = engine.runtime._caches
    assert caches is not None

    def no_memory(self: Resident, *, is_to_host: bool = False) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Resident, "park", no_memory)
        caches._relief.carry_out(Action(PressureKind.TO_HOST, "a", 0, 0.0))
    assert caches.device_bytes == 0
    messages.append(user("go on"))
    assert engine.reply("a", messages).statistics.reused_tokens > 0


# -- the other device ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("first", "second"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_snapshot_of_one_device_is_restored_on_the_other(
    start_engine: StartEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, first: str, second: str
) -> None:
    model = BY_NAME[family].save(tmp_path / family)
    messages = [user(LONG * 3)]
    monkeypatch.setattr("engine.model.loader.pick_device", lambda: torch.device(first))
    engine = start_engine(model)
    engine.reply("a", messages)
    caches = engine.runtime._caches
    assert caches is not None
    manifest = caches.persistence.catalog.manifest("a")
    assert manifest is not None
    common = len(manifest.token_ids) if not manifest.states else max(ref.position for ref in manifest.states)
    kept = [tensor.cpu() for tensor in active_arena(engine).read(0, common)]
    monkeypatch.setattr("engine.model.loader.pick_device", lambda: torch.device(second))
    engine = start_engine(model)
    messages.append(user("and then?"))
    resumed = engine.reply("a", messages)
    assert resumed.statistics.miss_reason is None
    assert resumed.statistics.cache.place == second
    same = min(resumed.statistics.reused_tokens, common)
    assert same > 0
    assert bits(active_arena(engine).read(0, same)) == bits([tensor[:, :same] for tensor in kept])


# -- how fast --------------------------------------------------------------------------------------------------------


def test_restore_bandwidth(saved: SavedCaches, capsys: pytest.CaptureFixture[str]) -> None:
    """Printed beside what the machine copies at best; a restore must not be slower than reading the tokens again."""
    tokens = 8000
    resident, _ = filled_resident(random_arena(tokens, geometry=SMOLLM2), tokens, CUDA)
    started = time.perf_counter()
    manifest = saved.save(resident)
    saved_s = time.perf_counter() - started
    resident.give_up()
    seconds: list[float] = []
    for _ in range(5):
        cache = new_cache(tokens, CUDA, geometry=SMOLLM2)
        torch.cuda.synchronize()
        started = time.perf_counter()
        saved.persistence.restore(manifest, tokens, cache)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    nbytes = tokens * SMOLLM2.bytes_per_token
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(nbytes, dtype=torch.uint8, device=CUDA)
    torch.cuda.synchronize()
    started = time.perf_counter()
    device.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    copy_s = time.perf_counter() - started
    with capsys.disabled():
        print(
            f"\n{tokens:,} tokens, {nbytes / 1e6:.0f} MB on {torch.cuda.get_device_name()}: saved in {saved_s:.3f} s;"
            f" restored in {seconds[0]:.3f} s, then {min(seconds):.3f} s = {nbytes / min(seconds) / 1e9:.1f} GB/s;"
            f" one pinned copy {copy_s:.3f} s = {nbytes / copy_s / 1e9:.1f} GB/s"
        )
    assert min(seconds) < 1.0


def test_two_buffers_are_enough(saved: SavedCaches) -> None:
    """Restoring again and again takes no more pinned memory than the first time."""
    resident, _ = filled_resident(random_arena(6000, geometry=SMOLLM2), 6000, CUDA)
    manifest = saved.save(resident)
    upload = transfer.ArenaUpload(new_cache(6000, CUDA, geometry=SMOLLM2).arena, 0, 6000)
    staging = sum(tensor.nbytes for buffer in upload._buffers for tensor in buffer.arena.groups)
    upload.finish()
    assert staging <= 2 * transfer.STAGING_BYTES
    for _ in range(3):
        assert saved.persistence.restore(manifest, 6000, new_cache(6000, CUDA, geometry=SMOLLM2)).length == 6000


@pytest.mark.parametrize("form", ["int8", "balanced", "compact", "kvzip", "kvzip-int8"])
def test_attention_over_a_cold_part_on_the_device_is_that_on_the_host(form: str) -> None:
    """In pieces, decoded on the device; the host's own attention is compared with torch's in test_cold."""
    geometry = KVGeometry((LayerShape(2, 32, 32),) * 2, torch.bfloat16)
    source = [tensor.clone() for tensor in random_arena(600, geometry=geometry).groups]
    outs = []
    for device in (torch.device("cpu"), CUDA):
        cache = new_cache(600, device, geometry=geometry)
        moved = [tensor.to(device) for tensor in source]
        working = resident_of(form, moved, geometry, cache).working
        assert working is not None
        query = torch.randn(1, 4, 3, 32, generator=torch.manual_seed(3)).bfloat16().to(device)
        rows = working.length - working.hot_start
        sides = (working.arena.keys[1], working.arena.values[1])
        keys, values = (side[:rows].transpose(0, 1)[None] for side in sides)
        outs.append(attend_causal(query, keys, values, 0.2, working.cold, 1).float().cpu())
    torch.testing.assert_close(outs[1], outs[0], rtol=2e-2, atol=2e-2)
