# MacRack. What people type is described in README.md and CONTRIBUTING.md.
SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help
help: ## show what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

include hack/dev/dev.mk
include hack/demo/demo.mk
include hack/prose/prose.mk
include hack/images/images.mk
include hack/release/release.mk
include test/test.mk
include test/race/race.mk
include test/bench/bench.mk
include test/attack/attack.mk
include test/conformance/conformance.mk
include test/chaos/chaos.mk
include test/load/load.mk
include test/failover/failover.mk
include test/realcluster/realcluster.mk
include test/runners/runners.mk
include test/restore/restore.mk
include test/ui/ui.mk

BINARIES := macrack-apiserver macrack-controllers macrack-agent macrack-vm macrack-guest-agent macrack-ledger

.PHONY: build $(BINARIES) kubectl-macrack
build: $(BINARIES) kubectl-macrack ## build the binaries into .dev/bin
$(BINARIES): macrack-%:
	go build -o .dev/bin/$@ ./cmd/$*
kubectl-macrack:
	go build -o .dev/bin/$@ ./cmd/$@

.PHONY: generate
generate: ## generate all generated code
	hack/update-codegen.sh

.PHONY: verify
verify: ## check that generated code and every go.mod are up to date
	hack/verify-modules.sh
	hack/verify-codegen.sh

.PHONY: darwin
darwin: ## check the code for macOS: types of all that runs there, tests included, and a build of what needs no cgo
	go run ./hack/darwincheck ./pkg/vm/... ./pkg/agent/... ./cmd/agent ./cmd/vm ./cmd/guest-agent
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 go build -o /dev/null ./cmd/agent
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 go build -o /dev/null ./cmd/guest-agent
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 go build -o /dev/null ./cmd/kubectl-macrack

.PHONY: mac
mac: macrack-agent macrack-vm ## on a Mac: run the acceptance, with MAC_FLAGS such as --tart-vm NAME
	@[[ "$$(uname)" == Darwin ]] || { echo "make mac runs on a Mac; elsewhere use go test ./pkg/agent/acceptance" >&2; exit 1; }
	codesign --force --sign - --entitlements artifacts/macos/vm.entitlements .dev/bin/macrack-vm
	.dev/bin/macrack-agent acceptance $(MAC_FLAGS)

.PHONY: lint
lint: prose .dev/bin/golangci-lint ## run the linters
	.dev/bin/golangci-lint run ./...
	cd runners && ../.dev/bin/golangci-lint run ./...
	cd test/conformance && ../../.dev/bin/golangci-lint run ./...
	cd test/monitoring && ../../.dev/bin/golangci-lint run ./...
	cd test/ui && ../../.dev/bin/golangci-lint run ./...

.dev/bin/golangci-lint: hack/tools/go.mod hack/tools/go.sum
	@echo "building golangci-lint (a few minutes, once)"
	cd hack/tools && go build -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@
