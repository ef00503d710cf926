# Releases: archives and checksums, in .dev/release.

.PHONY: release-snapshot
release-snapshot: VERSION = $(shell sed -n 's/.*Version = "v\(.*\)"/\1/p' pkg/version/version.go)
release-snapshot: .dev/bin/goreleaser ## build the archives and checksums of a release of this commit into .dev/release
	@MACRACK_VERSION=$(VERSION) .dev/bin/goreleaser release --snapshot --clean
	@go run ./hack/release .dev/release v$(VERSION)-snapshot-$$(git rev-parse --short HEAD) $$(git rev-parse HEAD)

.dev/bin/goreleaser: hack/tools/goreleaser/go.mod hack/tools/goreleaser/go.sum
	@echo "building goreleaser (ten minutes, once)"
	cd hack/tools/goreleaser && go build -o $(CURDIR)/$@ github.com/goreleaser/goreleaser/v2
	@touch $@
