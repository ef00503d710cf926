#!/usr/bin/env bash
# Checks that go.mod and go.sum of every module hold what its packages import.
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

status=0
for module in $(git ls-files '*go.mod'); do
    dir=$(dirname "$module")
    if ! go -C "$dir" mod tidy -diff >/dev/null; then
        echo "$dir: go.mod or go.sum is not up to date; run go -C $dir mod tidy and commit" >&2
        status=1
    fi
done
exit $status
