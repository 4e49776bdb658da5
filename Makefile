# Every action a person takes. `make` alone lists them.

SHELL        := /bin/bash
PORT         ?= 6379
CLUSTER_PORT ?= 7000
SERVER       ?= redis-server
MODULE       := target/release/librlock.so
BARE         := target/release/librlock_bare.so
SECONDS      := 60
MINUTES      ?= 60
SEED         ?= 1
STATES       ?= 1000000
# The checker and the mutation tester. Where another build of them is there already, and a slow one will do: CHECK=target/debug/rlock-check
CHECK        ?= cargo run --quiet --profile checker --package rlock-check --
MUTATE       ?= cargo run --quiet --profile checker --package rlock-mutate --
OPERATIONS   ?= 10000000
# Of `make coverage`: what the core's own tests are to reach, and the files that are tests themselves.
LINES        ?= 97
TEST_CODE     = /tests/|/tests\.rs|strategies\.rs
# Of `make mutants`: whose code is changed (core, module or client), for how long each change is shown to tests that reach it, and how many tests run
# at the same time: most of them wait.
PACKAGE      ?= core
CHANGE_SECONDS ?= 30
JOBS         ?= 8
# Of `make bench-peers`: how often each peer is measured, for how long in each cell, and where the page goes.
ROUNDS       ?= 5
CELL_SECONDS ?= 1
REPORT       ?= docs/benchmarks.md
# Where what one server carries is filled in, by it and by `make bench-fleet`; SIZING= leaves the page alone.
SIZING       ?= docs/operations.md
NEED          = SERVER=$(SERVER) ./scripts/need
DATA         ?= .run
# Where `make install` puts the module: Debian's unit for redis-server lets a server run code from /usr/lib and /lib only.
PREFIX       ?= /usr
DESTDIR      ?=
MODULES      := $(DESTDIR)$(PREFIX)/lib/redis/modules
# What has to be installed for a target: to build, and for those that start one, a server.
NEEDS         = build

