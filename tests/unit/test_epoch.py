"""What a store remembers between lives: sizes, the count of starts, and `abort`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest

from gantrymq.brokerd import config, epoch
from gantrymq.brokerd.broker import Broker, make_directories
from gantrymq.brokerd.checkpoint import CheckpointFile
from gantrymq.brokerd.doctor import examine
from gantrymq.brokerd.notify import ServiceManager
from gantrymq.brokerd.serve import _close
from gantrymq.brokerd.supervisor import Supervisor
from gantrymq.clients.home import SOCKET_NAME, read_board_file, store_of
from gantrymq.shm.board import attach_board, place_of, unlink_board
from gantrymq.shm.codes import BrokerState, ExitCode
from gantrymq.shm.errors import Corrupt, Incompatible
from gantrymq.shm.indexnote import NOTE_FILE
from gantrymq.shm.jsonsum import with_sum, without_sum
from gantrymq.shm.ranges import OPEN, Ranges, read_ranges
from gantrymq.shm.storage import PosixStorage
from gantrymq.workers.failure import has_failed
from tests.support import otherselves
from tests.support.adversary import Victim
from tests.support.door import open_at, opened
from tests.support.folders import files_below
from tests.support.golden import unpack
from tests.support.simclock import SimClock
from tests.support.trials import mends

NAME = "mapped_file_size_commit_log"


def begin(store: Path, **given: object) -> tuple[epoch.Life, config.Configuration]:
    return epoch.begin(PosixStorage(str(store)), config.load(None, given, {}))


def test_a_store_keeps_its_sizes(store_dir: Path) -> None:
    begin(store_dir, **{NAME: 1 << 20})
    _life, configuration = begin(store_dir)
    assert configuration.settings.mapped_file_size_commit_log == 1 << 20
    assert configuration.origins[NAME] == "the store (gantry/store.json)"
    with pytest.raises(Incompatible, match=NAME) as caught:
        begin(store_dir, **{NAME: 1 << 21})
    assert caught.value.setting == NAME
    assert "1048576" in str(caught.value)


def test_a_store_keeps_the_delay_levels_of_its_last_start(store_dir: Path) -> None:
    """SF-63: queue units were made with them; who makes them again may not be told the setting."""
    name = "message_delay_level"
    begin(store_dir, **{name: "1s 2h"})
    _life, configuration = begin(store_dir)
    assert configuration.settings.message_delay_level == "1s 2h"
    assert configuration.origins[name] == "the store (gantry/store.json)"
    begin(store_dir, **{name: "3s 4h"})
    storage = PosixStorage(str(store_dir))
    found = epoch.settle_sizes(storage, config.load(None, None, {})).settings
    assert found.message_delay_level == "3s 4h"


@mends("S139")
def test_levels_that_a_command_is_given_count_for_more_than_the_stores(store_dir: Path) -> None:
    """Not those of the file or the environment, which are for the next start."""
    name = epoch.LEVELS
    begin(store_dir, **{name: "1s 2s"})
    storage = PosixStorage(str(store_dir))
    given = config.load(None, {name: "1s 5s"}, {})
    assert epoch.settings_of_store(storage, given).message_delay_level == "1s 5s"
    configured = config.load(None, None, {"GANTRYMQ_MESSAGE_DELAY_LEVEL": "1s 5s"})
    assert epoch.settings_of_store(storage, configured).message_delay_level == "1s 2s"


def test_offline_commands_go_by_the_last_life(store_dir: Path) -> None:
    begin(store_dir, enable_consume_queue_ext=True, timer_precision_ms=500)
    storage = PosixStorage(str(store_dir))
    environment = {"GANTRYMQ_TIMER_PRECISION_MS": "100"}
    found = epoch.settings_of_store(storage, config.load(None, None, environment))
    assert (found.enable_consume_queue_ext, found.timer_precision_ms) == (True, 500)
    found = epoch.settings_of_store(storage, config.load(None, {"timer_precision_ms": 100}, {}))
    assert found.timer_precision_ms == 100, "what the command says"
    _life, configuration = begin(store_dir)
    assert configuration.settings.timer_precision_ms == 1000, "a start is told anew"


def test_sizes_of_a_foreign_store_come_from_its_files(store_dir: Path) -> None:
    (store_dir / "commitlog").mkdir()
    (store_dir / "commitlog" / "00000000000000000000").write_bytes(bytes(65_536))
    queue = store_dir / "consumequeue" / "T" / "0"
    queue.mkdir(parents=True)
    (queue / "00000000000000000000").write_bytes(bytes(400))
    _life, configuration = begin(store_dir)
    assert configuration.settings.mapped_file_size_commit_log == 65_536
    assert configuration.settings.mapped_file_size_consume_queue == 400


def test_starts_are_counted_in_the_epoch(store_dir: Path) -> None:
    first, _ = begin(store_dir)
    second, _ = begin(store_dir)
    assert (first.epoch & 0xFFFF, second.epoch & 0xFFFF) == (1, 2)
    assert first.epoch >> 16 != second.epoch >> 16
    assert json.loads((store_dir / "gantry" / "store.json").read_text())["starts"] == 2


@pytest.mark.parametrize("text", ["{", '{"orders": 4}'])
def test_a_store_json_that_is_none_is_named(store_dir: Path, text: str) -> None:
    """Damaged, or another file under its name."""
    (store_dir / "gantry").mkdir()
    (store_dir / "gantry" / "store.json").write_text(text)
    with pytest.raises(Corrupt, match="delete it"):
        begin(store_dir)


def test_abort_holds_the_boot_id_until_a_clean_stop(store_dir: Path) -> None:
    storage = PosixStorage(str(store_dir))
    life, _ = begin(store_dir)
    epoch.mark_running(storage, life, 0)
    epoch.mark_running(storage, life, 0)
    assert (store_dir / "abort").read_text() == epoch.boot_id()
    assert read_ranges(storage) == Ranges(((0, OPEN),), epoch.boot_id(), life.name)
    epoch.mark_stopped(storage, 4096)
    assert not (store_dir / "abort").exists()
    assert read_ranges(storage) == Ranges(((0, 4096),), epoch.boot_id())


def test_the_board_of_a_killed_life_is_found_and_removed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_directories(home)
    life, configuration = begin(store_of(home), profile="temporary")
    assert epoch.find_old_board(home) is None
    board = epoch.create_board(home, life, configuration.settings, SimClock())
    epoch.mark_running(PosixStorage(str(store_of(home))), life, 0)
    epoch.announce(home, life, board)
    assert read_board_file(home)["board"] == board.name
    old = epoch.find_old_board(home)
    assert old is not None
    assert old.epoch == life.epoch
    assert old.memory.readonly
    later, configuration = begin(store_of(home), profile="temporary")
    new = epoch.create_board(home, later, configuration.settings, SimClock())
    epoch.forget_old_boards(home, new.name)
    assert epoch.find_old_board(home) is None
    epoch.mark_running(PosixStorage(str(store_of(home))), later, 0)
    epoch.announce(home, later, new)
    assert epoch.find_old_board(home) is not None
    unlink_board(new.name)


@mends("S314", "S317")
@pytest.mark.parametrize(
    "put_back", ["gone on elsewhere", "as it was", "killed before", "anew", "stopped"]
)
def test_the_board_of_another_life_than_the_stores_last_tells_nothing(
    tmp_path: Path, put_back: str
) -> None:
    """It has the same store's id: that one went on from a copy, or a copy was put back.

    Durable messages were cut off, or a sound store was refused.
    """
    home, copy = tmp_path / "home", tmp_path / "copy"
    make_directories(home)
    store, storage = store_of(home), PosixStorage(str(store_of(home)))
    before, _ = begin(store)
    epoch.mark_running(storage, before, 0)
    if put_back == "as it was":
        epoch.mark_stopped(storage, 0)
    shutil.copytree(store, copy)
    for number in range(2):  # of more starts than there are at the copy
        life, configuration = begin(store)
        if number:
            board = epoch.create_board(home, life, configuration.settings, SimClock())
        epoch.mark_running(storage, life, 0)
    epoch.announce(home, life, board)
    assert epoch.find_old_board(home) is not None
    if put_back == "gone on elsewhere":
        elsewhere = PosixStorage(str(copy))
        other, _ = begin(copy)
        epoch.mark_running(elsewhere, other, 0)
        with contextlib.closing(CheckpointFile(elsewhere, bytes(16), other.epoch)) as checkpoint:
            checkpoint.write(4096, 1, 1, sync=True)
    if put_back == "stopped":  # by a broker that was killed amid its end
        epoch.mark_stopped(storage, 0)
        assert epoch.find_old_board(home) is None
        epoch.mark_running(storage, life, 0)
    shutil.rmtree(store / "gantry")
    (store / "abort").unlink()
    if put_back != "anew":
        shutil.copytree(copy, store, dirs_exist_ok=True)
    begin(store)  # the start that asks; others before it may have been refused
    assert epoch.find_old_board(home) is None
    unlink_board(board.name)


@mends("S154")
def test_a_life_behind_a_kill_goes_on_with_the_wall_of_the_one_before(tmp_path: Path) -> None:
    """It may have been set since, and the scheduler may have died before it noted anything."""
    home, clock = tmp_path / "home", SimClock()
    make_directories(home)
    life, configuration = begin(store_of(home), profile="temporary")
    first = epoch.create_board(home, life, configuration.settings, clock)
    clock.step_wall(7_200_000)
    later, configuration = begin(store_of(home), profile="temporary")
    second = epoch.create_board(home, later, configuration.settings, clock, first)
    assert second.wall_ahead_ns == first.wall_ahead_ns
    assert second.started_ms == first.started_ms + 7_200_000
    epoch.forget_old_boards(home, "")


def test_the_board_that_a_copied_home_names_is_not_its_own(tmp_path: Path) -> None:
    """It tells how far another store's log reaches, and may belong to a broker that runs."""
    home, copy = tmp_path / "home", tmp_path / "copy"
    with opened(home) as door:
        epoch.mark_running(door.broker.env.storage, door.broker.life, 0)
        epoch.announce(home, door.broker.life, door.board)
        shutil.copytree(home, copy, ignore=shutil.ignore_patterns(SOCKET_NAME))
        assert read_board_file(copy)["board"] == door.board.name
        assert epoch.find_old_board(home) is not None
        assert epoch.find_old_board(copy) is None
        epoch.forget_old_boards(copy, "")
        attach_board(door.board.name)


