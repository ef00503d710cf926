package scalar_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	config "macrack.io/macrack/pkg/apis/config/install"
	image "macrack.io/macrack/pkg/apis/image/install"
	instance "macrack.io/macrack/pkg/apis/instance/install"
	rack "macrack.io/macrack/pkg/apis/rack/install"
)

// TestFormerObjects reads objects stored by a version that kept values instead of texts.
func TestFormerObjects(t *testing.T) {
	want := map[string]string{
		"MacNodeLease": `{"spec": {"minimumDuration": "24h", "expireAfter": "72h30m"},
			"status": {"instances": [{"resources": {"cpu": "4", "memory": "8Gi", "storage": "0"}}]}}`,
		"MacNodeClass": `{"spec": {"capacity": {"cpu": "10", "memory": "24Gi", "storage": "512G"},
			"hostReserved": {"cpu": "2", "memory": "1536Mi", "storage": "0"}}}`,
		"MacNode":       `{"status": {"hardware": {"cpu": "10", "memory": "24Gi", "storage": "482797652Ki", "freeStorage": "100Gi"}}}`,
		"InstanceClass": `{"spec": {"resources": {"cpu": "4", "memory": "8Gi", "storage": "64Gi"}}}`,
		"MacOSInstance": `{"spec": {"resources": {"requests": {"macrack.io/macos-vm": "1"}}}}`,
		"MacOSImage":    `{"spec": {"diskSize": "60Gi"}}`,
		"RackConfig": `{"spec": {"audit": {"retention": "9600h"}, "imageCache": {"minimumFree": "8Gi"},
			"agent": {"heartbeatInterval": "10s", "offlineAfter": "1m30s"}}}`,
	}
	scheme := runtime.NewScheme()
	for _, install := range []func(*runtime.Scheme){rack.Install, instance.Install, image.Install, config.Install} {
		install(scheme)
	}
	decoder := serializer.NewCodecFactory(scheme).UniversalDeserializer()

	file, err := os.Open("testdata/stored.txt")
	require.NoError(t, err)
	defer file.Close()
	lines := bufio.NewScanner(file)
	n := 0
	for ; lines.Scan(); n++ {
		kind, encoded, _ := strings.Cut(lines.Text(), " ")
		data, err := base64.StdEncoding.DecodeString(encoded)
		require.NoError(t, err)
		obj, _, err := decoder.Decode(data, nil, nil)
		require.NoError(t, err, kind)
		written, err := json.Marshal(obj)
		require.NoError(t, err)
		var got, expected any
		require.NoError(t, json.Unmarshal(written, &got))
		require.NoError(t, json.Unmarshal([]byte(want[kind]), &expected), kind)
		contains(t, kind, expected, got)
	}
	require.NoError(t, lines.Err())
	assert.Equal(t, len(want), n)
}

// contains asserts that got has all of want, and perhaps other fields.
func contains(t *testing.T, path string, want, got any) {
	switch want := want.(type) {
	case map[string]any:
		m, _ := got.(map[string]any)
		for key, value := range want {
			contains(t, path+"."+key, value, m[key])
		}
	case []any:
		list, _ := got.([]any)
		if assert.Len(t, list, len(want), path) {
			for i, value := range want {
				contains(t, path, value, list[i])
			}
		}
	default:
		assert.Equal(t, want, got, path)
	}
}
