# The commands of this project. `make` lists them.

SHELL        := /bin/bash
SERVER       ?= redis-server
# Not 6379, which Debian's redis-server may use already.
PORT         ?= 6390
CLUSTER_PORT ?= 7000
# Where builds and other results go.
TARGET       := $(or $(CARGO_TARGET_DIR),target)
MODULE       := $(TARGET)/release/librlock.so
BARE         := $(TARGET)/release/librlock_bare.so
NEED          = SERVER=$(SERVER) ./scripts/need
# Programs that cargo installs for a target: below TARGET, not among the user's own.
TOOLS         = PATH="$(abspath $(TARGET))/cargo-tools/bin:$$PATH"

# Where `make install` puts the module. Debian's unit of redis-server loads code only from /usr/lib
# and /lib.
PREFIX       ?= /usr
DESTDIR      ?=
MODULES      := $(DESTDIR)$(PREFIX)/lib/redis/modules

# The Debian package: revision and folder.
REVISION     ?= 1
DEBS         ?= $(TARGET)/debian

# The length of campaigns.
SECONDS      := 60
MINUTES      ?= 60
SEED         ?= 1
STATES       ?= 1000000
OPERATIONS   ?= 10000000
# The checker of histories. CHECK=target/debug/rlock-check uses an existing build.
CHECK        ?= cargo run --quiet --profile checker --package rlock-check --
# `make coverage` fails below this percentage of lines. Test files do not count.
LINES        ?= 97
TEST_CODE     = /tests/|/tests\.rs|strategies\.rs

# `make mutants` tries the changes since BASE; ALL=1 tries every mutant, SHARD=0/8 an eighth of
# them.
BASE         ?= origin/main
PACKAGE      ?= core
JOBS         ?= 2

# `make test-failover` upgrades from this commit, the last one without the settings for failovers.
BEFORE       ?= a307796

# Where `make porcupine` finds the beliefs that the tests record.
HISTORIES    ?= $(TARGET)/histories

# `make bench-peers`: rounds per peer, seconds per cell, and the pages to write. HEADLINE= and
# SIZING= skip the second and the third.
ROUNDS       ?= 5
# `make bench-cluster`: hand-overs per second that the holders allow, so each holds for LOCKS / RATE seconds.
LOCKS        ?= 10000
WAITERS      ?= 100000
RATE         ?= 1000
# `make bench-against`: the revision, and the sections.
REV          ?= HEAD
SECTIONS     ?= uncontended handover
CELL_SECONDS ?= 1
REPORT       ?= docs/benchmarks.md
HEADLINE     ?= README.md
SIZING       ?= docs/operations/capacity.md

# The features that the client's tests need.
CLIENT_FEATURES := blocking,cluster,events,multi-lock,quorum,sentinel

# The groups of scripts/need that a target needs: the tools to build, and for most targets a server.
NEEDS         = build

.DEFAULT_GOAL := help
.PHONY: free-port $(shell sed -n 's/^\([a-z-]*\):.*\#\# .*/\1/p' $(MAKEFILE_LIST))

help: ## List the targets
	@awk -F ':.*## ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PORT=6400 make run              another port than $(PORT)"
	@echo "  SERVER=valkey-server make test  another server than redis-server"

test test-all: NEEDS = build server python
run cluster campaigns test-matrix check check-crashes failover client-native-tls client-cancel client-faults test-failover test-faults soak picture: NEEDS = build server

##@ Use

build: ## Build the module: target/release/librlock.so
	@$(NEED) $(NEEDS)
	cargo build --release --package rlock
	@# The tests refuse a module older than the sources, but cargo does not rebuild it if only tests changed.
	@touch $(MODULE)

run: free-port build ## Build the module, start a server with it, and print commands to try; DATA=folder keeps the data
	@SERVER=$(SERVER) MODULE=$(MODULE) PORT=$(PORT) DATA=$(DATA) ./scripts/run

# Fails before a long build begins.
free-port:
	@! (exec 3<>/dev/tcp/127.0.0.1/$(PORT)) 2>/dev/null || \
	  { echo "rlock: port $(PORT) is in use; choose another one: PORT=6400 make run" >&2; exit 1; }

cluster: build ## Start a local cluster with the module, three masters and three replicas, and print commands to try
	@SERVER=$(SERVER) MODULE=$(MODULE) PORT=$(CLUSTER_PORT) ./scripts/cluster

