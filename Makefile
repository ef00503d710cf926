# MacRack. What people type is described in README.md and CONTRIBUTING.md.
SHELL := /bin/bash
.DEFAULT_GOAL := help

export GOFLAGS ?= -mod=mod
KUBECONFIG_DEV := $(CURDIR)/.dev/kubeconfig

.PHONY: help
help: ## Show what can be made.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

include hack/dev/dev.mk

.PHONY: build
build: ## Build the binaries into .dev/bin.
	go build -o .dev/bin/macrack-apiserver ./cmd/apiserver
	go build -o .dev/bin/macrack-controllers ./cmd/controllers
	go build -o .dev/bin/macrack-agent ./cmd/agent
	go build -o .dev/bin/macrack-vm ./cmd/vm

.PHONY: generate
generate: ## Generate all generated code.
	hack/update-codegen.sh

.PHONY: verify
verify: ## Check that generated code is up to date.
	hack/verify-codegen.sh

.PHONY: lint
lint: .dev/bin/golangci-lint ## Run the linters.
	.dev/bin/golangci-lint run ./...

.dev/bin/golangci-lint: hack/tools/go.mod hack/tools/go.sum
	@echo "building golangci-lint (a few minutes, once)"
	cd hack/tools && go build -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@
