package main

import "slices"

// behaviours are tried for every kind.
var behaviours = slices.Concat(reading, applying, writing, deleting, watching, clients, tools)

var (
	read   = []string{"get", "list"}
	create = []string{"create", "get", "patch", "delete"}
	update = []string{"create", "get", "update", "patch", "delete"}
)

func needsConditions(k *kind) string {
	if len(k.Conditions) == 0 {
		return "the kind has no conditions"
	}
	return ""
}

func needsStatus(k *kind) string {
	if k.Status == nil {
		return "the kind has no status that is stored"
	}
	return ""
}

func needsImmutable(k *kind) string {
	if k.Immutable == nil {
		return "a settled object of the kind has no immutable field"
	}
	return ""
}

func needsNamespace(k *kind) string {
	if !k.Namespaced {
		return "the kind is cluster-scoped"
	}
	return ""
}

func needsFreeName(k *kind) string {
	if k.Name != "" {
		return "the kind has one object, named " + k.Name
	}
	return ""
}