# What `make test` runs beside scripts/test: tests that need no server. Those of the module can only be loaded by one.
OTHER_TESTS   = --exclude rlock --exclude rlock-bench-bare --lib --bins \
                $(patsubst %.rs,--test %,$(notdir $(wildcard core/tests/*.rs verify/check/tests/*.rs)))

# Tests in which nobody waits, or only blocked.
NOBODY_WAITS := at_rest bad_input configuration convergence counter damaged_files effects effects_of_hand_overs fair_leaving fair_order \
                kill lazy_free listeners listeners_storm many_storm mutations notify notify_cluster notify_faults once payloads quarantine readme storm token_limits

# Further arguments of the tests when they run once more with the other way of waiting, as --skip ::timed_.
SECOND_WAY   ?=

# The Debian package: its revision, and where it goes.
REVISION     ?= 1
DEBS         ?= target/debian
# Who builds the package answers for it: DEBFULLNAME and DEBEMAIL, as for Debian's own tools, or else git's user.
MAINTAINER    = $${DEBFULLNAME:-$$(git config user.name || id -un)} <$${DEBEMAIL:-$$(git config user.email || echo $$(id -un)@$$(hostname))}>
# Its own copy beside what it builds, if there is none on the machine: `cargo install` would put it among the user's programs.
CARGO_DEB     = $(shell command -v cargo-deb || echo target/cargo-tools/bin/cargo-deb)

.DEFAULT_GOAL := help
# Every target that `make help` lists.
.PHONY: free-port $(shell sed -n 's/^\([a-z-]*\):.*\#\# .*/\1/p' $(MAKEFILE_LIST))

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PORT=6400 make run              another port than 6379"
	@echo "  SERVER=valkey-server make run   another server than redis-server"
	@echo "  PREFIX=/opt/redis make install  another place than /usr/lib/redis/modules"

run cluster test campaigns test-matrix check check-crashes failover client-native-tls client-cancel client-faults test-faults soak picture: NEEDS = build server
deb: NEEDS = build deb

build: ## Build the module: target/release/librlock.so
	@$(NEED) $(NEEDS)
	cargo build --release --package rlock
	@# The tests refuse a module that is older than the sources; cargo leaves it alone if only tests have changed.
	@touch $(MODULE)

# Not over what is there: a running server goes on with the file that it has mapped, and a restarted one takes the new one.
install: ## Put the built module where Debian's redis-server can load it; PREFIX and DESTDIR as usual
	@[ -e $(MODULE) ] || { echo "rlock: there is no $(MODULE) yet: make build" >&2; exit 1; }
	install -d -m 755 $(MODULES)
	install -m 755 $(MODULE) $(MODULES)/librlock.so.new
	mv -f $(MODULES)/librlock.so.new $(MODULES)/librlock.so
	@echo "In the server's configuration: loadmodule $(PREFIX)/lib/redis/modules/librlock.so"

uninstall: ## Remove what `make install` has put there
	rm -f $(MODULES)/librlock.so

run: free-port build ## Build, start a server with the module on redis.conf.example, and show what to type
	@mkdir -p $(DATA)
	@echo
	@echo "Redis with rlock listens on 127.0.0.1:$(PORT), its data is in $(DATA)/. Ctrl-C ends it. In another terminal:"
	@echo
	@echo "  redis-cli -p $(PORT) RLOCK.ACQUIRE jobs:1 alice PX 60000"
	@echo "  redis-cli -p $(PORT) RLOCK.ACQUIRE jobs:1 bob BLOCK 0      # waits"
	@echo "  redis-cli -p $(PORT) RLOCK.INFO jobs:1"
	@echo "  redis-cli -p $(PORT) RLOCK.RELEASE jobs:1 alice            # bob gets it"
	@echo
	@sed 's|^loadmodule .*|loadmodule $(CURDIR)/$(MODULE)|' redis.conf.example > $(DATA)/redis.conf
	@exec $(SERVER) $(DATA)/redis.conf --port $(PORT) --dir $(DATA)

# Before anything takes time, and before anything is promised.
free-port:
	@! (exec 3<>/dev/tcp/127.0.0.1/$(PORT)) 2>/dev/null || \
	  { echo "rlock: something listens on port $(PORT) already. Take another one: PORT=6400 make run" >&2; exit 1; }

cluster: build ## Start a local cluster with the module, three masters and three replicas, and show what to type
	@SERVER=$(SERVER) MODULE=$(MODULE) PORT=$(CLUSTER_PORT) ./scripts/cluster

test: build ## Run every test: the core's, and the module's, the client's and the tool's on real servers
	@echo "On two cores it takes about twenty minutes with the build: first the core, then the module on servers in two ways of waiting, last the client and the tool."
	cargo test-all $(OTHER_TESTS)
	cargo test-all --doc
	RLOCK_SERVER=$(SERVER) ./scripts/test integration
	@# Once more, with waiters that are answered on a channel in place of blocked ones.
	RLOCK_WAIT_BY_NOTIFY=1 RLOCK_SERVER=$(SERVER) ./scripts/test integration $(NOBODY_WAITS:%=--skip %::) $(SECOND_WAY)
	RLOCK_SERVER=$(SERVER) ./scripts/test client
	RLOCK_SERVER=$(SERVER) ./scripts/test cli

campaigns: build ## The long forms of the random tests and of those that kill (6 minutes)
	RLOCK_LONG=1 RLOCK_SERVER=$(SERVER) cargo test --package rlock --test integration -- --test-threads=2 \
	  convergence:: damaged_files:: kill:: lazy_free:: listeners_storm:: many_storm:: mutations:: notify_crowd:: quarantine:: storm::
	RLOCK_DEADLOCK_REQUESTS=1000000 PROPTEST_CASES=20000 cargo test --release --package rlock-core

mutant-gate: ## Let the tests notice a module that ignores when somebody begins to listen
	@$(NEED) build
	@$(NEED) server
	@SERVER=$(SERVER) ./scripts/mutant-gate

check: build ## Record what clients see for SECONDS, and prove from it what is promised; SEED=n for other choices
	$(CHECK) run --module $(MODULE) --server $(SERVER) --seconds $(SECONDS) --seed $(SEED)

check-crashes: build ## The same while the server is killed, stands still, and loses connections
	$(CHECK) run --module $(MODULE) --server $(SERVER) --seconds $(SECONDS) --seed $(SEED) --crashes

test-faults: build ## Check what clients see under each fault for SECONDS, on each server of the matrix; SERVERS=redis-server, NAMES=kill
	@SECONDS_EACH=$(SECONDS) SEED=$(SEED) NAMES="$(NAMES)" CHECK="$(CHECK)" ./scripts/faults $(SERVERS)

check-speed: ## Check an invented history of OPERATIONS by the rules: how long that takes
	$(CHECK) speed --operations $(OPERATIONS)

soak: build ## A mixed load of all kinds with disconnects for MINUTES: whether memory and latency stay as they are
	$(CHECK) soak --module $(MODULE) --server $(SERVER) --minutes $(MINUTES) --seed $(SEED)

check-worlds: ## Try every order of steps in small worlds, beside oracles: at least STATES states in all; WRITE=1 writes the table of docs/internals/checks.md
	@$(NEED) build
	@STATES=$(STATES) ./scripts/worlds $(if $(WRITE),docs/internals/checks.md)

check-mutants: ## Build the module with each fault of verify/check/mutants, and write down which check notices it; NAMES=fifo for some
	@$(NEED) build
	@$(NEED) server
	$(CHECK) mutants --server $(SERVER) --write docs/guarantees.md $(NAMES)

fuzz: ## Feed the core what a fuzzer thinks of, for SECONDS per target: arguments, payloads, effects, commands, and these beside oracles; WRITE=1 counts them
	@$(NEED) build
	SECONDS_EACH=$(SECONDS) ./scripts/fuzz

test-asan: ## Run the module's tests under AddressSanitizer, with a search for leaks; TESTS="sessions:: notify::" for some (needs nightly)
	@$(NEED) build server nightly
	@SERVER=$(SERVER) ./scripts/asan $(TESTS)

# Miri interprets each step: of random tests a few short cases, of the small worlds their first states. The tests about hundreds and thousands
# say so themselves, and are left out. Isolation would hide the stories' files.
miri: ## Run the tests of the core under Miri, those that go on for long in a short form (needs nightly)
	@$(NEED) build miri
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=2 PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 \
	  RLOCK_DEADLOCK_REQUESTS=40 RLOCK_WORLDS_STATES=100 \
	  cargo +nightly miri test --package rlock-core --lib -- $(TESTS)

coverage: ## Show which lines of the core its own tests reach, and fail below LINES percent; BRANCHES=1 counts branches too (needs nightly)
	@$(NEED) build coverage $(if $(BRANCHES),branches)
	PATH="$(CURDIR)/target/cargo-tools/bin:$$PATH" cargo $(if $(BRANCHES),+nightly llvm-cov --branch,llvm-cov) --package rlock-core --lib --ignore-filename-regex '$(TEST_CODE)' \
	  --show-missing-lines --fail-under-lines $(LINES)

mutants: ## Try every small change of PACKAGE (core, module or client) against the tests that reach it; ONLY=lock/hold.rs for some (SHORT=1: quickly), AGAIN=1 for what the last run did not notice (TIMED=1: by tests about time)
	@$(NEED) build server mutants
	PATH="$(CURDIR)/target/cargo-tools/bin:$$PATH" RLOCK_SERVER=$(SERVER) $(MUTATE) \
	  $(PACKAGE) --seconds $(CHANGE_SECONDS) --jobs $(JOBS) --write docs/internals/checks.md $(ONLY:%=--only %) $(if $(SHORT),--short) $(if $(AGAIN),--again) $(if $(TIMED),--timed)

tests-can-fail: ## Seek, for each test of PACKAGE (core, module or client), a change of its code that makes it fail; a run that was broken off goes on
	@$(NEED) build server mutants
	PATH="$(CURDIR)/target/cargo-tools/bin:$$PATH" RLOCK_SERVER=$(SERVER) $(MUTATE) \
	  $(PACKAGE) --tests --seconds $(CHANGE_SECONDS) --jobs $(JOBS) --write docs/internals/checks.md

test-matrix: build ## Run the module's tests on every server that Debian's suites have, in both ways of waiting (25 minutes); SERVERS=valkey-trixie for one
	cargo test-all --test integration --no-run
	@NOBODY_WAITS="$(NOBODY_WAITS)" ./scripts/matrix $(SERVERS)

failover: build ## Kill a primary under load 20 times, with Sentinel
	RLOCK_SERVER=$(SERVER) RLOCK_FAILOVERS=20 cargo test --package rlock --test integration -- --nocapture failover::a_primary_that_is_killed

lint: ## Check format and lints
	@$(NEED) build
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features rlock-client/tls-rustls -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --package rlock-client --no-deps --features tls-rustls

msrv: ## Check the client and the core with the oldest Rust that they promise to build with
	@./scripts/msrv

client-api: ## Compare the client's public API with client/public-api.txt (needs a nightly Rust); WRITE=1 writes that anew
	cargo run --quiet --package rlock-client-api -- $(if $(WRITE),--write)

bench: ## Measure the module, its longest pauses, and write docs/benchmarks-module.md; SECTION=memory for one part, shown only, or with WRITE=1 written too
	@$(NEED) server
	cargo build --release --package rlock --package rlock-bench --package rlock-bench-bare
	target/release/rlock-bench --module $(MODULE) --bare $(BARE) --server $(SERVER) $(SECTION) \
	  $(if $(or $(WRITE),$(if $(SECTION),,1)),--page docs/benchmarks-module.md)

bench-peers: ## Measure the module beside other locks and write docs/benchmarks.md (30 minutes); PEERS="redisson jedis" WORK="crash" ROUNDS=1 FULL=1
	@$(NEED) server
	cargo build --release --package rlock --package rlock-bench-peers
	target/release/bench-peers --module $(MODULE) --server $(SERVER) --rounds $(ROUNDS) --seconds $(CELL_SECONDS) --report $(REPORT) $(SIZING:%=--sizing %) \
	  $(if $(FULL),--full) $(PEERS:%=--peers %) $(WORK:%=--work %)

client-native-tls: build ## The client's tests of TLS with the system's own library
	@$(NEED) openssl
	cargo clippy --package rlock-client --all-targets --features tls-native-tls -- -D warnings
	RLOCK_SERVER=$(SERVER) cargo test --package rlock-client --features tls-native-tls --test client -- tls::

bench-fleet: ## Simulate a million clients of a thousand nodes on the engine, and write the table of docs/operations.md
	@$(NEED) build
	cargo build --release --package rlock-bench-peers --bin bench-fleet
	target/release/bench-fleet $(SIZING:%=--page %)

client-cancel: build ## Drop 10,000 acquisitions of the client at random moments, and watch its memory
	RLOCK_SERVER=$(SERVER) RLOCK_CANCEL_ROUNDS=10000 cargo test --release --package rlock-client --test client -- dropping_an_acquisition dropping_acquisitions

client-faults: build ## Cut, delay and lose the client's connections (16 minutes), then let servers die under it for MINUTES=30
	RLOCK_LONG=1 RLOCK_SERVER=$(SERVER) cargo test --release --package rlock-client --test client -- --test-threads=2 \
	  cut_connections:: faults:: multitude:: partitions::
	@# One after the other, so that the minutes are those of the campaigns together.
	RLOCK_MINUTES=$(MINUTES) RLOCK_SERVER=$(SERVER) cargo test --release --package rlock-client --test client -- --test-threads=1 \
	  --nocapture chaos::

test-examples: build ## Run examples/: each language's failures provoked and survived; EXAMPLES="python go" for some (needs their tools)
	@$(NEED) server
	@SERVER=$(SERVER) MODULE=$(MODULE) ./scripts/examples $(EXAMPLES)

test-retries: build ## 1000 rounds of lost replies against the retries of redis-py, go-redis and ioredis (takes minutes)
	@$(NEED) server
	@SERVER=$(SERVER) MODULE=$(MODULE) ROUNDS=1000 ./scripts/examples python node go

test-monitoring: build ## Ask every query of the dashboard and the alerts of a real Prometheus, beside servers under load
	@$(NEED) server
	./scripts/monitoring $(MODULE) $(SERVER)

test-peers: build ## Try each lock of bench/peers/ that can be had here: is it one, and what does a crash leave; PEERS="etcd redlock" for some
	@$(NEED) server
	@SERVER=$(SERVER) MODULE=$(MODULE) ./bench/peers/try $(PEERS)

demo: ## 1000 clients count to 1000 under one lock
	@$(NEED) server
	cargo build --release --package rlock --package rlock-bench
	target/release/rlock-demo --module $(MODULE) --server $(SERVER)

deb: build ## Build the Debian package in target/debian/: module, configuration, tool, manual; REVISION=2 for another one
	cargo build --release --package rlock-cli
	cargo run --quiet --package rlock-cli --example generate -- target/generated
	$(CARGO_DEB) --package rlock-cli --no-build --strip --maintainer "$(MAINTAINER)" --deb-revision $(REVISION) --output $(DEBS)/

demo-install: ## Install, use, upgrade and remove the package in a clean Debian, and write docs/demo-install.txt (needs root)
	@$(NEED) root
	@# Each into a folder of its own: cargo-deb takes older revisions away.
	$(MAKE) deb REVISION=1 DEBS=target/demo/1
	$(MAKE) deb REVISION=2 DEBS=target/demo/2
	cp target/demo/[12]/*.deb target/demo/
	./packaging/demo-install target/demo docs/demo-install.txt

picture: build ## Draw `rlock top` over a thousand contended locks into docs/rlock-top.svg
	RLOCK_PICTURE=$(CURDIR)/docs/rlock-top.svg RLOCK_SERVER=$(SERVER) cargo test --package rlock-cli --test cli -- picture::

clean: ## Remove what was built, what `make run` left, and the servers of the matrix
	cargo clean
	rm -rf $(DATA) .servers
