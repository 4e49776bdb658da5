# Every action a person takes. `make` alone lists them.

SHELL        := /bin/bash
PORT         ?= 6379
CLUSTER_PORT ?= 7000
SERVER       ?= redis-server
MODULE       := target/release/librlock.so
BARE         := target/release/librlock_bare.so
SECONDS      := 60
SEED         ?= 1
STATES       ?= 1000000
NEED          = SERVER=$(SERVER) ./tools/need
DATA         ?= .run

.DEFAULT_GOAL := help
.PHONY: help build run cluster test test-matrix campaigns mutant-gate check check-crashes check-worlds check-mutants fuzz failover lint bench client-cancel client-faults demo clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PORT=6400 make run              another port than 6379"
	@echo "  SERVER=valkey-server make run   another server than redis-server"

build: ## Build the module: target/release/librlock.so
	@$(NEED) build
	cargo build --release --package rlock
	@# The tests refuse a module that is older than the sources; cargo leaves it alone if only tests have changed.
	@touch $(MODULE)

run: build ## Build, start a server with the module on redis.conf.example, and show what to type
	@$(NEED) server
	@mkdir -p $(DATA)
	@echo
	@echo "Redis with rlock listens on 127.0.0.1:$(PORT), its data is in $(DATA)/. Ctrl-C ends it. In another terminal:"
	@echo
	@echo "  redis-cli -p $(PORT) RLOCK.ACQUIRE orders:42 alice PX 60000"
	@echo "  redis-cli -p $(PORT) RLOCK.ACQUIRE orders:42 bob BLOCK 0      # waits"
	@echo "  redis-cli -p $(PORT) RLOCK.INFO orders:42"
	@echo "  redis-cli -p $(PORT) RLOCK.RELEASE orders:42 alice            # bob gets it"
	@echo
	@sed 's|^loadmodule .*|loadmodule $(CURDIR)/$(MODULE)|' redis.conf.example > $(DATA)/redis.conf
	@exec $(SERVER) $(DATA)/redis.conf --port $(PORT) --dir $(DATA)

cluster: build ## Start a local cluster with the module, three masters and three replicas, and show what to type
	@$(NEED) server
	@SERVER=$(SERVER) MODULE=$(MODULE) PORT=$(CLUSTER_PORT) ./tools/cluster

test: build ## Run every test: the core's, and the module's and the client's on real servers
	@$(NEED) server
	cargo test --package rlock-core --package rlock-bench --package rlock-check
	RLOCK_SERVER=$(SERVER) ./tools/test rlock
	RLOCK_SERVER=$(SERVER) ./tools/test rlock-client

campaigns: build ## The long forms of the random tests and of those that kill (6 minutes)
	@$(NEED) server
	RLOCK_LONG=1 RLOCK_SERVER=$(SERVER) cargo test --package rlock --test integration -- --test-threads=2 \
	  convergence:: damaged_files:: kill:: lazy_free:: listeners_storm:: many_storm:: mutations:: quarantine:: storm::
	RLOCK_DEADLOCK_REQUESTS=1000000 PROPTEST_CASES=20000 cargo test --release --package rlock-core

mutant-gate: ## Let the tests notice a module that ignores when somebody begins to listen
	@$(NEED) build
	@$(NEED) server
	cargo build --package rlock --features mutant-ignores-fork --target-dir target/mutant
	RLOCK_MUTANT=1 RLOCK_MODULE=target/mutant/debug/librlock.so RLOCK_SERVER=$(SERVER) \
	  cargo test --package rlock --test integration -- --test-threads=3 --nocapture listeners_storm::

check: build ## Record what clients see for SECONDS, and prove from it what is promised; SEED=n for other choices
	@$(NEED) server
	cargo run --quiet --release --package rlock-check -- run --module $(MODULE) --server $(SERVER) --seconds $(SECONDS) --seed $(SEED)

check-crashes: build ## The same while the server is killed, stands still, and loses connections
	@$(NEED) server
	cargo run --quiet --release --package rlock-check -- run --module $(MODULE) --server $(SERVER) --seconds $(SECONDS) --seed $(SEED) --crashes

check-worlds: ## Try every order of steps in small worlds, beside oracles: at least STATES states of each
	@$(NEED) build
	RLOCK_WORLDS_STATES=$(STATES) cargo test --release --package rlock-core --lib worlds:: -- --nocapture --test-threads=1

check-mutants: ## Build the module with each fault of check/mutants, and show which check notices it; NAMES=fifo for some
	@$(NEED) build
	@$(NEED) server
	cargo run --quiet --release --package rlock-check -- mutants --server $(SERVER) $(NAMES)

fuzz: ## Feed the core what a fuzzer thinks of, for SECONDS per target: payloads, effects, commands
	@$(NEED) build
	SECONDS_EACH=$(SECONDS) ./tools/fuzz

test-matrix: build ## Run the module's tests on every server that Debian's suites have (10 minutes); SERVERS=valkey-trixie for one
	@$(NEED) server
	cargo test --package rlock --test integration --no-run
	@./tools/matrix $(SERVERS)

failover: build ## Kill a primary under load 20 times, with Sentinel
	@$(NEED) server
	RLOCK_SERVER=$(SERVER) RLOCK_FAILOVERS=20 cargo test --package rlock --test integration -- --nocapture failover::a_primary_that_is_killed

lint: ## Check format and lints
	@$(NEED) build
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --package rlock-client --no-deps

bench: ## Measure the module against its peers, and its longest pauses; SECTION=memory for one part
	@$(NEED) server
	cargo build --release --package rlock --package rlock-bench --package rlock-bench-bare
	target/release/rlock-bench --module $(MODULE) --bare $(BARE) --server $(SERVER) $(SECTION)

client-cancel: build ## Drop 10,000 acquisitions of the client at random moments, and watch its memory
	@$(NEED) server
	RLOCK_SERVER=$(SERVER) RLOCK_CANCEL_ROUNDS=10000 cargo test --release --package rlock-client --test client -- dropping_an_acquisition dropping_acquisitions

client-faults: build ## Let the client's connections be lossy, late, cut at every byte, and partitioned (16 minutes)
	@$(NEED) server
	RLOCK_LONG=1 RLOCK_SERVER=$(SERVER) cargo test --release --package rlock-client --test client -- --test-threads=2 \
	  cut_connections:: faults:: partitions::

demo: ## 1000 clients count to 1000 under one lock
	@$(NEED) server
	cargo build --release --package rlock --package rlock-bench
	target/release/rlock-demo --module $(MODULE) --server $(SERVER)

clean: ## Remove what was built, what `make run` left, and the servers of the matrix
	cargo clean
	rm -rf $(DATA) .servers
