# The dev cluster. State, logs and binaries are in .dev; DEV_PORT_BASE selects the block of 64 ports (default 16440).

.PHONY: up down status clean

up: ## start the dev cluster, or what of it does not run
	@go run ./hack/dev up

down: ## stop the dev cluster; its state stays
	@go run ./hack/dev down

status: ## list the dev cluster's processes
	@go run ./hack/dev status

clean: ## stop the dev cluster and remove its state; binaries stay
	@go run ./hack/dev clean
