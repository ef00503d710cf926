package scalar

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestParseQuantity(t *testing.T) {
	for text, want := range map[string]string{
		"4": "4", "8Gi": "8Gi", "8192Mi": "8Gi", "512G": "512G", "1500m": "1500m", "1.5Gi": "1536Mi", "1e3": "1e3", "1E3": "1e3", "-1": "-1", "+1": "1", "0": "0", ".5": "500m", "1.": "1", "1e99": "1e99",
		"08": "8", "1000n": "1u",
	} {
		q := Quantity{Text: text}
		got, err := q.Parse()
		require.NoError(t, err, "%q", text)
		expected := resource.MustParse(want)
		assert.Zero(t, got.Cmp(expected), "%q is %s", text, got.String())
	}
	for _, text := range []string{
		"8 Gi", "8gi", "8GiB", "8GB", "eight", " 8", "8\n", "--1", "1e", "1e100", "1e999999999", "1e-999999999", "1Ei1", "0x10", "Gi", ".", "true", `""`, "1,5", "8Gi\xff", strings.Repeat("1", 65),
	} {
		_, err := Quantity{Text: text}.Parse()
		assert.ErrorContains(t, err, "accepted suffixes: Ki, Mi, Gi, Ti, Pi", "%q", text)
		assert.Zero(t, Quantity{Text: text}.Int64(), "%q", text)
	}
	unset, err := Quantity{}.Parse()
	require.NoError(t, err)
	assert.True(t, unset.IsZero())
	assert.Equal(t, int64(8<<30), MustParse("8192Mi").Int64())
	assert.Equal(t, MustParse("20Gi"), NewQuantity(20<<30, resource.BinarySI))
	assert.Panics(t, func() { MustParse("eight") })
}

func TestQuantityKeepsItsText(t *testing.T) {
	for _, data := range []string{`"8192Mi"`, `"8Gi"`, `"8"`, "8", "0", "-1", "0.5", "1e3", "1E+09", `"1e3"`, `"0.50"`, `"+8"`, `"eight"`, "12345678901234567890"} {
		var q Quantity
		require.NoError(t, json.Unmarshal([]byte(data), &q), data)
		got, err := json.Marshal(q)
		require.NoError(t, err, data)
		assert.Equal(t, data, string(got))
		stored, err := q.Marshal()
		require.NoError(t, err, data)
		var back Quantity
		require.NoError(t, back.Unmarshal(stored), data)
		assert.Equal(t, q, back, data)
		var plain any
		require.NoError(t, json.Unmarshal([]byte(data), &plain))
		assert.EqualValues(t, plain, q.ToUnstructured(), data)
	}
	for _, data := range []string{`""`, "true", `{"a":1}`, `["8Gi"]`} {
		var q Quantity
		require.NoError(t, json.Unmarshal([]byte(data), &q), data)
		_, err := q.Parse()
		assert.Error(t, err, data)
	}
	q := MustParse("8Gi")
	require.NoError(t, json.Unmarshal([]byte("null"), &q))
	assert.True(t, q.IsZero())
}

func TestQuantityNotWritten(t *testing.T) {
	type object struct {
		Memory Quantity `json:"memory,omitzero"`
	}
	data, err := json.Marshal(object{})
	require.NoError(t, err)
	assert.Equal(t, "{}", string(data))
	var o object
	require.NoError(t, json.Unmarshal(data, &o))
	assert.True(t, o.Memory.IsZero())
}

func TestForgedNumber(t *testing.T) {
	for _, text := range []string{"8Gi", `{"a":1}`, "08", "", "NaN", "1e1000000000", "-1e999"} {
		stored, err := (&ProtoQuantity{Text: text, Number: true}).Marshal()
		require.NoError(t, err)
		var q Quantity
		require.NoError(t, q.Unmarshal(stored))
		assert.False(t, q.Number, "%q is no number in JSON", text)
		data, err := json.Marshal(Quantity{Text: text, Number: true})
		require.NoError(t, err)
		assert.True(t, json.Valid(data), "%s", data)
	}
}
