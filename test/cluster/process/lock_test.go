package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path, os.Stderr)
	require.NoError(t, err)

	var said strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = Lock(ctx, path, &said)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Contains(t, said.String(), fmt.Sprintf("waiting for process %d,", os.Getpid()))

	unlock()
	unlock, err = Lock(t.Context(), path, os.Stderr)
	require.NoError(t, err)
	unlock()
}
