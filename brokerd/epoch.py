"""One life of a broker on a store: its number, its board, and what an earlier life left behind."""

from __future__ import annotations

import hashlib
import json
import secrets
import stat
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gantrymq.brokerd.config import DEFAULTS, GIVEN, RULES, Configuration, Settings, run_of_tests
from gantrymq.clients.home import board_file, read_board_file, store_of
from gantrymq.shm import layout, ownfiles
from gantrymq.shm.bitmapnote import DIRECTORY as EXTENSIONS
from gantrymq.shm.board import (
    NAME_PREFIX,
    Board,
    attach_board,
    create_region,
    format_board,
    list_boards,
    unlink_board,
)
from gantrymq.shm.clock import Clock
from gantrymq.shm.errors import BrokerGone, Corrupt, Incompatible, NotPermitted, shown
from gantrymq.shm.fromhandlers import require_ours
from gantrymq.shm.jsonsum import sum_holds, with_sum
from gantrymq.shm.jsontext import parse_object
from gantrymq.shm.lineage import COPIED_AT, FIELD, FILE, Lineage
from gantrymq.shm.ownfiles import replace_whole
from gantrymq.shm.properties import parse_delay_levels
from gantrymq.shm.ranges import EVERYTHING, Ranges, read_ranges, write_ranges
from gantrymq.shm.storage import (
    PosixStorage,
    Storage,
    lengths_below,
    read_file,
    replace_file,
    usual_length,
)
from gantrymq.shm.valueranges import is_offset

ABORT_NAME: Final = "abort"
STORE_FILE: Final = FILE
_ORIGIN: Final = f"the store ({STORE_FILE})"
#: 2: a clean stop ends the ledger with a closing entry, and JSON files have checksums.
#: 3: the ledger says what of it was durable.
#: 4: `gantry/ranges.json` names the life that has opened the last range.
VERSION: Final = 4
#: A store keeps the sizes that it was made with: file names are positions. Where files of each
#: are, so many folders below, and in units of how many bytes.
SIZES: Final = {
    "mapped_file_size_commit_log": ("commitlog", 0, 1),
    "mapped_file_size_consume_queue": ("consumequeue", 2, layout.CQ_UNIT.size),
}
#: Files that a store may have; their length is kept as long as there is one.
_EXTENSIONS: Final = "mapped_file_size_consume_queue_ext"
#: Units of delay levels hold times that were made by it: kept like a size, but may be changed.
LEVELS: Final = "message_delay_level"
#: Other values of it that units in this store may have been made by.
EARLIER_LEVELS: Final = "earlier_delay_levels"
#: Of a store's id (shm/lineage.py).
_ID_BYTES: Final = 16
#: What else a store's last life went by, for who goes on with it or makes files of it again.
USED: Final = "used"
_REMEMBERED: Final = (
    "broker_name",
    "broker_cluster_name",
    "broker_port",
    "enable_consume_queue_ext",
    "enable_calc_filter_bit_map",
    "expect_consumer_num_use_filter",
    "max_error_rate_of_bloom_filter",
    "max_hash_slot_num",
    "max_index_num",
    "timer_precision_ms",
    _EXTENSIONS,
)


@dataclass(frozen=True, slots=True)
class Life:
    """What names this life: a random number with the count of starts in its low 16 bits."""

    epoch: int
    boot_id: str
    levels_before: str = ""  # delay levels of the life before, if they were others
    store_id: str = ""  # shm/lineage.py
    is_first: bool = False  # the store had no `gantry/store.json`

    @property
    def name(self) -> str:
        """As files name it; nothing of one without a board, 0."""
        return _name_of(self.epoch) if self.epoch else ""


def _name_of(epoch: int) -> str:
    return f"{epoch:x}"


