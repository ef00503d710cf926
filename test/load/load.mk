# The flood test. LOAD_FLAGS are flags of test/load, such as -flooded=2m.

.PHONY: load
load: ## measure one tenant's work while another one floods the API, in a quarter of an hour
	@mkdir -p .dev/bin
	@go build -o .dev/bin/load ./test/load
	@.dev/bin/load $(LOAD_FLAGS)
