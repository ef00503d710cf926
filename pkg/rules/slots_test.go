package rules

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCheckSlot(t *testing.T) {
	assert.NoError(t, CheckSlot("build", nil))
	assert.NoError(t, CheckSlot("build", []string{"a"}))
	assert.EqualError(t, CheckSlot("build", []string{"a", "b"}),
		`rule 1 (two VMs per Mac): lease "build" has 2 of 2 instances (["a" "b"]); stop or delete one of them, or lease another Mac`)
	assert.NoError(t, CheckRunning("mac-1", 2))
	assert.Error(t, CheckRunning("mac-1", 3))
}
