# The loss of etcd. RESTORE_FLAGS are flags of test/restore.

.PHONY: restore-test
restore-test: macrack-ledger ## lose etcd while VMs run, and restore it from a backup and from nothing
	@mkdir -p .dev/bin
	@go build -o .dev/bin/restore-test ./test/restore
	@.dev/bin/restore-test $(RESTORE_FLAGS)
