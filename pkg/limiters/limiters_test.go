package limiters

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLimiters(t *testing.T) {
	limiters := New(2, 0, 3)
	var requests sync.WaitGroup
	for range 3 {
		requests.Go(func() { assert.True(t, limiters.Get("alice").Allow()) })
	}
	requests.Wait()
	assert.False(t, limiters.Get("alice").Allow())
	assert.True(t, limiters.Get("bob").Allow(), "each client has a limit")
	assert.False(t, limiters.Get("alice").Allow())

	assert.True(t, limiters.Get("carol").Allow())
	assert.Equal(t, 2, limiters.clients.Len())
	assert.False(t, limiters.Get("alice").Allow(), "bob was seen less recently")
}
