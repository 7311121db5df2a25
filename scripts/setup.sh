# Sourced by scripts/run and scripts/test: makes .venv once and puts it on the PATH.
#   setup [EXTRA]     installs the package, with an extra of setup.cfg if one is named, at the
#                     versions of scripts/constraints.txt; does nothing if that is done already
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

setup() {
    local want=".${1:+[$1]}" stamp="$root/.venv/installed-${1:-base}"
    # What was installed is out of date when one of these files has changed since.
    local wanted
    wanted=$(cd "$root" && cat setup.cfg pyproject.toml scripts/constraints.txt | cksum)
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        local python=${PYTHON:-python3}
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
            local found
            found=$("$python" --version 2>&1)
            echo "fedsuv_plugin needs Python 3.10 or newer; set PYTHON to one (found: $found)" >&2
            exit 2
        }
        echo "setting up .venv (once; torch is large) ..." >&2
        [ -x "$root/.venv/bin/python" ] || "$python" -m venv "$root/.venv"
        # The constraints are the versions that the project is tested with.
        (cd "$root" && .venv/bin/python -m pip install -q --disable-pip-version-check \
            -c scripts/constraints.txt -e "$want") || exit 1
        echo "$wanted" > "$stamp"
    fi
    export PATH="$root/.venv/bin:$PATH"
}
