package session

import (
	"fmt"
	"sync"

	"macrack.io/macrack/pkg/agent/node"
)

// counter counts the open commands and forwarded connections of each virtual machine. The stream
// limit of package node is not enough, because one kubectl port-forward request has many
// connections.
type counter struct {
	mu   sync.Mutex
	open map[string]int
}

func (c *counter) acquire(uid string) (release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[uid] >= node.MaxSessions {
		return nil, fmt.Errorf("this virtual machine has %d open commands and forwarded connections, and the limit is %d; close one first", c.open[uid], node.MaxSessions)
	}
	if c.open == nil {
		c.open = map[string]int{}
	}
	c.open[uid]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.open[uid]--; c.open[uid] == 0 {
			delete(c.open, uid)
		}
	}, nil
}
