# Every verb sets up what it needs first (scripts/setup), which is quick when all is there.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-fast verify soak bench bench-traffic ranlab ranlab-full lint doc setup install

# How long `make soak` runs, altogether.
SECONDS ?= 3600

help: ## show this list
	@grep -hE '^[a-z-]+: .*##' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS='	' read -r verb text; do \
		printf '  make %-10s %s\n' "$$verb" "$$text"; done

demo: ## a dApp and xApps on one host, then on two: live table, latencies, faults, accounting (out/demo)
	@scripts/setup base rust python
	@scripts/call demo/run

test: ## all tests: Rust, C, Python, whole system (20 to 30 minutes on two cores once built)
	@scripts/setup base rust python dpdk
	@scripts/test

test-fast: ## unit tests and what else is quick (under 2 minutes)
	@scripts/setup base rust python
	@scripts/test --fast

verify: ## loom models, Miri and fuzz smoke
	@scripts/setup base rust verify
	@scripts/verify

soak: ## the long runs, an hour or SECONDS=n (out/soak.json)
	@scripts/setup base rust python
	@scripts/soak --seconds '$(SECONDS)'

bench: ## the comparison with other systems, about 20 minutes, QUICK=1 under 5 (out/bench)
	@scripts/setup base rust python bench
	@QUICK='$(QUICK)' scripts/call bench/run

bench-traffic: ## what a packet costs in the traffic pipeline, also with stages from shared objects (out/traffic)
	@scripts/setup base rust
	@scripts/call crates/traffic/benches/run

ranlab: ## the RAN lab's experiments on real TCP, as root, under 20 minutes (out/ranlab)
	@scripts/setup base rust python ranlab
	@scripts/call oran/ranlab/run

ranlab-full: ## the same with the papers' phases and repetitions, about two hours
	@scripts/setup base rust python ranlab bpf
	@scripts/call oran/ranlab/run --full

lint: ## format, clippy, licences, Python and shell checks, house rules
	@scripts/setup base rust python lint
	@scripts/lint

doc: ## reference of all crates and the guide (out/doc)
	@scripts/setup base rust python
	@scripts/doc

install: ## programs, C library and Python wheel, below PREFIX=… (~/.local, as root /usr/local)
	@scripts/setup base rust python
	@scripts/install '$(PREFIX)'

setup: ## install everything that the other verbs need
	@scripts/setup base rust python lint verify bench dpdk
