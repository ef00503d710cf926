package host

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProductVersion(t *testing.T) {
	var ran, says string
	var fails error
	run := func(name string, args ...string) ([]byte, error) {
		ran = name + " " + strings.Join(args, " ")
		return []byte(says), fails
	}
	says = "26.1\n"
	version, err := productVersion(run)
	require.NoError(t, err)
	assert.Equal(t, "26.1", version)
	assert.Equal(t, "/usr/bin/sw_vers -productVersion", ran)
	says = "\n"
	_, err = productVersion(run)
	require.EqualError(t, err, "sw_vers shows no version")
	fails = errors.New("exit status 1")
	_, err = productVersion(run)
	require.EqualError(t, err, "sw_vers: exit status 1")
}
