package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/runners/pkg/gitlab"
)

func TestExitCodes(t *testing.T) {
	t.Setenv("BUILD_FAILURE_EXIT_CODE", "11")
	t.Setenv("SYSTEM_FAILURE_EXIT_CODE", "12")
	for _, test := range []struct {
		err  error
		want int
	}{
		{fmt.Errorf("%w: exit code 1", gitlab.ErrBuild), 11},
		{errors.New("no Mac"), 12},
	} {
		var exit exitError
		require.ErrorAs(t, exitCode(test.err), &exit)
		assert.Equal(t, test.want, exit.code)
	}
	require.NoError(t, exitCode(nil))
	t.Setenv("SYSTEM_FAILURE_EXIT_CODE", "")
	var exit exitError
	require.ErrorAs(t, exitCode(errors.New("no Mac")), &exit)
	assert.Equal(t, 1, exit.code)
}

func TestGitLabConfig(t *testing.T) {
	out, err := execute("gitlab", "config", "--set", "ios")
	require.NoError(t, err)
	assert.Contains(t, out, `"builds_dir":"/Users/admin/builds"`)
	_, err = execute("gitlab", "config")
	assert.ErrorContains(t, err, `required flag(s) "set"`)
}
