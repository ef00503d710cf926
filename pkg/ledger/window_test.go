package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseWindow(t *testing.T) {
	now := time.Date(2026, 9, 15, 6, 0, 0, 0, time.FixedZone("CEST", 7200))
	for name, want := range map[string]Window{
		"24h":                    {From: now.Add(-24 * time.Hour), To: now, ongoing: true},
		"1h":                     {From: now.Add(-time.Hour), To: now, ongoing: true},
		"7d":                     {From: now.Add(-7 * 24 * time.Hour), To: now, ongoing: true},
		"90d":                    {From: now.Add(-90 * 24 * time.Hour), To: now, ongoing: true},
		"7300d":                  {From: now.Add(-7300 * 24 * time.Hour), To: now, ongoing: true},
		"2026-08-01..2026-09-01": {From: time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC), To: time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)},
		"today":                  {From: time.Date(2026, 9, 15, 0, 0, 0, 0, time.UTC), To: now, ongoing: true},
		"month":                  {From: time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC), To: now, ongoing: true},
		"2026-09":                {From: time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC), To: now, ongoing: true},
		"2026-08":                {From: time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC), To: time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)},
		"2024-02":                {From: time.Date(2024, 2, 1, 0, 0, 0, 0, time.UTC), To: time.Date(2024, 3, 1, 0, 0, 0, 0, time.UTC)},
		"2026-08-01..2026-11-01": {From: time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC), To: now, ongoing: true},
	} {
		w, err := ParseWindow(name, now)
		require.NoError(t, err, name)
		want.Name, want.From, want.To = name, want.From.UTC(), want.To.UTC()
		assert.Equal(t, want, w)
	}
	for name, message := range map[string]string{
		"":                               "a number of hours or days such as 24h",
		"0d":                             "is not such a name",
		"-1d":                            "is not such a name",
		"+1d":                            "is not such a name",
		"07d":                            "is not such a name",
		"7D":                             "is not such a name",
		"7d ":                            "is not such a name",
		"1.5d":                           "is not such a name",
		"24h0m":                          "is not such a name",
		"90":                             "is not such a name",
		"7301d":                          "for at most 7300d",
		"999999h":                        "for at most 175200h",
		"99999999999999999999d":          "is not such a name",
		"2026-08-01":                     "is not such a name",
		"2026-08-01..":                   `"" is not a date`,
		"..2026-08-01":                   `"" is not a date`,
		"2026-08-32..2026-09-01":         `"2026-08-32" is not a date`,
		"2026-8-1..2026-09-01":           "is not a date",
		"2026-08-01..2026-09-01..":       "is not a date",
		"2026-08-01T00:00:00Z..2026-9-1": "is not a date",
		"2026-09-01..2026-08-01":         "ends before it begins",
		"2026-08-01..2026-08-01":         "ends before it begins",
		"2026-10-01..2026-11-01":         "begins in the future",
		"2026-10":                        "begins in the future",
		"2026-13":                        "is not such a name",
		"2026-9":                         "is not such a name",
		"Today":                          "is not such a name",
	} {
		_, err := ParseWindow(name, now)
		assert.ErrorContains(t, err, message, name)
	}
}

func TestWindowsAndTheirEnds(t *testing.T) {
	now := start.Add(48 * time.Hour)
	whole, err := ParseWindow("2026-08-01..2026-08-02", now)
	require.NoError(t, err)
	ongoing, err := ParseWindow("24h", now)
	require.NoError(t, err)
	instant := func(at time.Time) span { return span{at.UnixMicro(), at.UnixMicro()} }

	midnight := time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC)
	assert.True(t, whole.span().meets(instant(midnight)))
	assert.False(t, whole.span().meets(instant(midnight.Add(-time.Microsecond))))
	assert.True(t, whole.span().meets(instant(midnight.Add(24*time.Hour-time.Microsecond))))
	assert.False(t, whole.span().meets(instant(midnight.Add(24*time.Hour))))
	assert.True(t, ongoing.span().meets(instant(now.Add(time.Minute))), "by the clock of another server")
}
