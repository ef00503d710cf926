# Benchmarks, compared with common alternatives. BENCH_FLAGS are flags of test/bench, such as -short,
# or -write docs/performance.md.

.PHONY: bench

bench: ## compare macrack with custom resources with a webhook, print tables in Markdown, and measure the worst requests
	@mkdir -p .dev/bin
	@go build -C test/bench/sqlite -o $(CURDIR)/.dev/bin/bench-sqlite .
	@go build -o .dev/bin/bench ./test/bench
	@.dev/bin/bench $(BENCH_FLAGS)
	@go test ./test/cost -run '^$$' -bench . -benchtime 1x
