package main

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAssess(t *testing.T) {
	const ms = time.Millisecond
	failed := errors.New("refused")
	for name, tt := range map[string]struct {
		requests []request
		want     outage
	}{
		"all served": {
			requests: []request{{began: 0, ended: 10 * ms}, {began: 20 * ms, ended: 20*ms + slow}},
			want:     outage{sent: 2},
		},
		"one write hangs": {
			requests: []request{{began: 100 * ms, ended: 9 * time.Second}, {began: 120 * ms, ended: 130 * ms}},
			want:     outage{sent: 2, lasted: 8900 * ms},
		},
		"from the first failure to the end of the last slow request": {
			requests: []request{{began: 200 * ms, ended: 800 * ms}, {began: 100 * ms, ended: 110 * ms, err: failed}, {began: 900 * ms, ended: 905 * ms}},
			want:     outage{sent: 3, failed: 1, lasted: 700 * ms},
		},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tt.want, assess(tt.requests)) })
	}
}