@mends("S190")
@pytest.mark.parametrize("kind", ["folder", "link", "file of another user"])
def test_what_is_only_called_like_a_board_is_left_alone(tmp_path: Path, kind: str) -> None:
    """Anybody may make it in /dev/shm, and maybe nobody else may remove it; `doctor` names it."""
    home = tmp_path / "home"
    with opened(home) as door:
        prefix = door.board.name.rpartition(f"-{door.broker.life.epoch:x}")[0]
        stranger = place_of(f"{prefix}-stranger{config.run_of_tests()}")
        make_stranger(stranger, kind)
        try:
            assert epoch.boards_of(home) == [door.board.name]
            epoch.forget_old_boards(home, door.board.name)
            assert stranger.is_symlink() or stranger.exists()
            findings = examine(home, {"JAVA_HOME": "/none"})
            (found,) = [one for one in findings if str(stranger) in one.found]
            assert found.verdict == "note"
            assert f"of user {stranger.lstat().st_uid} has the name of a board" in found.found
            assert "leaves it alone" in found.mend
        finally:
            stranger.rmdir() if kind == "folder" else stranger.unlink()


def make_stranger(path: Path, kind: str) -> None:
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("nowhere")
    elif otherselves.is_root():
        path.touch()
        os.chown(path, otherselves.OTHER_UID, -1)
    else:
        pytest.skip("gives a file to another user")


