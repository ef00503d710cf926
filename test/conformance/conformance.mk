# What people's clients and tools see, for every kind. CONFORMANCE_FLAGS are flags of test/conformance: --own starts a cluster for it alone.

.PHONY: conformance
conformance: ## run the behaviours that clients and tools rely on, for every kind, on the dev cluster
	@mkdir -p .dev/bin
	@go build -C test/conformance -o $(CURDIR)/.dev/bin/conformance .
	@.dev/bin/conformance $(CONFORMANCE_FLAGS)
