package genericstrategy

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCut(t *testing.T) {
	tests := []struct {
		s          string
		limit      int
		begin, end string
	}{
		{"abc", 3, "abc", "abc"},
		{"abcd", 3, "...", "bcd"},
		{"abcdefgh", 5, "ab...", "defgh"},
		{"üüü", 5, "ü...", "üü"},
		{"üüü", 6, "üüü", "üüü"},
		{"a\xffb", 5, "a\uFFFDb", "a\uFFFDb"},
		{"\u202eab", 8, `\u202eab`, `\u202eab`},
		{"\x1b[31m\nx", 100, "\\x1b[31m\nx", "\\x1b[31m\nx"},
		{"", 3, "", ""},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.begin, Cut(tt.s, tt.limit), "%q", tt.s)
		assert.Equal(t, tt.end, CutEnd(tt.s, tt.limit), "%q", tt.s)
	}
}