def boot_id() -> str:
    """The machine's boot, as the kernel names it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def begin(storage: Storage, configuration: Configuration) -> tuple[Life, Configuration]:
    """Count the start, and settle sizes and delay levels with what the store was made with.

    Raises Incompatible for a size that was asked for and is not the store's.
    """
    stored = read_store_file(storage)
    configuration = _settled(storage, stored, configuration)
    starts = stored.get("starts", 0) + 1
    kept = {name: getattr(configuration.settings, name) for name in (*SIZES, LEVELS)}
    earlier = earlier_levels(stored, kept[LEVELS])
    used = {name: getattr(configuration.settings, name) for name in _REMEMBERED}
    lineage = Lineage.of(stored).begun(stored.get(COPIED_AT), secrets.token_hex(_ID_BYTES))
    content = {
        "version": VERSION, "starts": starts, **kept, EARLIER_LEVELS: earlier, USED: used,
        FIELD: lineage.as_json(),
    }  # fmt: skip
    replace_file(storage, STORE_FILE, with_sum(json.dumps(content)).encode())
    epoch = secrets.randbits(47) << 16 | starts & 0xFFFF
    changed = _changed(stored, kept[LEVELS])
    return Life(epoch, boot_id(), changed, lineage.store, is_first=starts == 1), configuration


def take_back(storage: Storage, life: Life) -> None:
    """Forget what a store's first start has settled, as it is refused: files may be put right yet.

    Their lengths say the sizes of a store that notes none. Raises OSError.
    """
    if life.is_first:
        storage.unlink(STORE_FILE)


def _changed(stored: Mapping[str, Any], now: str) -> str:
    before: str = stored.get(LEVELS, now)
    return "" if before == now else before


def settle_sizes(storage: Storage, configuration: Configuration) -> Configuration:
    """The settings that a start would take: sizes and delay levels of the store; changes nothing.

    Raises Incompatible as a start does.
    """
    return _settled(storage, read_store_file(storage), configuration)


def settings_of_store(storage: Storage, configuration: Configuration) -> Settings:
    """What a stopped store was written with, whatever the next start is configured to do.

    Only what is given with the command counts for more. Raises Incompatible as a start does.
    """
    stored = read_store_file(storage)
    configuration = _settled(storage, stored, configuration)
    used = {LEVELS: stored.get(LEVELS), **stored.get(USED, {})}
    for name in (LEVELS, *_REMEMBERED):
        value = used.get(name)
        if value is not None and configuration.origins[name] != GIVEN:
            configuration = configuration.replaced(name, value, _ORIGIN)
    return configuration.settings


def with_own_levels(storage: Storage, settings: Settings) -> Settings:
    """The same with the delay levels that the store notes, by which its units are judged.

    For who makes units and was given other levels, which only the broker to come is to have.
    """
    levels = read_store_file(storage).get(LEVELS, settings.message_delay_level)
    return replace(settings, message_delay_level=levels)


def _settled(
    storage: Storage, stored: dict[str, Any], configuration: Configuration
) -> Configuration:
    for name in SIZES:
        configuration = _settle(configuration, name, stored.get(name))
    configuration = _settle(configuration, _EXTENSIONS, _extension_bytes(storage, stored))
    levels = stored.get(LEVELS)
    if levels is None or configuration.given(LEVELS):
        return configuration
    return configuration.replaced(LEVELS, levels, _ORIGIN)


def earlier_levels(stored: Mapping[str, Any], now: str) -> list[str]:
    """Delay levels other than `now` that a store's units may have been made by.

    A store that does not say was made with the default.
    """
    if not stored:
        return []
    known = [*stored.get(EARLIER_LEVELS, ()), stored.get(LEVELS, DEFAULTS[LEVELS])]
    return [levels for levels in dict.fromkeys(known) if levels != now]


def read_store_file(storage: Storage) -> dict[str, Any]:
    """What `store.json` says; of a store without it the sizes that its files tell.

    Raises Corrupt, Incompatible.
    """
    if storage.exists(STORE_FILE):
        data = read_file(storage, STORE_FILE)
        try:
            content = parse_object(data)
        except ValueError as error:
            raise _damaged("is no JSON object") from error
        if sum_holds(data) is False:
            raise _damaged("is not what its checksum was made of")
        try:
            Lineage.of(content)
        except ValueError as error:
            raise _damaged(str(error)) from error
        version = content.get("version", VERSION)
        if is_offset(version) and version > VERSION:
            raise Incompatible(
                f"{STORE_FILE} is of version {content['version']}, this program knows {VERSION}:"
                " a newer GantryMQ has written this store; use that one",
                path=STORE_FILE,
            )
        for what, wanted, said in faults_of(content):
            raise _damaged(f"has {what} (but {said}, not {wanted})")
        return content
    found = dict[str, int]()
    for name, (directory, depth, unit) in SIZES.items():
        lengths = filter(RULES[name].has_in_range, lengths_below(storage, directory, depth))
        found[name] = usual_length(lengths, unit)
    return {name: length for name, length in found.items() if length}


def faults_of(content: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What a `store.json` says that none does: what is wrong, what belongs there, what was found.

    Without the sizes it is another file under that name.
    """
    yield from _faults_of_sizes(content)
    for name in ("version", "starts", COPIED_AT):
        if not is_offset(content.get(name, 0)):
            yield f"no number: {name}", "0 or more", shown(content[name])
    earlier = content.get(EARLIER_LEVELS, [])
    for levels in (content.get(LEVELS, ""), *(earlier if isinstance(earlier, list) else [earlier])):
        if not _are_levels(levels):
            yield "no delay levels", "like 1s 5m 2h", shown(levels)
    if not isinstance(content.get(USED, {}), dict):
        yield f"no settings: {USED}", "their names and values", shown(content[USED])


