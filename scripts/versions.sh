# Versions of the tools that scripts/setup installs. Sourced, not run. The stable compiler is in rust-toolchain.toml,
# the Python packages are in scripts/requirements.txt and bench/requirements.txt.
# shellcheck shell=bash disable=SC2034  # the sourcing script uses them

NIGHTLY=nightly-2026-05-20
CARGO_FUZZ_VERSION=0.13.2
CARGO_DENY_VERSION=0.20.2
NATS_SERVER_VERSION=2.15.2
PYTHON_MIN=3.11
