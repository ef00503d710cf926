package strategies

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
		{"abcd", 3, "abc", "bcd"},
		{"üüü", 5, "üü", "üü"},
		{"üüü", 6, "üüü", "üüü"},
		{"a\xffb", 3, "a?b", "a?b"},
		{"", 3, "", ""},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.begin, Cut(tt.s, tt.limit), "%q", tt.s)
		assert.Equal(t, tt.end, CutEnd(tt.s, tt.limit), "%q", tt.s)
	}
}
