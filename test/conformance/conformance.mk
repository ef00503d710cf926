# The behaviour of every kind with common clients and tools. CONFORMANCE_FLAGS are flags of test/conformance: --own starts a separate cluster.

.PHONY: conformance
conformance: ## run the behaviours that clients and tools rely on, for every kind, on the dev cluster
	@mkdir -p .dev/bin
	@go build -C test/conformance -o $(CURDIR)/.dev/bin/conformance .
	@.dev/bin/conformance $(CONFORMANCE_FLAGS)
