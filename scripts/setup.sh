#!/bin/sh
# Finds a Python >= 3.11 (installs one where root and apt-get allow it) and hands over to setup.py.
set -eu
cd "$(dirname "$0")/.."

suitable() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    for candidate in "${PYTHON:-python3}" python3.11 python3.12 python3.13 python3.14 python3; do
        if suitable "$candidate"; then echo "$candidate"; return; fi
    done
}

python=$(find_python)
if [ -z "$python" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "setup: no Python >= 3.11 found, installing python3" >&2
    apt-get update -q >&2 && apt-get install -y -q python3 python3-venv >&2
    python=$(find_python)
fi
if [ -z "$python" ]; then
    echo "setup: GantryMQ needs Python 3.11 or newer. Install it (Debian: apt-get install" \
        "python3 python3-venv) or name one: make setup PYTHON=/path/to/python3" >&2
    exit 1
fi
exec "$python" scripts/setup.py
