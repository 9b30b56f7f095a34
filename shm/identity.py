"""Guards the literal package names: a foreign `workers/` or `clients/` must not stand in for ours.

It looks packages up without importing them, and must stay free of everything but the error tree.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from shm.errors import Incompatible

#: Applications need no more; a foreign `workers/` beside their script does no harm to them.
CLIENT_PACKAGES = ("shm", "clients")
BROKER_PACKAGES = ("shm", "clients", "workers", "brokerd")


def require_siblings(packages: tuple[str, ...] = BROKER_PACKAGES, home: Path | None = None) -> None:
    """Raise `Incompatible`, naming the intruder, unless `packages` lie in one folder, `home`."""
    home = home or Path(__file__).resolve().parent.parent
    for package in packages:
        spec = find_spec(package)
        folders = list(spec.submodule_search_locations or ()) if spec else []
        found = [Path(folder).resolve().parent for folder in folders]
        if not found:
            raise Incompatible(
                f"package {package!r} is missing beside {home}: install gantrymq again",
                package=package,
            )
        if found != [home]:
            raise Incompatible(
                f"package {package!r} was found in {found[0]}, not in {home}: another package "
                "shadows it. Start from another folder, or by the command `gantrymq`",
                package=package,
                found=str(found[0]),
            )
