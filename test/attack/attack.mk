# The attack on a running cluster. ATTACK_FLAGS are flags of test/attack: --own starts a separate cluster.

.PHONY: attack
attack: ## attack the dev cluster with real credentials, and check that nothing gets through
	@go run ./test/attack $(ATTACK_FLAGS)
