# Archives of all binaries with checksums, in .dev/release.

GORELEASER_VERSION := v2.17.0

.PHONY: release-snapshot

release-snapshot: .dev/bin/goreleaser ## build archives of all binaries and their checksums into .dev/release
	@.dev/bin/goreleaser release --snapshot --clean --parallelism=1

.dev/bin/goreleaser: hack/release/release.mk
	@echo "building goreleaser (a few minutes, once)"
	@GOBIN=$(CURDIR)/.dev/bin go install github.com/goreleaser/goreleaser/v2@$(GORELEASER_VERSION)
	@touch $@
