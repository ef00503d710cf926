# The tests of the runners on a cluster. RUNNERS_FLAGS are flags of test/runners, such as --jobs=20.

.PHONY: runners-test runners-demo
runners-test: ## run CI jobs on simulated Macs, and kill each component repeatedly
	@mkdir -p .dev/bin
	@go build -o .dev/bin/runners-test ./test/runners
	@.dev/bin/runners-test $(RUNNERS_FLAGS)

runners-demo: ## run CI jobs on simulated Macs with an adjustable clock, and show what was paid and used
	@mkdir -p .dev/bin/runners
	@go build -C runners -tags testclock -o ../.dev/bin/runners/macrack-runners-demo ./cmd/macrack-runners
	@go build -C runners -o ../.dev/bin/runners/fake-github ./cmd/fake-github
	@go build -o .dev/bin/macrack-guest-agent ./cmd/guest-agent
	@go run ./hack/runners-demo