demo: ## Let 1000 clients increment one counter to 1000 under a lock
	@$(NEED) server
	cargo build --release --package rlock --package rlock-bench
	$(TARGET)/release/rlock-demo --module $(MODULE) --server $(SERVER)

# A running server keeps the old file mapped. It loads the new file when it restarts.
install: ## Install the built module for Debian's redis-server; PREFIX and DESTDIR as usual
	@[ -e $(MODULE) ] || { echo "rlock: $(MODULE) is missing: run make build" >&2; exit 1; }
	install -d -m 755 $(MODULES)
	install -m 755 $(MODULE) $(MODULES)/librlock.so.new
	mv -f $(MODULES)/librlock.so.new $(MODULES)/librlock.so
	@echo "In the server's configuration: loadmodule $(PREFIX)/lib/redis/modules/librlock.so"

uninstall: ## Remove what `make install` installed
	rm -f $(MODULES)/librlock.so

deb: ## Build the Debian package for this machine in target/debian/: module, configuration, command line tool, manual; REVISION=2
	@$(NEED) build deb
	FORMATS=deb REVISION=$(REVISION) OUT=$(DEBS) ./scripts/dist $(shell uname -m)

dist: ## Build tarballs, .deb and .rpm for x86_64 and arm64, with SBOMs and SHA256SUMS, in target/dist/; ARCHES=x86_64 for one
	@$(NEED) build deb rpm cross sbom
	$(TOOLS) ./scripts/dist $(ARCHES)

image: ## Build container images of what `make dist` has built, on Redis and Valkey, without a container engine (needs root)
	@$(NEED) root image
	./packaging/container/build

test-dist: ## Test what `make dist` and `make image` have built: in bare Debian systems, on arm64, in containers (needs root)
	@$(NEED) root image cross server
	./packaging/try $(PARTS)
	./packaging/container/try
	cd packaging/kubernetes/check && go test -count=1 ./...

##@ Develop

test: build ## Test the core, the module, the client and the command line tool (8 minutes after the build)
	SERVER=$(SERVER) ./scripts/test core module client cli

test-all: build ## Run `make test`, the module with NOTIFY waiters, the tests of the tools, and the doc examples
	SERVER=$(SERVER) ./scripts/test core module client cli notify tools docs

lint: ## Check the format, lints, cycles of modules, and the subjects of new commits
	@$(NEED) build
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features rlock-client/blocking,rlock-client/cluster,rlock-client/events,rlock-client/multi-lock,rlock-client/quorum,rlock-client/sentinel,rlock-client/tls-rustls -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --package rlock-client --no-deps --features $(CLIENT_FEATURES),connection-manager,credentials-provider,serde,tls-rustls
	./scripts/circles core/src src client/src cli/src
	./scripts/circles --methods Engine core/src/engine
	./scripts/commits

lines: ## Count the lines of code, by crate and folder
	./scripts/lines

msrv: ## Check the client and the core with the oldest supported Rust
	@./scripts/msrv

client-api: ## Compare the client's public API with client/public-api.txt (needs a nightly Rust); WRITE=1 updates that file
	cargo run --quiet --package rlock-client-api -- $(if $(WRITE),--write)

picture: build ## Draw `rlock top` over a thousand contended locks into docs/rlock-top.svg
	RLOCK_PICTURE=$(CURDIR)/docs/rlock-top.svg RLOCK_SERVER=$(SERVER) cargo test --package rlock-cli --test cli -- picture::

clean: ## Remove all build results, and the servers of the matrix
	cargo clean
	rm -rf .servers

##@ Verify

campaigns: build ## Run the long forms of the random tests and of the tests that kill servers (6 minutes)
	RLOCK_LONG=1 RLOCK_SERVER=$(SERVER) cargo test-all --test module -- --test-threads=2 \
	  convergence:: damaged_files:: kill:: lazy_free:: listeners_storm:: many_storm:: mutations:: notify_crowd:: quarantine:: storm::
	RLOCK_DEADLOCK_REQUESTS=1000000 PROPTEST_CASES=20000 cargo test --release --package rlock-core

test-matrix: build ## Test the module on every server of Debian's suites, blocked and with NOTIFY (an hour); SERVERS=valkey-trixie for one
	cargo test-all --test module --no-run
	@./scripts/matrix $(SERVERS)

check: build ## Record what clients observe for SECONDS, and check it against the guarantees; SEED=n for another random run
	$(CHECK) run --module $(MODULE) --server $(SERVER) --seconds $(SECONDS) --seed $(SEED)

