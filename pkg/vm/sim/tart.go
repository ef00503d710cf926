package sim

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/test/bufconn"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/guest/tart/tartserver"
)

// tartAgent makes a guest agent speak the protocol of tart's.
type tartAgent struct {
	guestAgent
	shutdown func()

	mu       sync.Mutex
	listener *bufconn.Listener // nil when the guest is down
	stop     context.CancelFunc
}

func (t *tartAgent) boot() error {
	if err := t.guestAgent.boot(); err != nil {
		return err
	}
	client, err := guest.NewClient(t.guestAgent.connect)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	listener := bufconn.Listen(64 << 10)
	t.mu.Lock()
	t.listener, t.stop = listener, cancel
	t.mu.Unlock()
	server := &tartserver.Server{Guest: client, Shutdown: t.shutdown}
	go func() {
		defer client.Close()
		if err := server.Serve(ctx, listener); err != nil {
			klog.ErrorS(err, "Simulated guest agent of tart")
		}
	}()
	return nil
}

func (t *tartAgent) halt() {
	t.mu.Lock()
	if t.listener != nil {
		t.stop()
		t.listener = nil
	}
	t.mu.Unlock()
	t.guestAgent.halt()
}

func (t *tartAgent) kill() {
	t.halt()
	if err := t.boot(); err != nil {
		klog.ErrorS(err, "Simulated guest agent of tart")
	}
}

func (t *tartAgent) connect(ctx context.Context) (net.Conn, error) {
	t.mu.Lock()
	listener := t.listener
	t.mu.Unlock()
	if listener == nil {
		return nil, errDown
	}
	return listener.DialContext(ctx)
}
