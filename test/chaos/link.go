package chaos

import (
	"io"
	"net"
	"sync"
)

// link is the network between an agent and the API. It can be cut.
type link struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]struct{}
}

func newLink(to string) (*link, error) {
	l := &link{to: to, conns: map[net.Conn]struct{}{}}
	return l, l.listen("127.0.0.1:0")
}

func (l *link) listen(address string) (err error) {
	if l.listener, err = net.Listen("tcp", address); err != nil {
		return err
	}
	go func(listener net.Listener) {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go l.serve(conn)
		}
	}(l.listener)
	return nil
}

func (l *link) address() string { return l.listener.Addr().String() }

// refuse makes connections fail at once, as without a server, until mend is called.
func (l *link) refuse() (mend func() error) {
	_ = l.listener.Close()
	l.setCut(false)
	return sync.OnceValue(func() error { return l.listen(l.address()) })
}

func (l *link) serve(from net.Conn) {
	defer from.Close()
	if !l.add(from) {
		// Connections are neither refused nor answered: the worst kind of outage.
		_, _ = io.Copy(io.Discard, from)
		return
	}
	defer l.remove(from)
	to, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	defer to.Close()
	if !l.add(to) {
		return
	}
	defer l.remove(to)
	go func() {
		defer to.Close()
		_, _ = io.Copy(to, from)
	}()
	_, _ = io.Copy(from, to)
}

func (l *link) add(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[conn] = struct{}{}
	return !l.cut
}

func (l *link) remove(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, conn)
}

// setCut cuts or mends the link. Existing connections end in both cases.
func (l *link) setCut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	for conn := range l.conns {
		_ = conn.Close()
	}
}
