# Tests. Heavy tests run a real control plane, one at a time.

.PHONY: test testbed integration

test: ## run all tests
	go test -p 1 -timeout 60m ./...
	go test -C test/conformance ./...
	go test -C test/monitoring ./...
	go test -C runners ./...

integration: ## run the tests on a real control plane
	go test -timeout 40m -v ./test/integration/

testbed: ## run macrack with a clock that can be put forward, in the foreground
	@go run ./test/testbed/cmd
