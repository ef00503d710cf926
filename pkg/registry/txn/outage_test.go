package txn_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"macrack.io/macrack/pkg/registry/txn"
)

// A proxy stands between a server and etcd, and fails as networks do.
type proxy struct {
	etcd     string // host:port
	address  string // its own
	swallows atomic.Bool

	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
}

func startProxy(t testing.TB, endpoint string) *proxy {
	p := &proxy{etcd: strings.TrimPrefix(endpoint, "http://"), address: "127.0.0.1:0"}
	p.start(t)
	t.Cleanup(p.stop)
	return p
}

func (p *proxy) endpoint() string { return "http://" + p.address }

func (p *proxy) start(t testing.TB) {
	l, err := net.Listen("tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	p.listener, p.address = l, l.Addr().String()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(conn)
		}
	}()
}

func (p *proxy) serve(conn net.Conn) {
	etcd, err := net.Dial("tcp", p.etcd)
	if err != nil {
		conn.Close()
		return
	}
	p.mu.Lock()
	p.conns = append(p.conns, conn, etcd)
	p.mu.Unlock()
	go func() {
		_, _ = io.Copy(etcd, conn)
		etcd.Close()
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := etcd.Read(buf)
		if err == nil && !p.swallows.Load() {
			_, err = conn.Write(buf[:n])
		}
		if err != nil {
			conn.Close()
			return
		}
	}
}

// cut breaks all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// stop refuses connections from now on.
func (p *proxy) stop() {
	p.listener.Close()
	p.cut()
}

// proxied returns a server with a lease that gets to etcd by a proxy.
func proxied(t testing.TB) (*clientv3.Client, *proxy, *Server) {
	endpoint, etcd := startEtcd(t, false)
	p := startProxy(t, endpoint)
	s := startServer(t, p.endpoint())
	settle(t, s.Leases, mustCreate(t, cluster, s.Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}}))
	mustCreate(t, ctx, s.Instances, instance("first", "lease")) // what it reads is remembered
	// Writes of a lease itself do not wait in the queue of those of its instances.
	for _, name := range []string{"updated", "deleted"} {
		settle(t, s.Leases, mustCreate(t, cluster, s.Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	return etcd, p, s
}

// requests are one of each kind. They have more time than is needed for an answer.
func requests(t testing.TB, s *Server) map[string]func() error {
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	t.Cleanup(cancel)
	cluster, cancel := context.WithTimeout(cluster, 40*time.Second)
	t.Cleanup(cancel)
	return map[string]func() error{
		"planned create": func() error { _, err := create(ctx, s.Instances, instance("a", "lease")); return err },
		"planned update": func() error {
			_, err := change(cluster, s.Leases, "updated", func(l *Lease) { l.Labels = map[string]string{"a": "b"} })
			return err
		},
		"planned delete": func() error { return remove(cluster, s.Leases, "deleted") },
		"unplanned create": func() error {
			_, err := create(cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
			return err
		},
		"get":           func() error { _, err := s.Leases.Get(cluster, "lease", &metav1.GetOptions{}); return err },
		"list":          func() error { _, err := s.Leases.List(cluster, &metainternalversion.ListOptions{}); return err },
		"uncached list": func() error { _, err := s.Records.List(cluster, &metainternalversion.ListOptions{}); return err },
		"preflight":     func() error { return s.Backend.Preflight(ctx, Instances, nil, instance("a", "lease")) },
	}
}

// all makes requests at once and looks at their errors.
func all(t testing.TB, requests map[string]func() error, check func(name string, err error)) {
	var wg sync.WaitGroup
	for name, request := range requests {
		wg.Go(func() {
			start := time.Now()
			err := request()
			t.Logf("%s, after %v: %v", name, time.Since(start).Round(time.Millisecond), err)
			check(name, err)
		})
	}
	wg.Wait()
}

func TestEtcdUnreachable(t *testing.T) {
	t.Parallel()
	etcd, p, s := proxied(t)
	before := revision(t, etcd)
	p.stop()
	all(t, requests(t, s), func(name string, err error) { // while it notices
		if !apierrors.IsServiceUnavailable(err) {
			t.Errorf("%s: %v", name, err)
		}
	})
	all(t, requests(t, s), func(name string, err error) {
		if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "nothing was changed") {
			t.Errorf("%s: %v", name, err)
		}
	})
	if after := revision(t, etcd); after != before {
		t.Errorf("revision %d, was %d", after, before)
	}
	p.start(t)
	for deadline := time.Now().Add(30 * time.Second); ; {
		_, err := create(ctx, s.Instances, instance("a", "lease"))
		if err == nil {
			break
		}
		if !apierrors.IsServiceUnavailable(err) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	replay(t, etcd)
}

func TestEtcdDoesNotAnswer(t *testing.T) {
	t.Parallel()
	_, p, s := proxied(t)
	p.swallows.Store(true)
	all(t, requests(t, s), func(name string, err error) {
		want := "nothing was changed"
		if name == "planned create" || name == "planned update" || name == "unplanned create" {
			want = "the change may have been made"
		}
		if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	})
}

// A planner that gets no answer is not asked again.
func TestNoAnswerToPlanner(t *testing.T) {
	t.Parallel()
	endpoint, _ := startEtcd(t, false)
	p := startProxy(t, endpoint)
	asked := 0
	s := startPlanned(t, p.endpoint(), map[schema.GroupResource]txn.Planner{
		Nodes: func(ctx context.Context, tx *txn.Tx, _, _ runtime.Object) error {
			asked++
			if err := tx.Get(ctx, Leases, "", "lease", &Lease{}); err != nil {
				return err
			}
			_, _, err := tx.GetKey(ctx, "some", "key")
			return err
		},
	})
	settle(t, s.Leases, mustCreate(t, cluster, s.Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}}))
	p.swallows.Store(true)
	if _, err := create(cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}); !apierrors.IsServiceUnavailable(err) || asked != 1 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}

