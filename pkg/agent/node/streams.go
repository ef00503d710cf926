package node

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
)

// Limits of open streams. Two virtual machines at their limits leave no more than maxStreams, each
// of which takes up to six file descriptors.
const (
	// MaxLogs is the limit of readers of one virtual machine's console.
	MaxLogs = 16
	// MaxSessions is the limit of open commands and forwarded connections of one virtual machine.
	MaxSessions = 16
	maxStreams  = 2 * (MaxLogs + MaxSessions)
)

// streamLimit limits the open streams of each pod and of all pods of the Mac.
type streamLimit struct {
	mu    sync.Mutex
	total int
	open  map[string]int // by kind and pod
}

// wrap returns a handler that responds with 429 Too Many Requests beyond the limit.
func (l *streamLimit) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// /containerLogs/<namespace>/<pod>/<container>, /exec/..., /attach/...,
		// /portForward/<namespace>/<pod>
		parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
		if len(parts) < 3 {
			next.ServeHTTP(w, r)
			return
		}
		kind, limit := "commands and forwarded ports", MaxSessions
		if parts[0] == "containerLogs" {
			kind, limit = "readers of the console", MaxLogs
		}
		leave, err := l.enter(kind, parts[1]+"/"+parts[2], limit)
		if err != nil {
			http.Error(w, err.Error(), http.StatusTooManyRequests)
			return
		}
		defer leave()
		next.ServeHTTP(w, r)
	})
}

// enter counts a stream of a pod until leave is called.
func (l *streamLimit) enter(kind, pod string, limit int) (leave func(), err error) {
	key := kind + " of " + pod
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.open[key] >= limit:
		return nil, fmt.Errorf("pod %s has %d %s, and the limit is %d; close one first", pod, l.open[key], kind, limit)
	case l.total >= maxStreams:
		return nil, fmt.Errorf("this Mac has %d open commands, forwarded ports and readers of consoles, and the limit is %d; close one first", l.total, maxStreams)
	}
	if l.open == nil {
		l.open = map[string]int{}
	}
	l.open[key]++
	l.total++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.total--
		if l.open[key]--; l.open[key] == 0 {
			delete(l.open, key)
		}
	}, nil
}
