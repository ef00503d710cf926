package scalar

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"24h":           24 * time.Hour,
		"1440m":         24 * time.Hour,
		"24h0m0s":       24 * time.Hour,
		"1d":            24 * time.Hour,
		"1.5d":          36 * time.Hour,
		"1d12h":         36 * time.Hour,
		"1d0h30m":       24*time.Hour + 30*time.Minute,
		"-1d12h":        -36 * time.Hour,
		"0":             0,
		"0s":            0,
		"90s":           90 * time.Second,
		"500ms":         time.Second / 2,
		"106751d":       106751 * 24 * time.Hour,
		"2562047h":      2562047 * time.Hour,
		"106751d23h":    106751*24*time.Hour + 23*time.Hour,
		"-106751d23h":   -(106751*24*time.Hour + 23*time.Hour),
		"0000000001d":   24 * time.Hour,
		".5d":           12 * time.Hour,
		"9600h0m0.5s":   9600*time.Hour + time.Second/2,
		"0d1h":          time.Hour,
		"-0d1h":         -time.Hour,
		"+3d":           72 * time.Hour,
		"1d-0h":         0,
		"":              0,
		"d":             0,
		"-d":            0,
		"3":             0,
		"3 weeks":       0,
		"1w":            0,
		"1y":            0,
		"24H":           0,
		"24 h":          0,
		" 24h":          0,
		"1d1d":          0,
		"1h1d":          0,
		"1h2":           0,
		"1d-1h":         0,
		"1d+1h":         0,
		"1d 1h":         0,
		"1d1":           0,
		"1.2.3d":        0,
		"106752d":       0,
		"-106752d":      0,
		"106751d24h":    0,
		"-106751d24h":   0,
		"1e3d":          0,
		"true":          0,
		"null":          0,
		"П1h":           0,
		"1\xffh":        0,
		"2147483648d":   0,
		"9999999999h":   0,
		"1d9999999999h": 0,
	} {
		d := Duration{Text: text}
		got, err := d.Parse()
		assert.Equal(t, want, got, "%q", text)
		zero := text == "0" || text == "0s"
		assert.Equal(t, want != 0 || zero, err == nil, "%q: %v", text, err)
		assert.Equal(t, got, d.Value(), "%q", text)
		if err != nil {
			assert.ErrorContains(t, err, "accepted units: d (days of 24 hours), h, m, s", "%q", text)
		}
	}
	long := Duration{Text: strings.Repeat("1h", 33)}
	_, err := long.Parse()
	assert.Error(t, err, "a text of more than 64 bytes")
	assert.Zero(t, (*Duration)(nil).Value())
}

func TestNewDuration(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"24h": 24 * time.Hour, "36h30m": 36*time.Hour + 30*time.Minute, "1m": time.Minute, "1m30s": 90 * time.Second, "10s": 10 * time.Second,
		"1h0m1s": time.Hour + time.Second, "0s": 0, "-72h": -72 * time.Hour, "1.5s": 1500 * time.Millisecond, "10h": 10 * time.Hour, "20m": 20 * time.Minute,
		"2562047h47m16.854775807s": math.MaxInt64,
	} {
		got := NewDuration(d)
		assert.Equal(t, want, got.Text)
		assert.Equal(t, d, got.Value(), want)
	}
	assert.Equal(t, "400d", NewDays(400*24*time.Hour).Text)
}

func TestDurationKeepsItsText(t *testing.T) {
	for _, data := range []string{`"72h"`, `"1440m"`, `"3d"`, `"24h0m0s"`, `"0072h"`, `"3 weeks"`, `""`} {
		var d Duration
		require.NoError(t, json.Unmarshal([]byte(data), &d), data)
		got, err := json.Marshal(d)
		require.NoError(t, err, data)
		assert.Equal(t, data, string(got))
		if data == `""` {
			continue // reads as 0s in protobuf, which is as it was when the text was not stored
		}
		stored, err := d.Marshal()
		require.NoError(t, err, data)
		var back Duration
		require.NoError(t, back.Unmarshal(stored), data)
		assert.Equal(t, d, back, data)
	}
	for _, data := range []string{"72", "true", `{"a":1}`, `["24h"]`} {
		var d Duration
		require.NoError(t, json.Unmarshal([]byte(data), &d), data)
		_, err := d.Parse()
		assert.Error(t, err, data)
	}
	var structure struct{ D *Duration }
	require.NoError(t, json.Unmarshal([]byte(`{"D":null}`), &structure))
	assert.Nil(t, structure.D)
}

func TestDurationWithoutText(t *testing.T) {
	stored, err := (&ProtoDuration{Nanoseconds: int64(72 * time.Hour)}).Marshal()
	require.NoError(t, err)
	var d Duration
	require.NoError(t, d.Unmarshal(stored))
	assert.Equal(t, "72h", d.Text, "as a former version stored it")

	stored, err = (&Duration{Text: "3d"}).Marshal()
	require.NoError(t, err)
	var old ProtoDuration
	require.NoError(t, old.Unmarshal(stored))
	assert.Equal(t, int64(72*time.Hour), old.Nanoseconds, "as a former version reads it")
}