check-crashes: build ## Run `make check` while the server is killed and suspended, and loses connections
	$(CHECK) run --module $(MODULE) --server $(SERVER) --seconds $(SECONDS) --seed $(SEED) --crashes

test-faults: build ## Check what clients observe under each fault for SECONDS, on each server of the matrix; SERVERS=redis-server, NAMES=kill
	@SECONDS_EACH=$(SECONDS) SEED=$(SEED) NAMES="$(NAMES)" CHECK="$(CHECK)" ./scripts/faults $(SERVERS)

check-speed: ## Check a generated history of OPERATIONS, and print how long that takes
	$(CHECK) speed --operations $(OPERATIONS)

check-worlds: ## Try every order of steps in small worlds against oracles, at least STATES states in all; ONLY=failovers for those, WRITE=1 records the tables
	@$(NEED) build
	@STATES=$(STATES) ONLY=$(ONLY) ./scripts/worlds $(if $(WRITE),docs/internals/checks.md)

check-mutants: ## Build the module with each fault of verify/check/mutants, and record which checks notice it; NAMES=fifo for some
	@$(NEED) build
	@$(NEED) server
	$(CHECK) mutants --server $(SERVER) --write docs/internals/coverage.md $(NAMES)

test-patched: ## Check that tests notice a module that ignores new replicas, and that a panic loses no changes
	@$(NEED) build server
	@SERVER=$(SERVER) ./scripts/patched verify/check/mutants/fork-ignored.patch listeners_storm::
	@SERVER=$(SERVER) ./scripts/patched tests/patches/panic-after-commit.patch panics::

mutants: build ## Try small changes of PACKAGE (core or client) since BASE against its tests: cargo-mutants; ALL=1, SHARD=0/8, FILE=place.rs
	@$(NEED) server mutants
	@$(TOOLS) SERVER=$(SERVER) PACKAGE=$(PACKAGE) BASE=$(BASE) ALL=$(ALL) SHARD=$(SHARD) FILE=$(FILE) JOBS=$(JOBS) ./scripts/mutants

fuzz: ## Feed generated input to the core for SECONDS per target; TARGETS="payload effect", WRITE=1 records the counts
	@$(NEED) build
	SECONDS_EACH=$(SECONDS) ./scripts/fuzz

test-asan: ## Test the module under AddressSanitizer, and search for leaks; TESTS="sessions:: notify::" for some (needs nightly)
	@$(NEED) build server nightly
	@SERVER=$(SERVER) ./scripts/asan $(TESTS)

# Miri interprets each step, so random tests run a few short cases, and tests with hundreds of
# waiters are skipped (they check for Miri themselves). Under isolation the files of the stories
# could not be read.
miri: ## Test the core under Miri, long tests in a short form (needs nightly)
	@$(NEED) build miri
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=2 PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 \
	  RLOCK_DEADLOCK_REQUESTS=40 RLOCK_WORLDS_STATES=100 \
	  cargo +nightly miri test --package rlock-core --lib -- $(TESTS)

coverage: ## Show which lines of the core its own tests reach, and fail below LINES percent; BRANCHES=1 counts branches too, and needs nightly
	@$(NEED) build coverage $(if $(BRANCHES),branches)
	$(TOOLS) cargo $(if $(BRANCHES),+nightly llvm-cov --branch,llvm-cov) --package rlock-core --lib --ignore-filename-regex '$(TEST_CODE)' \
	  --show-missing-lines --fail-under-lines $(LINES)

soak: build ## Run a mixed load of all kinds with disconnects for MINUTES, and check that memory and latency stay flat
	$(CHECK) soak --module $(MODULE) --server $(SERVER) --minutes $(MINUTES) --seed $(SEED)

failover: build ## Kill a primary under load 20 times, with Sentinel
	RLOCK_SERVER=$(SERVER) RLOCK_FAILOVERS=20 cargo test-all --test module -- --nocapture failover::replica_of_a_primary_killed

test-failover: build ## Cause each fault of a master under load, on each server, and record overlaps (hours; continues an interrupted run); SERVERS=redis-server
	@$(NEED) go
	RLOCK_MODULE_BEFORE=$$(./scripts/before $(BEFORE)) ./scripts/failovers $(SERVERS)

porcupine: ## Judge the beliefs in HISTORIES, which a run with RLOCK_HISTORIES has recorded, with a checker that is not ours
	@$(NEED) go
	./scripts/porcupine $(HISTORIES)

