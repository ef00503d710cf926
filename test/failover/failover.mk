# The failover test. FAILOVER_FLAGS are flags of test/failover, such as -tries=5.

.PHONY: failover
failover: ## kill each component of the control plane, and measure how long clients notice it
	@mkdir -p .dev/bin
	@go build -o .dev/bin/failover ./test/failover
	@.dev/bin/failover $(FAILOVER_FLAGS)
