"""What is asked for in one look of the supervisor, in any order, on any disk: it never ends it."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from gantrymq.brokerd import config
from gantrymq.brokerd.children import Outbox, Resident, socket_pair
from gantrymq.brokerd.metadata import LEAVING_MAX, Metadata
from gantrymq.brokerd.supervisor import CREWS
from gantrymq.brokerd.vacancies import LOOK_NS, Vacancies
from gantrymq.shm import layout, wire
from gantrymq.shm.board import Board
from gantrymq.shm.clock import SystemClock
from gantrymq.shm.errors import GantryError
from gantrymq.workers.channel import EpollWaiter, SocketSessionTable
from gantrymq.workers.host import Host
from tests.support.door import Door, error_of, opened
from tests.support.faults import Fault
from tests.support.simdisk import Disk
from tests.support.simstorage import SimStorage
from tests.support.trials import mends
from tests.unit.test_metadata import Found, make_board

BEFORE: Final = ("empty", "strict", "there", "there, used", "deleted", "deleted, used")

Ask = Callable[[Metadata], object]

RETRY, DEAD, ORDERS = "%RETRY%g", "%DLQ%g", "orders"


def _leave(metadata: Metadata) -> None:
    metadata.leave(metadata.begin_leaving(()))


def _asks() -> dict[str, Ask]:
    """Each of them as the desk or a note of an agent asks for it; a callable is an answer."""
    asks: dict[str, Ask] = {
        "delete group": lambda m: m.plan_delete_group("g"),
        "leave": _leave,
    }
    for name in (RETRY, DEAD, ORDERS):
        asks[f"open {name}"] = lambda m, name=name: m.plan_open(name, create=True, of_member=True)  # type: ignore[misc]
        asks[f"look for {name}"] = lambda m, name=name: m.plan_open(name, create=False)  # type: ignore[misc]
        asks[f"delete {name}"] = lambda m, name=name: m.plan_delete(name)  # type: ignore[misc]
        asks[f"have {name}"] = lambda m, name=name: m.have(name)  # type: ignore[misc]
    for queues in (2, 3):
        asks[f"create {queues}"] = lambda m, n=queues: m.plan_create(ORDERS, n, "written")  # type: ignore[misc]
    return asks


ASKS: Final = _asks()
#: What fails there again and again.
DISKS: Final = {
    "sound": (),
    "full": (Fault(1, error=errno.ENOSPC, persistent=True),),
    "broken": (Fault(1, error=errno.EIO, persistent=True),),
    "broken list": (Fault(1, error=errno.EIO, persistent=True, under="gantry/"),),
}


def _made(metadata: Metadata, board: Board, *, used: bool) -> None:
    for name in (RETRY, DEAD, ORDERS):
        slot = metadata.open(name, create=True, of_member=True)
        if used:
            board.set_word(board.queue_at(slot.queue_base) + layout.QUEUE_NEXT_OFFSET, 1)


def _opened(disk: str, before: str, topics_max: int) -> tuple[SimStorage, Metadata, Board]:
    storage, board = SimStorage(Disk()), make_board(topics_max)
    settings = config.load(None, {"auto_create_topic_enable": before != "strict"}, {}).settings
    metadata = Metadata(storage, settings, SystemClock())
    metadata.load()
    metadata.publish(board, Found())
    if before not in ("empty", "strict"):
        _made(metadata, board, used="used" in before)
    if before.startswith("deleted"):
        for name in (RETRY, DEAD, ORDERS):
            metadata.delete(name)
    storage.faults.faults = DISKS[disk]
    return storage, metadata, board


def _answered(answer: object) -> None:
    answers = answer.values() if isinstance(answer, Mapping) else [answer]
    for each in answers:
        if callable(each):
            with suppress(GantryError):
                each()


def _all_in_one_look(metadata: Metadata, asks: tuple[str, ...]) -> None:
    """As the control server has them carried out: asked, committed once, answered."""
    owed: list[object] = []
    for ask in asks:
        with suppress(GantryError, OSError):  # told to the asker, or of the note
            owed.append(ASKS[ask](metadata))
    metadata.commit()
    for answer in owed:
        _answered(answer)


def _require_sound(metadata: Metadata, board: Board) -> None:
    names = {topic.name for topic in board.topics()}
    for name in (RETRY, DEAD, ORDERS):
        try:
            assert metadata.open(name, create=False).name in names
        except GantryError:
            continue
    assert board.half(layout.BOARD_TOPIC_COUNT) <= board.topics_max


@mends("S44")
@pytest.mark.parametrize(
    ("disk", "before", "topics_max"),
    [
        *itertools.product(DISKS, BEFORE, [16]),
        *[("sound", "empty", 1), ("sound", "strict", 1), ("sound", "there", 3)],
    ],
)
def test_two_requests_of_one_look_end_no_broker(disk: str, before: str, topics_max: int) -> None:
    """The supervisor catches what is meant for one asker, and nothing else."""
    if topics_max < 16 and (
        disk != "sound" or before not in ("empty", "strict", "there")[:topics_max]
    ):
        return
    for pair in itertools.product(ASKS, repeat=2):
        storage, metadata, board = _opened(disk, before, topics_max)
        try:
            _all_in_one_look(metadata, pair)
            storage.faults.faults = ()
            _all_in_one_look(metadata, pair)
            _require_sound(metadata, board)
        except Exception as error:
            raise AssertionError(f"{pair}: {error!r}") from error


@mends("S45")
@pytest.mark.parametrize("before", ["empty", "strict"])
def test_a_topic_that_a_parked_record_names_waits_for_room_on_the_disk(before: str) -> None:
    storage, metadata, board = _opened("full", before, 16)
    metadata.have(ORDERS)
    storage.faults.faults = ()
    metadata.have(ORDERS)
    assert [topic.name for topic in board.topics()] == [ORDERS]


@mends("S45")
def test_a_topic_that_a_parked_record_names_takes_no_place_of_another() -> None:
    _storage, metadata, board = _opened("sound", "empty", 1)
    answer = metadata.plan_create("last", 1, "written")
    metadata.have(ORDERS)
    metadata.commit()
    assert answer().name == "last"
    assert [topic.name for topic in board.topics()] == ["last"]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with opened(tmp_path / "home") as door:
        yield door


@mends("S44")
def test_a_group_is_deleted_amid_its_first_members_start(door: Door) -> None:
    """Both are heard in one look: what a first push consumer asks last, and `group delete`."""
    with door.connect() as one, door.connect() as other:
        for channel in (one, other):
            door.attach(channel, kind="look")
        wire.send(one, wire.OpenTopic(DEAD, create=True, of_member=True))
        answer = door.ask(other, wire.DeleteGroup("g"))
        assert answer is not None
        assert answer[0] == wire.GroupDeleted(known=False, topics=[DEAD])


def _fail(*_arguments: object) -> Sequence[object]:
    raise KeyError("a defect of ours")


@mends("S287")
def test_a_look_for_topics_that_may_leave_is_short_and_seldom(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics that a session has open do not hurry it; those that it lets go of leave in parts."""
    broker, asked, told = door.broker, list[int](), list[wire.Frame]()
    metadata, names = broker.metadata, [f"going{number}" for number in range(2 * LEAVING_MAX + 1)]
    with door.connect() as channel:
        session = broker.sessions.get(door.attach(channel).session)
        assert session is not None
        for plan in (lambda name: metadata.plan_create(name, 1, "written"), metadata.plan_delete):
            answers = [plan(name) for name in names]
            metadata.commit()
            session.opened.update(answer().slot for answer in answers)
        opened = broker.sessions.opened

        def counted() -> set[int]:
            asked.append(1)
            return opened()

        monkeypatch.setattr(broker.sessions, "opened", counted)
        vacancies = Vacancies(metadata, broker.sessions, told.append)
        for _ in range(9):
            vacancies.look((), 1)
        assert (len(asked), told) == (1, [])
        session.opened.clear()
        for passes in (1, 2, 3):
            vacancies.look((), 1 + passes * LOOK_NS)
            leaving = [topic.name for topic in broker.board.topics() if topic.leaving]
            assert len(leaving) == (1 if passes == 3 else LEAVING_MAX)
            vacancies.look((), 1 + passes * LOOK_NS)
        assert len(told) == 3
        assert not metadata.departing


@mends("S44")
def test_a_defect_that_one_request_meets_ends_no_other(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P12."""
    monkeypatch.setattr(door.broker.metadata, "plan_delete_group", _fail)
    with door.connect() as channel:
        door.attach(channel, kind="look")
        assert error_of(door.ask(channel, wire.DeleteGroup("g"))) == "GantryError"
        assert "a defect of ours" in door.log.getvalue()
        assert isinstance((door.ask(channel, wire.ShowSettings()) or ((), ()))[0], wire.Settings)


@mends("S44")
def test_a_defect_that_an_agents_news_meets_ends_nobody(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door.broker.metadata, "have", _fail)
    ours, theirs = socket_pair()
    roles = CREWS["temporary"][0]
    with ours, theirs:
        host = Host([], SocketSessionTable(theirs), EpollWaiter([], [theirs]))
        wire.send(theirs, wire.Note("warning", wire.TOPIC_WANTED, {"topic": "gone"}))
        door.supervisor._hear(Resident(roles, Outbox(ours), host, 0))
    assert "note_failed" in door.log.getvalue()
    assert not door.supervisor.finished
