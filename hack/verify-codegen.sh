#!/usr/bin/env bash
# Checks that the generated code is up to date with hack/update-codegen.sh.
set -o errexit -o nounset -o pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
copy="$root/.dev/codegen/before"
generated() { (cd "$root" && { find pkg/generated -type f; find pkg/vm/guest -name '*.pb.go'; find pkg/apis -name 'zz_generated*' -o -name 'generated.*' -o -path '*/v1alpha1/types_*'; echo hack/openapi-violations.list; } | sort); }

rm -rf "$copy" && mkdir -p "$copy"
generated | (cd "$root" && tar -cf - -T -) | tar -xf - -C "$copy"
"$root/hack/update-codegen.sh" >"$root/.dev/codegen/log" 2>&1 || { cat "$root/.dev/codegen/log" >&2; exit 1; }

status=0
generated | while read -r file; do cmp -s "$root/$file" "$copy/$file" || echo "$file"; done >"$root/.dev/codegen/changed"
(cd "$copy" && find . -type f | sed 's|^\./||' | sort) | comm -23 - <(generated) >>"$root/.dev/codegen/changed"
if [[ -s "$root/.dev/codegen/changed" ]]; then
    echo "generated code was not up to date; run make generate and commit:" >&2
    cat "$root/.dev/codegen/changed" >&2
    status=1
else
    echo "generated code is up to date"
fi
rm -rf "$copy"
exit $status
