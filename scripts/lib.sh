# What every script here starts with: the repository's root, the PATH with the project's tools, messages.
# Sourced, not run.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/versions.sh
. "$ROOT/scripts/versions.sh"
VENV=$ROOT/.venv
# Tools that are built from source live in the checkout, so that setting up changes nothing else of the user's.
TOOLS=$ROOT/build/tools
export ROOT VENV TOOLS
export PATH="$VENV/bin:$TOOLS/bin:${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
export PYTHONPATH="$ROOT/scripts${PYTHONPATH:+:$PYTHONPATH}"
# The scripts leave no bytecode beside the sources.
export PYTHONDONTWRITEBYTECODE=1

say() { printf '%s: %s\n' "${SCRIPT:-$(basename "$0")}" "$*"; }
warn() { printf '%s: %s\n' "${SCRIPT:-$(basename "$0")}" "$*" >&2; }
die() { warn "$@"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# The nightly toolchain that verification uses: the pinned one, else (already warned about) whatever `nightly` is.
nightly() {
    if rustup toolchain list 2>/dev/null | grep -q "^$NIGHTLY"; then echo "$NIGHTLY"; else echo nightly; fi
}