def test_a_store_of_the_same_inode_on_another_disk_has_other_boards(tmp_path: Path) -> None:
    """As containers may have it that share /dev/shm, and call it the same."""
    home = tmp_path / "home"
    home.mkdir()

    def work() -> None:
        otherselves.enter_namespaces()
        otherselves.mount("tmpfs", str(home), "mode=700")
        with opened(home) as door:
            inode = store_of(home).stat().st_ino
            otherselves.mount("tmpfs", str(home), "mode=700")  # hides the first
            make_directories(home)
            assert store_of(home).stat().st_ino == inode
            epoch.forget_old_boards(home, "")
            attach_board(door.board.name)

    assert Victim(work).end() == 0


def test_a_store_of_a_newer_version_is_refused(store_dir: Path) -> None:
    """F22: by name, and nothing is written."""
    begin(store_dir)
    path = store_dir / "gantry" / "store.json"
    content = without_sum(json.loads(path.read_text()))
    path.write_text(with_sum(json.dumps({**content, "version": epoch.VERSION + 1})))
    before = path.read_bytes()
    with pytest.raises(Incompatible, match="newer GantryMQ"):
        begin(store_dir)
    assert path.read_bytes() == before


def test_a_changed_digit_of_store_json_is_refused(store_dir: Path) -> None:
    """P13: sizes that are not what was written would make all file names wrong."""
    begin(store_dir)
    path = store_dir / "gantry" / "store.json"
    path.write_bytes(path.read_bytes().replace(b'"starts": 1', b'"starts": 3'))
    with pytest.raises(Corrupt, match="checksum"):
        begin(store_dir)


