# Sourced by scripts/run and scripts/test: makes .venv once and puts it on the PATH.
#   setup [EXTRA]     install the package, with an extra of setup.cfg, pinned by scripts/constraints.txt
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

setup() {
    local want=".${1:+[$1]}" stamp="$root/.venv/installed-${1:-base}"
    local wanted; wanted=$(cd "$root" && cat setup.cfg pyproject.toml scripts/constraints.txt | cksum)
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        local python=${PYTHON:-python3}
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
            echo "fedsuv_plugin needs Python 3.10 or newer; set PYTHON to one (found: $("$python" --version 2>&1))" >&2
            exit 2
        }
        echo "setting up .venv (once; torch is large) ..." >&2
        [ -x "$root/.venv/bin/python" ] || "$python" -m venv "$root/.venv"
        # Without the pin an unpinned torch would bring gigabytes of GPU libraries.
        (cd "$root" && .venv/bin/python -m pip install -q --disable-pip-version-check \
            -c scripts/constraints.txt -e "$want") || exit 1
        echo "$wanted" > "$stamp"
    fi
    export PATH="$root/.venv/bin:$PATH"
}
