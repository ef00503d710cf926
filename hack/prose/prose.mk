# Vale checks documents, comments and messages against the rules in hack/prose/styles.

.PHONY: prose

PROSE_GO = $(shell git ls-files '*.go' | grep -vE '^pkg/generated/|^third_party/vz/|zz_generated|\.pb\.go$$')

prose: .dev/bin/vale ## check the language of documents, comments and messages
	@rm -rf .dev/prose && go run ./hack/prose .dev/prose $(PROSE_GO)
	@.dev/bin/vale --config hack/prose/vale.ini --output line README.md CONTRIBUTING.md docs artifacts runners/README.md
	@.dev/bin/vale --config hack/prose/vale.ini --output line $(PROSE_GO)
	@.dev/bin/vale --config hack/prose/vale.ini --output line $$(find .dev/prose -name "*.txt" -not -name "*_test.go.txt" -not -path ".dev/prose/test/*")

.dev/bin/vale: hack/tools/vale/go.mod hack/tools/vale/go.sum
	@echo "building vale (two minutes, once)"
	cd hack/tools/vale && go build -o $(CURDIR)/$@ github.com/errata-ai/vale/v3/cmd/vale
	@touch $@