client-native-tls: build ## Test the client's TLS with the system's TLS library
	@$(NEED) openssl
	cargo clippy --package rlock-client --all-targets --features $(CLIENT_FEATURES),tls-native-tls -- -D warnings
	RLOCK_SERVER=$(SERVER) cargo test --package rlock-client --features $(CLIENT_FEATURES),tls-native-tls --test client -- tls::

client-cancel: build ## Drop 10,000 acquisitions of the client at random moments, and check its memory
	RLOCK_SERVER=$(SERVER) RLOCK_CANCEL_ROUNDS=10000 cargo test --release --package rlock-client --features $(CLIENT_FEATURES) --test client -- dropping_an_acquisition dropping_acquisitions

client-faults: build ## Cut, delay and drop the client's connections (16 minutes), then kill servers under it for MINUTES=30
	RLOCK_LONG=1 RLOCK_SERVER=$(SERVER) cargo test --release --package rlock-client --features $(CLIENT_FEATURES) --test client -- --test-threads=2 \
	  cut_connections:: faults:: multitude:: partitions::
	@# One at a time, so that MINUTES is the total time of all campaigns.
	RLOCK_MINUTES=$(MINUTES) RLOCK_SERVER=$(SERVER) cargo test --release --package rlock-client --features $(CLIENT_FEATURES) --test client -- --test-threads=1 \
	  --nocapture chaos::

test-packages: build ## Run the tests, linters and type checks of the packages in clients/ (3 minutes); PACKAGES="python go" for some
	@$(NEED) server python
	@SERVER=$(SERVER) MODULE=$(MODULE) ./scripts/packages $(PACKAGES)

test-clients: build ## Test the clients of all languages with clients/conformance, and write its RESULTS.md; CLIENTS="python go" SHORT=1 for less
	@$(NEED) server
	@SERVER=$(SERVER) MODULE=$(MODULE) ./scripts/clients $(CLIENTS)

soak-clients: build ## Let the packages of all languages work for MINUTES in bad weather, and check that they stay flat; WRITE=1 writes clients/conformance/SOAK.md
	@$(NEED) server
	@SERVER=$(SERVER) MODULE=$(MODULE) RUN="soak --minutes $(MINUTES) $(if $(WRITE),--write clients/conformance/SOAK.md)" ./scripts/clients $(CLIENTS)

test-examples: build ## Run examples/ against provoked failures; EXAMPLES=bash for one of them
	@$(NEED) server
	@SERVER=$(SERVER) MODULE=$(MODULE) ./scripts/examples $(EXAMPLES)

test-monitoring: build ## Run every query of the dashboard and the alerts on a real Prometheus, with servers under load
	@$(NEED) server
	./scripts/monitoring $(MODULE) $(SERVER)

test-peers: build ## Check that each lock of bench/peers/ excludes, and what a crash leaves; PEERS="etcd redlock" for some
	@$(NEED) server
	@SERVER=$(SERVER) MODULE=$(MODULE) ./bench/peers/try $(PEERS)

