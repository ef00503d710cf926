package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

func TestTheCachesOfInstances(t *testing.T) {
	const leases = ", caches: [{name: a, sizeLimit: 64Mi}, {name: b, sizeLimit: 16Ti}]"
	for _, test := range []struct {
		name, leases, instances string
		want                    []instancev1alpha1.InstanceCache
	}{
		{"all by default", leases, "", []instancev1alpha1.InstanceCache{{Name: "a"}, {Name: "b"}}},
		{"one", leases, ", caches: [{name: b, readOnly: true}]", []instancev1alpha1.InstanceCache{{Name: "b", ReadOnly: true}}},
		{"none", leases, ", caches: []", []instancev1alpha1.InstanceCache{}},
		{"no caches", "", "", []instancev1alpha1.InstanceCache{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			config, err := Parse([]byte(document(test.leases, test.instances, github)))
			require.NoError(t, err)
			assert.Equal(t, test.want, config.Sets[0].Instances.Caches)
		})
	}
}

func TestEightCaches(t *testing.T) {
	config, err := Parse([]byte(document(cachesOfLeases("a", "b", "c", "d", "e", "f", "g", "h"), "", github)))
	require.NoError(t, err)
	assert.Len(t, config.Sets[0].Leases.Caches, 8)
}

// cachesOfLeases returns the caches with the given names.
func cachesOfLeases(names ...string) string {
	return ", caches: [{sizeLimit: 1Gi, name: " + strings.Join(names, "}, {sizeLimit: 1Gi, name: ") + "}]"
}

func TestRefusedCaches(t *testing.T) {
	size := func(size string) string { return ", caches: [{name: a, sizeLimit: " + size + "}]" }
	for _, test := range []struct {
		name, leases, instances, want string
	}{
		{"a name", cachesOfLeases("A"), "", "leases.caches[0].name: Invalid value"},
		{"a path", cachesOfLeases("../a"), "", "leases.caches[0].name: Invalid value"},
		{"no name", ", caches: [{sizeLimit: 1Gi}]", "", "leases.caches[0].name: Invalid value"},
		{"a name twice", cachesOfLeases("a", "a"), ", caches: []", "leases.caches[1].name: Duplicate value"},
		{"nine", cachesOfLeases("a", "b", "c", "d", "e", "f", "g", "h", "i"), "", "leases.caches: Too many: 9: must have at most 8"},
		{"no size", ", caches: [{name: a}]", "", "leases.caches[0].sizeLimit: Required value: must be 64Mi to 16Ti"},
		{"no amount", size("big"), "", "leases.caches[0].sizeLimit: Invalid value"},
		{"too small", size("63Mi"), "", "leases.caches[0].sizeLimit: Invalid value"},
		{"too large", size("17Ti"), "", "leases.caches[0].sizeLimit: Invalid value"},
		{"no whole MiB", size("1G"), "", "leases.caches[0].sizeLimit: Invalid value"},
		{"a setting of instances", ", caches: [{name: a, sizeLimit: 1Gi, readOnly: true}]", "", `unknown field "sets[0].leases.caches[0].readOnly"`},
		{"a use of no cache", cachesOfLeases("a"), ", caches: [{name: b}]", "instances.caches[0].name: Invalid value: \"b\": must be the name of a cache in leases.caches"},
		{"a use twice", cachesOfLeases("a"), ", caches: [{name: a}, {name: a}]", "instances.caches[1].name: Duplicate value"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse([]byte(document(test.leases, test.instances, github)))
			assert.ErrorContains(t, err, test.want)
		})
	}
}
