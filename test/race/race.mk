# The race proof. RACE_FLAGS are flags of test/race/cmd, such as --attempts=100000.

.PHONY: race race-faults race-detector

race: race-faults ## race 64 clients of two servers while processes are killed, and check
	@mkdir -p .dev/bin
	@go build -o .dev/bin/race ./test/race/cmd
	@.dev/bin/race $(RACE_FLAGS)

# The checker must detect faulty servers, which do not compare the inputs of their decisions.
race-faults:
	@go test -tags faults -count=1 -run '^TestWithoutCompare$$' ./test/race

RACE_PACKAGES ?= ./pkg/registry/... ./pkg/ledger ./pkg/controllers/... ./pkg/agent/... ./pkg/vm/... ./test/race

race-detector: ## run the concurrent packages under Go's race detector
	go test -race -p 1 -count=1 -timeout 40m $(RACE_PACKAGES)