def _faults_of_sizes(content: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name in SIZES:
        if name not in content:
            yield f"no {name}", "a size", str(sorted(content))
        elif type(content[name]) is not int or not RULES[name].has_in_range(content[name]):
            yield f"no size: {name}", RULES[name].allowed, shown(content[name])


def _are_levels(value: object) -> bool:
    try:
        return isinstance(value, str) and min(parse_delay_levels(value), default=0) >= 0
    except (KeyError, ValueError) as error:
        require_ours(error)
        return False


def _damaged(why: str) -> Corrupt:
    return Corrupt(
        f"{STORE_FILE} {why}: delete it, sizes are then taken from the files, and the store gets a"
        " new id",
        path=STORE_FILE,
    )


def _extension_bytes(storage: Storage, stored: Mapping[str, Any]) -> int | None:
    """Length of files of extensions; None if there are none, so that it may be chosen.

    A power cut may have left one shorter: what our last life went by is noted. A RocketMQ's may be
    longer.
    """
    lengths = list(lengths_below(storage, EXTENSIONS, 2))
    longest = max(filter(RULES[_EXTENSIONS].has_in_range, lengths), default=0)
    noted = stored.get(USED, {}).get(_EXTENSIONS)
    if not lengths or not is_offset(noted):
        return longest or None
    return max(longest, int(noted))


def _settle(configuration: Configuration, name: str, stored: int | None) -> Configuration:
    wanted = getattr(configuration.settings, name)
    if stored is None or stored == wanted:
        return configuration
    if configuration.given(name):
        raise Incompatible(
            f"{name} is {stored} in this store, and {wanted} was asked for "
            f"({configuration.origins[name]}): leave the setting out, or use another store",
            setting=name,
        )
    return configuration.replaced(name, stored, _ORIGIN)


def find_old_board(home: Path) -> Board | None:
    """The board of a life that a kill has ended since the machine was booted; read-only.

    `run/board` of a home that was copied, or whose store was made anew or put back, names the board
    of another store, or of an earlier or a later life than the store's last: that one tells
    nothing. Raises Corrupt.
    """
    note = read_board_file(home)
    name = note.get("board", "")
    if not name.startswith(_board_prefix(home)) or note.get("boot_id") != boot_id():
        return None
    try:
        board = attach_board(name)
    except (BrokerGone, Incompatible, NotPermitted):
        return None
    return board if is_of_last_life(PosixStorage(str(store_of(home))), board) else None


def is_of_last_life(storage: Storage, board: Board) -> bool:
    """Whether the life of a board is the last one that has begun on the store as it is now."""
    last = read_ranges(storage)
    return last is not None and last.life == _name_of(board.epoch)


def forget_old_boards(home: Path, keep: str) -> None:
    """Remove every board of this store but one; the store's lock is held, so nobody uses them."""
    for name in boards_of(home):
        if name != keep:
            unlink_board(name)


def boards_of(home: Path) -> list[str]:
    """Names of the boards of this store, of whatever life. The store is there."""
    return [name for name, _owner, is_board in _named_as_boards(home) if is_board]


def namesakes_of(home: Path) -> dict[str, int]:
    """What has the name of a board of this store, and is none: names and owners.

    Anybody may make such a thing in /dev/shm, and nobody else can remove it there; a broker leaves
    it alone.
    """
    return {name: owner for name, owner, is_board in _named_as_boards(home) if not is_board}


def _named_as_boards(home: Path) -> Iterator[tuple[str, int, bool]]:
    """Name, owner, and whether a broker can have made it: it was the store's owner.

    (Or this user, if the store has been given away since.)
    """
    makers = (store_of(home).stat().st_uid, ownfiles.user())
    for name, status in list_boards(_board_prefix(home)).items():
        is_board = stat.S_ISREG(status.st_mode) and status.st_uid in makers
        yield name, status.st_uid, is_board


def wall_ahead_ns(clock: Clock, old_board: Board | None) -> int:
    """How far the wall is ahead of CLOCK_BOOTTIME, or was when a life that was killed began.

    The wall may have been set since, and its scheduler may have died before it noted that: who
    takes the wall for even since the boot would deliver what was parked before too early.
    """
    if old_board is not None:
        return old_board.wall_ahead_ns
    return clock.wall_ms() * 1_000_000 - clock.monotonic_ns()


def create_board(
    home: Path, life: Life, settings: Settings, clock: Clock, old_board: Board | None = None
) -> Board:
    """Make the board of this life; not yet announced. `old_board`: of one that was killed."""
    name = f"{_board_prefix(home)}{life.name}{run_of_tests()}"
    size = layout.board_bytes(settings.topics_max, settings.board_queues_max)
    memory = create_region(name, size)
    try:
        format_board(
            memory,
            epoch=life.epoch,
            boot_id=uuid.UUID(life.boot_id).bytes,
            topics_max=settings.topics_max,
            queues_max=settings.board_queues_max,
            segment_bytes=settings.mapped_file_size_commit_log,
            cq_bytes=settings.mapped_file_size_consume_queue,
            started_ms=clock.wall_ms(),
            wall_ahead_ns=wall_ahead_ns(clock, old_board),
        )
        return Board(memory, name)
    except BaseException:
        unlink_board(name)
        raise


def announce(home: Path, life: Life, board: Board) -> None:
    """Name the board in `run/board`, atomically."""
    content = {"board": board.name, "boot_id": life.boot_id, "epoch": life.name}
    replace_whole(board_file(home), json.dumps(content).encode())


def mark_running(storage: Storage, life: Life, end: int) -> None:
    """Write `abort` with our boot id, which a RocketMQ would overwrite; then open our range.

    `end` is the log's. Between the two steps the last range is closed, as recovery left it: what
    might lie behind it would count as another broker's.
    """
    if storage.exists(ABORT_NAME):
        storage.unlink(ABORT_NAME)
    file = storage.create(ABORT_NAME)
    try:
        file.write_at(life.boot_id.encode(), 0)
        file.sync()
    finally:
        file.close()
    storage.sync_directory("")
    known = read_ranges(storage) or Ranges()
    write_ranges(storage, known.opened(end, life.boot_id, life.name))


def mark_stopped(storage: Storage, end: int) -> None:
    """Close our range at the log's end, then remove `abort`: the stop was clean."""
    known = read_ranges(storage) or EVERYTHING
    write_ranges(storage, known.ended(end))
    storage.unlink(ABORT_NAME)
    storage.sync_directory("")


def _board_prefix(home: Path) -> str:
    """One store, one prefix, whatever its home is called; another inode is another store.

    The device counts too: two containers with one /dev/shm may have stores of the same inode.
    """
    store = store_of(home).stat()
    identity = f"{store.st_dev}:{store.st_ino}"
    return f"{NAME_PREFIX}{hashlib.sha256(identity.encode()).hexdigest()[:12]}-"
