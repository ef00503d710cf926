#!/usr/bin/env bash
# Generates all generated code of the module: deepcopy, conversion, defaults, protobuf, OpenAPI, clients,
# listers, informers and apply configurations. Needs protoc 3.21 (Debian: protobuf-compiler).
set -o errexit -o nounset -o pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
module=macrack.io/macrack
apis=(rack instance image config)
export GOBIN="$root/.dev/codegen/bin"

command -v protoc >/dev/null || { echo "protoc is not installed (Debian: apt-get install protobuf-compiler)" >&2; exit 1; }

codegen=$(go list -m -f '{{.Dir}}' k8s.io/code-generator)
mkdir -p "$GOBIN"

protobuf() {
    # go-to-protobuf requires its imports in one tree and writes to it, so it gets a tree of links.
    local tree="$root/.dev/codegen/src" apimachinery api
    apimachinery=$(go list -m -f '{{.Dir}}' k8s.io/apimachinery)
    rm -rf "$tree" && mkdir -p "$tree/k8s.io" "$tree/$(dirname $module)"
    cp -r "$apimachinery" "$tree/k8s.io/apimachinery" && chmod -R u+w "$tree"
    local packages=("$module/pkg/apis/scalar")
    for g in "${apis[@]}"; do packages+=("$module/pkg/apis/$g/v1alpha1"); done
    go mod download github.com/gogo/protobuf
    go install k8s.io/code-generator/cmd/go-to-protobuf k8s.io/code-generator/cmd/go-to-protobuf/protoc-gen-gogo golang.org/x/tools/cmd/goimports
    mkdir -p "$tree/github.com/gogo"
    ln -s "$(go list -m -f '{{.Dir}}' github.com/gogo/protobuf)" "$tree/github.com/gogo/protobuf"
    ln -s "$root" "$tree/$module"
    PATH="$GOBIN:$PATH" "$GOBIN/go-to-protobuf" \
        --go-header-file "$root/hack/boilerplate.go.txt" \
        --output-dir "$tree" \
        --proto-import "$tree" \
        --packages "$(IFS=,; echo "${packages[*]}")" \
        --apimachinery-packages "-k8s.io/apimachinery/pkg/util/intstr,-k8s.io/apimachinery/pkg/api/resource,-k8s.io/apimachinery/pkg/runtime/schema,-k8s.io/apimachinery/pkg/runtime,-k8s.io/apimachinery/pkg/apis/meta/v1"
}

# shellcheck source=/dev/null
source "$codegen/kube_codegen.sh"

kube::codegen::gen_helpers --boilerplate "$root/hack/boilerplate.go.txt" "$root/pkg/apis"
protobuf

kube::codegen::gen_openapi \
    --output-dir "$root/pkg/generated/openapi" \
    --output-pkg "$module/pkg/generated/openapi" \
    --output-model-name-file zz_generated.model_name.go \
    --report-filename "$root/hack/openapi-violations.list" \
    --update-report \
    --boilerplate "$root/hack/boilerplate.go.txt" \
    "$root/pkg/apis"

kube::codegen::gen_client \
    --with-watch \
    --with-applyconfig \
    --output-dir "$root/pkg/generated" \
    --output-pkg "$module/pkg/generated" \
    --boilerplate "$root/hack/boilerplate.go.txt" \
    "$root/pkg/apis"

# The contract with the agent inside guests, and the protocol of tart's agent.
go install google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
for proto in pkg/vm/guest/v1/guest.proto pkg/vm/guest/tart/v1/tart.proto; do
    PATH="$GOBIN:$PATH" protoc --proto_path="$root/$(dirname $proto)" \
        --go_out="$root" --go_opt=module=$module --go-grpc_out="$root" --go-grpc_opt=module=$module \
        "$(basename $proto)"
done
