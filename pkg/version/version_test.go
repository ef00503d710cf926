package version

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCommit(t *testing.T) {
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "45cd7dd0"}
	assert.Equal(t, "45cd7dd0", commit([]debug.BuildSetting{revision, {Key: "vcs.modified", Value: "false"}}))
	assert.Equal(t, "45cd7dd0-dirty", commit([]debug.BuildSetting{{Key: "vcs.modified", Value: "true"}, revision}))
	assert.Empty(t, commit(nil))
}
