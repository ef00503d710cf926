# Chaos on a Mac. CHAOS_FLAGS are flags of test/chaos/cmd, such as --short or --families=places,scrub.

.PHONY: chaos

chaos: ## inject faults at every fault point of a Mac, and check that nothing was lost or duplicated
	@mkdir -p .dev/bin
	@go build -tags faults -o .dev/bin/chaos ./test/chaos/cmd
	@.dev/bin/chaos --keep=.dev/chaos $(CHAOS_FLAGS)
