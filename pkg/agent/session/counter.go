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
	mu  sync.Mutex
	now map[string]int
}

func (c *counter) enter(uid string) (leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now[uid] >= node.MaxSessions {
		return nil, fmt.Errorf("this virtual machine has %d open commands and forwarded connections, and the limit is %d; close one first", c.now[uid], node.MaxSessions)
	}
	if c.now == nil {
		c.now = map[string]int{}
	}
	c.now[uid]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.now[uid]--; c.now[uid] == 0 {
			delete(c.now, uid)
		}
	}, nil
}
