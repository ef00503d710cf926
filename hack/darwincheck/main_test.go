package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCheck(t *testing.T) {
	count, err := check([]string{"./testdata/fine"})
	require.NoError(t, err)
	assert.Equal(t, 1, count)

	_, err = check([]string{"./testdata/broken"})
	require.ErrorContains(t, err, "broken.go:9")
	require.ErrorContains(t, err, "undefined: undefined")

	// A check of no packages must fail.
	_, err = check([]string{"./testdata/excluded"})
	require.ErrorContains(t, err, "build constraints exclude all Go files")
	_, err = check(nil)
	require.ErrorContains(t, err, "usage:")
}
