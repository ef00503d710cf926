.PHONY: demo
demo: ## tell the story on the dev cluster, and check each step of it
	@go run ./hack/demo