demo-install: ## Install, use, upgrade and remove the package in a clean Debian, and write docs/demo-install.txt (needs root)
	@$(NEED) root
	@# Into separate folders, because a build removes older packages.
	$(MAKE) deb REVISION=1 DEBS=$(TARGET)/demo/1
	$(MAKE) deb REVISION=2 DEBS=$(TARGET)/demo/2
	cp $(TARGET)/demo/[12]/*.deb $(TARGET)/demo/
	./packaging/demo-install $(TARGET)/demo docs/demo-install.txt

##@ Measure

bench: ## Measure the module and its longest pauses, and write docs/benchmarks-module.md; SECTION=memory prints one part (WRITE=1 writes it)
	@$(NEED) server
	cargo build --release --package rlock --package rlock-bench --package rlock-bench-bare
	$(TARGET)/release/rlock-bench --module $(MODULE) --bare $(BARE) --server $(SERVER) $(CURRENT:%=--current %) $(SECTION) \
	  $(if $(or $(WRITE),$(if $(SECTION),,1)),--page docs/benchmarks-module.md)

bench-current: build ## Measure acquire and release on current servers, against DELEX IFEQ and DELIFEQ; fetches the servers (WRITE=1 writes the page)
	cargo build --release --package rlock-bench --package rlock-bench-bare
	scripts/servers redis-experimental valkey-forky | awk '{ print "--current", $$NF }' | xargs $(TARGET)/release/rlock-bench --module $(MODULE) --bare $(BARE) \
	  --rounds $(ROUNDS) $(if $(WRITE),--page docs/benchmarks-module.md) current-servers

bench-against: build ## Measure sections with this module and that of REV in turns, and print the ratio; SECTIONS="memory", ROUNDS=15
	@$(NEED) server
	rm -rf $(TARGET)/against/tree && mkdir -p $(TARGET)/against/tree
	git archive $(REV) | tar --extract --directory $(TARGET)/against/tree
	cargo build --release --quiet --package rlock --manifest-path $(TARGET)/against/tree/Cargo.toml --target-dir $(TARGET)/against/built
	cargo build --release --package rlock-bench
	$(TARGET)/release/rlock-bench --module $(MODULE) --against $(TARGET)/against/built/release/librlock.so --server $(SERVER) --rounds $(ROUNDS) $(SECTIONS)

bench-peers: ## Measure the module beside other locks, and write docs/benchmarks.md (an hour); PEERS="redisson jedis" WORK="crash" ROUNDS=1 FULL=1
	@$(NEED) server
	cargo build --release --package rlock --package rlock-bench-peers
	$(TARGET)/release/bench-peers --module $(MODULE) --server $(SERVER) --rounds $(ROUNDS) --seconds $(CELL_SECONDS) --report $(REPORT) \
	  $(HEADLINE:%=--headline %) $(SIZING:%=--sizing %) \
	  $(if $(FULL),--full) $(PEERS:%=--peers %) $(WORK:%=--work %)

bench-replica: ## Measure rlock and Redisson with a replica, and write docs/benchmarks-replica.md (5 minutes)
	@$(MAKE) bench-peers WORK=replicated PEERS="redisson redisson-wait jedis jedis-wait rlock-java rlock-java-failover" \
	  REPORT=docs/benchmarks-replica.md HEADLINE= SIZING=

# MODULE and BEFORE may be any builds. BEFORE is a commit above, for the failovers.
bench-instructions: $(if $(filter file,$(origin MODULE)),build) ## Count the instructions of a pair and a hand-over on three servers (5 minutes); SERVERS=redis-server, MODULE=a.so, BEFORE=b.so for the ratio, WRITE=1 writes the page
	@$(NEED) instructions && mkdir -p $(TARGET)
	@./scripts/instructions --module $(MODULE) $(if $(filter file,$(origin BEFORE)),,--before $(BEFORE)) $(SERVERS) > $(TARGET)/instructions.md; \
	  status=$$?; cat $(TARGET)/instructions.md; exit $$status
	@! test -n "$(WRITE)" || ./scripts/between docs/benchmarks-module.md '`make bench-instructions WRITE=1`' < $(TARGET)/instructions.md

steps: ## List the methods of the engine on the path of an ACQUIRE that waits and of a hand-over, and fail if they are too many; WRITE=1 records them
	@$(NEED) build
	@WRITE=$(WRITE) ./scripts/steps

bench-collections: ## Measure the collections of the core against ordinary ones (a quiet minute); WRITE=1 writes the table of docs/internals/design.md
	@$(NEED) build
	@cargo test --profile worlds --package rlock-core --lib collections::tests -- --ignored --nocapture | tee $(TARGET)/collections.log
	@! test -n "$(WRITE)" || { echo '| collection, and what is measured | figure | ordinary collection | figure |' && echo '|---|---:|---|---:|' && \
	  grep '^| ' $(TARGET)/collections.log; } | ./scripts/between docs/internals/design.md '`make bench-collections WRITE=1`'

# MINUTES is 60 above, for the soak.
bench-cluster: build ## Measure a cluster with LOCKS and WAITERS of four packages for MINUTES (10) while slots move and a master dies; WRITE=1 writes docs/operations/capacity.md
	@$(NEED) server
	@SERVER=$(SERVER) MODULE=$(MODULE) RUN="bench-cluster --locks $(LOCKS) --waiters $(WAITERS) --rate $(RATE) --minutes $(if $(filter file,$(origin MINUTES)),10,$(MINUTES))" \
	  ./scripts/clients $(or $(CLIENTS),python node go java) > $(TARGET)/bench-cluster.md; status=$$?; cat $(TARGET)/bench-cluster.md; exit $$status
	@! test -n "$(WRITE)" || ./scripts/between docs/operations/capacity.md '`make bench-cluster WRITE=1`' < $(TARGET)/bench-cluster.md

bench-fleet: ## Simulate a million clients of a thousand nodes on the engine, and write the table in docs/operations/capacity.md
	@$(NEED) build
	cargo build --release --package rlock-bench-peers --bin bench-fleet
	$(TARGET)/release/bench-fleet $(SIZING:%=--page %)
