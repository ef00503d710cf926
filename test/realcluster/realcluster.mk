# The test on a real cluster. CLUSTER_TEST_FLAGS are flags of test/realcluster, such as -nodes=3.

.PHONY: cluster-test
cluster-test: ## install the chart on real Nodes in private namespaces, and run the life of a Mac on it (as root, on Linux)
	@mkdir -p .dev/bin
	@go build -o .dev/bin/realcluster ./test/realcluster
	@.dev/bin/realcluster $(CLUSTER_TEST_FLAGS)