@mends("S289")
@pytest.mark.parametrize(
    ("lengths", "bytes_then"),
    [
        ([2000, 2000, 2000], 2000), ([20, 2000, 2000], 2000), ([3000, 2000, 2000], 2000),
        ([1001, 2000], 2000), ([500, 2000], 2000), ([10], 6_000_000), ([], 6_000_000),
        ([0, 2000], 2000),
    ],
)  # fmt: skip
def test_a_file_that_was_cut_tells_no_size(
    store_dir: Path, lengths: list[int], bytes_then: int
) -> None:
    """Of a store that another broker has made, which has no `store.json` yet."""
    for number, length in enumerate(lengths):
        folder = store_dir / "consumequeue" / f"topic{number}" / "0"
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").write_bytes(bytes(length))
    _life, configuration = begin(store_dir)
    assert configuration.settings.mapped_file_size_consume_queue == bytes_then


@mends("S285")
@pytest.mark.parametrize(
    ("lengths", "bytes_then"),
    [([], 2048), ([0], 2048), ([34], 2048), ([34, 2048], 2048), ([1500, 2048, 7], 2048)],
)
def test_a_torn_file_of_extensions_is_no_size(
    store_dir: Path, lengths: list[int], bytes_then: int
) -> None:
    """A power cut may leave the first one of all with the end that its last write had."""
    name = "mapped_file_size_consume_queue_ext"
    begin(store_dir, **{name: 2048})
    folder = store_dir / "consumequeue_ext" / "orders" / "0"
    folder.mkdir(parents=True)
    for number, length in enumerate(lengths):
        (folder / f"{2048 * number:020d}").write_bytes(bytes(length))
    _life, configuration = begin(store_dir, **{name: 2048})
    assert getattr(configuration.settings, name) == bytes_then
    if any(lengths):
        _life, configuration = begin(store_dir)
        assert getattr(configuration.settings, name) == bytes_then
        with pytest.raises(Incompatible, match=f"{name} is 2048"):
            begin(store_dir, **{name: 1024})


@mends("S285")
def test_a_rocketmqs_files_of_extensions_may_be_longer(store_dir: Path) -> None:
    """It has made them anew, to its own length."""
    name = "mapped_file_size_consume_queue_ext"
    begin(store_dir, **{name: 2048})
    folder = store_dir / "consumequeue_ext" / "orders" / "0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(bytes(4096))
    _life, configuration = begin(store_dir)
    assert configuration.settings.mapped_file_size_consume_queue_ext == 4096


