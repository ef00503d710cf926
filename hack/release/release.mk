# Releases: archives, checksums and the manifest of the plugin for krew, in .dev/release. The manifest
# has the URL of the folder with a folder for each release.
RELEASES ?= https://releases.example.com/macrack

.PHONY: release-snapshot
release-snapshot: VERSION = $(shell sed -n 's/.*Version = "v\(.*\)"/\1/p' pkg/version/version.go)
release-snapshot: .dev/bin/goreleaser ## build the archives and checksums of a release of this commit into .dev/release
	@MACRACK_VERSION=$(VERSION) .dev/bin/goreleaser release --snapshot --clean
	@go run ./hack/release .dev/release v$(VERSION)-snapshot-$$(git rev-parse --short HEAD) $$(git rev-parse HEAD) $(RELEASES)

GORELEASER_VERSION := v2.17.0

.dev/bin/goreleaser: hack/release/release.mk
	@echo "building goreleaser (ten minutes, once)"
	GOBIN=$(CURDIR)/.dev/bin go install github.com/goreleaser/goreleaser/v2@$(GORELEASER_VERSION)
	@touch $@
