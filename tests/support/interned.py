"""CPython's table of interned strings, as large as it becomes.

Each name in a path is interned, and whoever forgets the path leaves an entry that counts until the
table is made anew: at three times the size of what is alive, once after some 10,000 sessions. That
is about 1 MiB, of the process and not of its sessions.
"""

from __future__ import annotations

import sys
from typing import Final

#: More than the table has entries when it is made anew for the second time.
_STRINGS: Final = 200_000


def settle_interned() -> None:
    """Have the table made anew until its size stays."""
    for number in range(_STRINGS):
        sys.intern(f"settled {number}")
