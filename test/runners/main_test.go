package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestShort is the short form of make runners-test.
func TestShort(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute) // the first run on a machine builds Kubernetes
	defer cancel()
	require.NoError(t, run(ctx, options{jobs: 8, burst: 4, macs: 2, warm: 1, gitlabJobs: 3, kills: 4 * time.Second}))
}