@mends("S303")
def test_a_first_start_that_is_refused_settles_no_sizes(tmp_path: Path) -> None:
    """The segments are put right then, and it goes by their length."""
    make_directories(tmp_path)
    golden, store = unpack("plain", tmp_path / "golden"), store_of(tmp_path)
    shutil.copytree(golden.store, store, dirs_exist_ok=True)
    segments = sorted((store / "commitlog").iterdir())
    whole = [segment.read_bytes() for segment in segments]
    for segment, content in zip(segments, whole, strict=True):
        segment.write_bytes(content[:20_000])
    with pytest.raises(Corrupt):
        open_at(tmp_path)
    assert not (store / "gantry" / "store.json").exists()
    for segment, content in zip(segments, whole, strict=True):
        segment.write_bytes(content)
    broker = open_at(tmp_path)
    broker.close(clean=False)
    assert broker.board.segment_bytes == golden.segment_bytes


@mends("S304")
@pytest.mark.parametrize("failed", [True, False])
def test_a_failed_store_forgets_its_index_note(tmp_path: Path, failed: bool) -> None:
    """P3: its files are changed in place; of what a failed sync has dropped no start can know."""
    make_directories(tmp_path)
    broker = open_at(tmp_path)
    broker.begin()
    note = store_of(tmp_path) / NOTE_FILE
    note.write_text("{}")
    broker.set_state(BrokerState.FAILED if failed else BrokerState.STOPPED)
    broker.close(clean=False)
    assert note.exists() == (not failed)
    assert epoch.find_old_board(tmp_path) is None


@mends("S313")
@pytest.mark.parametrize("obstacle", ["the note", "the home"])
def test_what_cannot_be_forgotten_is_told_by_the_board(tmp_path: Path, obstacle: str) -> None:
    """As after a kill of the supervisor: a start makes the index anew."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir(mode=0o700)
    make_directories(home)
    broker = open_at(home)
    broker.begin()
    note = store_of(home) / NOTE_FILE
    note.mkdir()
    broker.set_state(BrokerState.FAILED)
    if obstacle == "the home":
        note.rmdir()
        note.write_text("{}")
        home.rename(elsewhere)
        home.symlink_to(home)  # no path leads anywhere
    broker.close(clean=False)
    if obstacle == "the home":
        home.unlink()
        elsewhere.rename(home)
    try:
        board = epoch.find_old_board(home)
        assert board is not None
        assert has_failed(board)
    finally:
        unlink_board(broker.board.name)


@mends("S310")
@pytest.mark.parametrize("replaced", [True, False])
def test_a_store_that_is_replaced_amid_the_last_word_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """By the code of a store that was moved, whatever was written, or could not be."""
    make_directories(tmp_path)
    broker = open_at(tmp_path)
    broker.begin()
    store = store_of(tmp_path)
    say = Broker._write_clean_checkpoint

    def move_and_say(one: Broker) -> None:
        shutil.copytree(store, store.with_name("other"))
        store.rename(store.with_name("moved"))
        if replaced:
            store.with_name("other").rename(store)
        say(one)

    monkeypatch.setattr(Broker, "_write_clean_checkpoint", move_and_say)
    supervisor = Supervisor(broker, ServiceManager(""))
    assert not _close(broker, supervisor, clean=True)
    supervisor.close()
    assert supervisor.exit_code == ExitCode.STORE_BUSY


@mends("S310")
def test_a_store_in_the_place_of_one_that_was_served_is_not_told_of_its_stop(
    tmp_path: Path,
) -> None:
    """Between the last look and the last word, which says that the stop was clean."""
    make_directories(tmp_path)
    broker = open_at(tmp_path)
    broker.begin()
    store = store_of(tmp_path)
    other = store.with_name("other")
    shutil.copytree(store, other)
    before = files_below(other)
    supervisor = Supervisor(broker, ServiceManager(""))
    store.rename(store.with_name("moved"))
    other.rename(store)
    assert not _close(broker, supervisor, clean=True)
    supervisor.close()
    assert supervisor.exit_code == ExitCode.STORE_BUSY
    assert files_below(store) == before
    assert not place_of(broker.board.name).exists()
