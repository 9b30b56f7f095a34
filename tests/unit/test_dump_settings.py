"""Where the dump takes a store's sizes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gantrymq.brokerd.batchunits import file_bytes_of
from gantrymq.brokerd.dump.settings import load_settings
from gantrymq.shm.errors import Corrupt, SettingIllegal
from gantrymq.shm.record import Check
from gantrymq.shm.storage import PosixStorage


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture
def storage(store_dir: Path) -> PosixStorage:
    """A store whose files tell other lengths than the defaults."""
    put(store_dir / "commitlog" / f"{0:020d}", bytes(4096))
    put(store_dir / "consumequeue" / "t" / "0" / f"{0:020d}", bytes(2000))
    put(store_dir / "batchconsumequeue" / "b" / "7" / f"{0:020d}", bytes(460))
    return PosixStorage(str(store_dir))


def test_lengths_count_where_nothing_is_given(storage: PosixStorage) -> None:
    settings = load_settings(storage)
    assert settings.given == {}
    assert settings.number("mappedFileSizeCommitLog") == 4096
    assert settings.queue_file_bytes == 2000
    assert settings.number("mapperFileSizeBatchConsumeQueue") == 460
    assert settings.number("mappedFileSizeConsumeQueueExt") == 50_331_648
    assert (len(settings.delays_ms), settings.delays_ms[-1]) == (18, 7_200_000)
    assert settings.check == Check()


def test_an_empty_file_tells_no_length(storage: PosixStorage, store_dir: Path) -> None:
    """A crash may have left it before its length was set; nor does a stray file among folders."""
    put(store_dir / "batchconsumequeue" / "a" / "0" / f"{0:020d}", b"")
    put(store_dir / "batchconsumequeue" / "a.txt", bytes(7))
    assert file_bytes_of(storage) == 460


def test_the_stores_own_file_comes_before_lengths(storage: PosixStorage, store_dir: Path) -> None:
    sizes = {"mapped_file_size_commit_log": 8192, "mapped_file_size_consume_queue": 4000}
    content = {"version": 1, **sizes, "message_delay_level": "1s 2m"}
    put(store_dir / "gantry" / "store.json", json.dumps(content).encode())
    settings = load_settings(storage)
    assert settings.number("mappedFileSizeCommitLog") == 8192
    assert settings.queue_file_bytes == 4000
    assert settings.delays_ms == (1000, 120_000)
    assert "version" not in settings.given
    put(store_dir / "gantry" / "store.json", b"{")
    with pytest.raises(Corrupt, match=r"store\.json"):
        load_settings(storage)


def test_a_settings_file_comes_first(
    storage: PosixStorage, store_dir: Path, tmp_path: Path
) -> None:
    put(store_dir / "gantry" / "store.json", b'{"mapped_file_size_commit_log": 8192}')
    file = tmp_path / "settings"
    file.write_text(
        "# a comment\n\nmappedFileSizeCommitLog = 16384\nmappedFileSizeConsumeQueue=1001\n"
        "forceVerifyPropCRC=TRUE\ncheckCRCOnRecover=false\n"
    )
    settings = load_settings(storage, file)
    assert settings.number("mappedFileSizeCommitLog") == 16384
    assert settings.queue_file_bytes == 1020  # rounded up to whole units
    assert settings.check == Check(body_crc=False, trailer=True)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("no equals sign", "no equals sign"),
        ("mappedFileSizeCommitLog=big", "mappedFileSizeCommitLog"),
        ("messageDelayLevel=1x", "messageDelayLevel"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    storage: PosixStorage, tmp_path: Path, line: str, name: str
) -> None:
    file = tmp_path / "settings"
    file.write_text(line)

    def use() -> None:
        settings = load_settings(storage, file)
        settings.number("mappedFileSizeCommitLog")
        assert settings.delays_ms

    with pytest.raises(SettingIllegal, match=name):
        use()