// The transaction commits, but etcd's answer is lost. It is not tried again.
func TestAnswerLost(t *testing.T) {
	etcd, p, s := proxied(t)
	p.swallows.Store(true)
	done := make(chan error, 1)
	go func() {
		_, err := create(ctx, s.Instances, instance("a", "lease"))
		done <- err
	}()
	for committed := false; !committed; {
		resp, err := etcd.Get(ctx, "/registry/toy.example/instances/default/a")
		if err != nil {
			t.Fatal(err)
		}
		committed = len(resp.Kvs) == 1
		select {
		case err := <-done:
			t.Fatal("no answer awaited:", err)
		case <-time.After(time.Millisecond):
		}
	}
	p.swallows.Store(false)
	p.cut()
	if err := <-done; !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "the change may have been made") {
		t.Errorf("lost answer: %v", err)
	}
	if st, _ := replay(t, etcd); len(st.records) != 2 {
		t.Errorf("records %v", st.records)
	}
	// A retry finds the instance created, even if the lease is full.
	if _, err := create(ctx, s.Instances, instance("a", "lease")); !apierrors.IsAlreadyExists(err) {
		t.Errorf("tried again: %v", err)
	}
}

func TestNoSpace(t *testing.T) {
	etcd, servers := newLease(t, 1)
	alarm := func(action pb.AlarmRequest_AlarmAction) {
		t.Helper()
		status, err := etcd.Status(ctx, etcd.Endpoints()[0])
		if err != nil {
			t.Fatal(err)
		}
		_, err = pb.NewMaintenanceClient(etcd.ActiveConnection()).Alarm(ctx, &pb.AlarmRequest{Action: action, MemberID: status.Header.MemberId, Alarm: pb.AlarmType_NOSPACE})
		if err != nil {
			t.Fatal(err)
		}
	}
	alarm(pb.AlarmRequest_ACTIVATE)
	before := revision(t, etcd)
	_, planned := create(ctx, servers[0].Instances, instance("a", "lease"))
	_, unplanned := create(cluster, servers[0].Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	for _, err := range []error{planned, unplanned} {
		if apierrors.ReasonForError(err) != txn.ReasonInsufficientStorage || !strings.Contains(err.Error(), "the change may have been made") {
			t.Errorf("full: %v", err)
		}
	}
	if _, err := servers[0].Leases.Get(cluster, "lease", &metav1.GetOptions{}); err != nil {
		t.Errorf("read: %v", err)
	}
	if after := revision(t, etcd); after != before {
		t.Errorf("revision %d, was %d", after, before)
	}
	alarm(pb.AlarmRequest_DEACTIVATE)
	mustCreate(t, ctx, servers[0].Instances, instance("a", "lease"))
}

// A request that is over is over.
func TestRequestCancelled(t *testing.T) {
	etcd, servers := newLease(t, 1)
	over, cancel := context.WithCancel(ctx)
	cancel()
	before := revision(t, etcd)
	if _, err := create(over, servers[0].Instances, instance("a", "lease")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if after := revision(t, etcd); after != before {
		t.Errorf("revision %d, was %d", after, before)
	}
}
