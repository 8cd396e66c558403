# Sourced by the scripts next to it: provides ROOT, VENV and ensure_venv.
# shellcheck shell=bash

ROOT="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
VENV="$ROOT/.venv"
export PIP_DISABLE_PIP_VERSION_CHECK=1

_say() { printf '%s\n' "$*" >&2; }

# What an installation depends on; another checkout's path in it means that .venv was copied.
_wanted() {
    printf '%s\n' "$ROOT"
    grep -h '^__version__' "$ROOT/echomq_tasks/__init__.py" || true
    cat "$ROOT/setup.cfg" "$ROOT/pyproject.toml" | cksum
}

# Run a command quietly; show what it said only when it fails.
_quietly() {
    local output
    if ! output="$("$@" 2>&1)"; then
        _say "$output"
        return 1
    fi
}

_create() {
    local python="${PYTHON:-python3}"
    command -v "$python" >/dev/null || {
        _say "No '$python' found. Install Python 3.11 or newer, or name one: PYTHON=/path/to/python3.11 $0"
        return 1
    }
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        _say "Python 3.11 or newer is needed, and '$python' is $("$python" --version 2>&1). Name another: PYTHON=/path/to/python3.11 $0"
        return 1
    }
    _say "Creating $VENV"
    _quietly "$python" -m venv --clear "$VENV" || {
        _say "'$python -m venv' failed. On Debian and Ubuntu it needs the package python3-venv."
        return 1
    }
}

_install() {
    local extras="$1" stamp="$VENV/.installed-$1"
    # A copied .venv still names the original in its scripts, so it is made anew.
    if [[ -f "$VENV/.checkout" && "$(cat "$VENV/.checkout")" != "$ROOT" ]] || ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
        _create || return 1
    fi
    printf '%s\n' "$ROOT" >"$VENV/.checkout"
    # Whatever was there is in doubt until the end of this installation.
    rm -f "$VENV"/.installed-*
    _say "Installing echomq_tasks[$extras] into $VENV"
    _quietly "$VENV/bin/python" -m pip install --quiet --editable "$ROOT[$extras]" || return 1
    _wanted >"$stamp"
}

_installed() {
    [[ -x "$VENV/bin/python" && -f "$VENV/.installed-$1" && "$(_wanted)" == "$(cat "$VENV/.installed-$1")" ]]
}

# ensure_venv EXTRAS: make $VENV hold this checkout with these extras; does nothing when it already does.
ensure_venv() {
    local extras="$1" status=0
    # The lock is on this file, so that it needs no file of its own and ends with the process that holds it.
    exec 9<"$ROOT/scripts/_venv.sh"
    if command -v flock >/dev/null && ! flock --nonblock 9; then
        _say "Waiting for another script that prepares $VENV"
        flock 9
    fi
    # The extra "dev" contains all the others.
    if ! _installed dev && ! _installed "$extras"; then
        _install "$extras" || status=$?
    fi
    # Closed before anything else starts: a server left behind must not hold the lock.
    exec 9<&-
    return "$status"
}
