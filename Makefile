# The same targets serve people and CI. `make help` lists them.
PROFILE ?= fast
ARGS ?=
CARGO ?= cargo

.PHONY: help demo test test-env test-vllm fmt lint unit e2e soak nightly bench docs

help: ## List the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: ## Real traffic through the gateway to four emulated engines; ARGS="--envoy --json --seconds 20"
	@case " $(ARGS) " in *" --envoy "*) scripts/setup-test-env.sh ;; esac
	$(CARGO) run --quiet --profile $(PROFILE) -- demo $(ARGS)

test: test-env fmt lint unit e2e ## Everything that must pass: format, lints, unit, property and end-to-end tests

test-env: ## Install what the end-to-end tests need (Envoy, the OpenAI client) into .venv
	scripts/setup-test-env.sh

fmt: ## Check the format
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path bench/peers/Cargo.toml --check

lint: ## Lints are errors
	$(CARGO) clippy --workspace --all-targets -- -D warnings

unit: ## Unit and property tests of every crate, and the index's core under every interleaving
	$(CARGO) test --profile $(PROFILE) --workspace --exclude wicketgate
	$(CARGO) test --profile $(PROFILE) -p wicketgate-kvindex --features loom --lib store::model
	$(CARGO) test --profile $(PROFILE) -p wicketgate --bins

e2e: ## End-to-end tests on real Envoy
	$(CARGO) test --profile $(PROFILE) -p wicketgate --test e2e

test-vllm: test-env ## The gateway in front of two real vLLM engines on CPUs; installs vLLM into .venv-vllm (3 GB)
	scripts/setup-vllm.sh
	$(CARGO) test --profile $(PROFILE) -p wicketgate --test vllm -- --nocapture

soak: ## Five minutes of load with churn, disconnects and failing engines
	WICKETGATE_SOAK_SECONDS=$${WICKETGATE_SOAK_SECONDS:-300} \
	$(CARGO) test --profile $(PROFILE) -p wicketgate --test e2e -- soak --nocapture

nightly: soak ## What is too long for every change: ten million admission events, prompts and damaged KV events, and the soak
	WICKETGATE_ADMISSION_EVENTS=10000000 $(CARGO) test --profile $(PROFILE) -p wicketgate-admission
	WICKETGATE_INDEX_PROMPTS=10000000 $(CARGO) test --profile $(PROFILE) -p wicketgate-kvindex --test soak
	WICKETGATE_FUZZ_MESSAGES=10000000 $(CARGO) test --profile $(PROFILE) -p wicketgate-kvindex --test fuzz

bench: ## Benchmarks in the release profile; ARGS="schedule --endpoints 100", or "index --peers" with others beside it
	@case " $(ARGS) " in *" --peers "*) CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-$(CURDIR)/target}" \
	$(CARGO) build --quiet --release --locked --manifest-path bench/peers/Cargo.toml ;; esac
	$(CARGO) run --quiet --release -- bench $(ARGS)

docs: ## Build the book (needs mdbook)
	mdbook build
