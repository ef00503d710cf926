#!/usr/bin/env bash
# Writes artifacts/policies/static: the same policies with the names that kube-apiserver requires of policies from files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../artifacts/policies"
mkdir -p static
for file in controllers devices names nodes placeholders pods retired; do
	{
		echo "# Made from ../$file.yaml by hack/update-policies.sh."
		sed -E 's/^(  (name|policyName): [a-z.]+\.macrack\.io)$/\1.static.k8s.io/' "$file.yaml"
	} >"static/$file.yaml"
done
