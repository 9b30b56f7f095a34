"""Where completions go, as threads that share a producer ask for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from gantrymq.clients.receipts import PAGE_BITS, Page, Pages

THREADS, PAGES = 4, 1000


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns all the time."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hasty")
def test_threads_that_ask_at_once_get_the_same_page() -> None:
    """Or an answer would go into one, and its sender would wait for it at the other."""
    pages, together = Pages(None), Barrier(THREADS)  # type: ignore[arg-type] # nobody waits here

    def ask() -> list[Page]:
        found = []
        for number in range(PAGES):
            if number % 50 == 0:
                together.wait()
            found.append(pages.page_of(number << PAGE_BITS))
        return found

    with ThreadPoolExecutor(THREADS) as pool:
        first, *others = [asked.result() for asked in [pool.submit(ask) for _ in range(THREADS)]]
    assert all(each is mine for found in others for each, mine in zip(found, first, strict=True))
