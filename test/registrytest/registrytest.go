// Package registrytest runs the API server alone, on an etcd in the same process, for tests of the
// registry: several servers on one etcd, users by request headers, and a test clock.
package registrytest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	restclient "k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apiserver"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
)

// ClockKey is the key in etcd of the readings of the replicas' clocks.
const ClockKey = "/registry/macrack.io/index/clock/fleet"

// Etcd is an etcd of one member.
type Etcd struct {
	Endpoint string
	Client   *clientv3.Client
	config   *embed.Config
	server   *embed.Etcd
}

// StartEtcd runs an etcd for the duration of the test.
func StartEtcd(t testing.TB) *Etcd {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	require.NoError(t, os.Chmod(cfg.Dir, 0o700))
	cfg.UnsafeNoFsync = true
	cfg.ListenPeerUrls, cfg.ListenClientUrls = []url.URL{loopback(t)}, []url.URL{loopback(t)}
	cfg.AdvertisePeerUrls, cfg.AdvertiseClientUrls = cfg.ListenPeerUrls, cfg.ListenClientUrls
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e := &Etcd{Endpoint: cfg.ListenClientUrls[0].String(), config: cfg}
	e.start(t)
	t.Cleanup(func() { e.server.Close() })
	var err error
	e.Client, err = clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.Client.Close() })
	return e
}

func (e *Etcd) start(t testing.TB) {
	var err error
	e.server, err = embed.StartEtcd(e.config)
	require.NoError(t, err)
	select {
	case <-e.server.Server.ReadyNotify():
	case <-time.After(time.Minute):
		t.Fatal("etcd is not ready")
	}
}

// Restart stops etcd, calls change with its data directory, and starts it again.
func (e *Etcd) Restart(t testing.TB, change func(dir string)) {
	t.Helper()
	e.server.Close()
	change(e.config.Dir)
	e.start(t)
}

// Revision returns the revision of the last write.
func (e *Etcd) Revision(t testing.TB) int64 {
	t.Helper()
	resp, err := e.Client.Get(t.Context(), "revision")
	require.NoError(t, err)
	return resp.Header.Revision
}

// Transactions returns how many transactions have written since a revision. The replicas' readings
// of their clocks do not count.
func (e *Etcd) Transactions(t testing.TB, since int64) int {
	t.Helper()
	end, err := e.Client.Put(t.Context(), "/end", "")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	revisions := sets.New[int64]()
	for resp := range e.Client.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithRev(since+1)) {
		require.NoError(t, resp.Err())
		for _, event := range resp.Events {
			if event.Kv.ModRevision >= end.Header.Revision {
				return revisions.Len()
			}
			if string(event.Kv.Key) != ClockKey {
				revisions.Insert(event.Kv.ModRevision)
			}
		}
	}
	t.Fatal("the watch ended")
	return 0
}

// RaiseNoSpace makes etcd refuse writes, as it does when its quota is used up.
func (e *Etcd) RaiseNoSpace(t testing.TB) {
	t.Helper()
	_, err := e.server.Server.Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE})
	require.NoError(t, err)
}

// Disarm makes etcd accept writes again.
func (e *Etcd) Disarm(t testing.TB) {
	t.Helper()
	_, err := e.Client.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	require.NoError(t, err)
}

func loopback(t testing.TB) url.URL {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return url.URL{Scheme: "http", Host: l.Addr().String()}
}

// Server is an API server without a kube-apiserver: it trusts the user names in requests, and
// authorizes every request.
type Server struct {
	config *restclient.Config
	stop   context.CancelFunc
	done   chan error
	once   sync.Once
}

// Headers with the user of a request.
const (
	UserHeader  = "X-Test-User"
	GroupHeader = "X-Test-Group"
)

// Serve runs a server on a listener until ctx is done. StartServer runs it in the test's process;
// other programs can run it in separate ones.
func Serve(ctx context.Context, etcd []string, listener net.Listener, clock clock.WithTicker) error {
	server, err := newServer(etcd, listener, clock)
	if err != nil {
		return err
	}
	return server.Generic.PrepareRun().RunWithContext(ctx)
}

func newServer(etcd []string, listener net.Listener, clock clock.WithTicker, change ...func(*apiserver.Options)) (*apiserver.Server, error) {
	options := apiserver.NewOptions()
	options.Clock = clock
	options.ShutdownDelay = 0 // no balancer
	options.UserQPS = 0       // tests send requests without pause
	options.Namespaces = everyNamespace
	r := options.Recommended
	r.Authentication, r.Authorization, r.CoreAPI, r.Admission = nil, nil, nil, nil
	r.Features.EnablePriorityAndFairness = false
	r.Etcd.StorageConfig.Transport.ServerList = etcd
	r.Etcd.StorageConfig.CompactionInterval = 0 // tests need the whole history
	r.SecureServing.Listener = listener
	r.SecureServing.ServerCert.CertDirectory = ""
	r.SecureServing.ServerCert.PairName = "test"
	for _, f := range change {
		f(options)
	}
	if err := options.Validate(); err != nil {
		return nil, err
	}
	config, err := options.Config()
	if err != nil {
		return nil, err
	}
	config.Generic.Authentication.Authenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		name := req.Header.Get(UserHeader)
		if name == "" {
			if strings.HasPrefix(req.Header.Get("Authorization"), "Bearer ") { // the server itself
				return &authenticator.Response{User: &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}}, true, nil
			}
			return nil, false, nil
		}
		return &authenticator.Response{User: &user.DefaultInfo{Name: name, UID: "uid-of-" + name, Groups: req.Header.Values(GroupHeader)}}, true, nil
	})
	config.Generic.Authorization.Authorizer = authorizer.AuthorizerFunc(authorize)
	return config.New()
}

// everyNamespace returns the UID of a namespace that always exists.
func everyNamespace(_ context.Context, name string) (types.UID, error) {
	return types.UID("namespace-" + name), nil
}

// asked counts the questions to authorize, by user.
var asked struct {
	sync.Mutex
	users map[string]int
}

// Asked returns how often all servers of this process have asked so far whether a user is
// authorized. kube-apiserver answers such a question in production.
func Asked(user string) int {
	asked.Lock()
	defer asked.Unlock()
	return asked.users[user]
}

// authorize lets users do everything; tenants are limited to namespaced resources. Tenants are
// users without a system group or name.
func authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	asked.Lock()
	if asked.users == nil {
		asked.users = map[string]int{}
	}
	asked.users[a.GetUser().GetName()]++
	asked.Unlock()
	isSystem := func(name string) bool { return strings.HasPrefix(name, "system:") && name != user.AllAuthenticated }
	tenant := !isSystem(a.GetUser().GetName()) && !slices.ContainsFunc(a.GetUser().GetGroups(), isSystem)
	switch a.GetResource() {
	case "macnodeleases", "macosinstances", "auditrecords", "usagereports":
		if tenant && a.GetNamespace() == "" {
			return authorizer.DecisionDeny, "tenants have rights in namespaces only", nil
		}
	}
	return authorizer.DecisionAllow, "", nil
}

// StartServer runs a server for the duration of the test, optionally with changed options.
func StartServer(t testing.TB, etcd *Etcd, clock clock.WithTicker, change ...func(*apiserver.Options)) *Server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server, err := newServer([]string{etcd.Endpoint}, listener, clock, change...)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	s := &Server{stop: stop, done: make(chan error, 1)}
	go func() { s.done <- server.Generic.PrepareRun().RunWithContext(ctx) }()
	t.Cleanup(s.Stop)
	s.config = &restclient.Config{
		Host:            "https://" + listener.Addr().String(),
		TLSClientConfig: restclient.TLSClientConfig{Insecure: true}, // self-signed, in this process
		QPS:             -1,
		ContentConfig:   restclient.ContentConfig{ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf + ",application/json"},
	}
	client, err := restclient.HTTPClientFor(s.config)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		resp, err := client.Get(s.config.Host + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusUnauthorized && s.ready(t)
	}, time.Minute, 20*time.Millisecond, "the server is not ready")
	return s
}

// Stop stops the server, gracefully.
func (s *Server) Stop() {
	s.once.Do(func() {
		s.stop()
		<-s.done
	})
}

func (s *Server) ready(t testing.TB) bool {
	resp, err := s.HTTPClient(t, "readiness").Get(s.config.Host + "/readyz")
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Config returns the client configuration of a user in groups.
func (s *Server) Config(name string, groups ...string) *restclient.Config {
	config := restclient.CopyConfig(s.config)
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			req = req.Clone(req.Context())
			req.Header.Set(UserHeader, name)
			req.Header[GroupHeader] = groups
			return rt.RoundTrip(req)
		})
	})
	return config
}

// Client returns a client for a user in groups.
func (s *Server) Client(t testing.TB, name string, groups ...string) versioned.Interface {
	t.Helper()
	client, err := versioned.NewForConfig(s.Config(name, groups...))
	require.NoError(t, err)
	return client
}

// HTTPClient returns a plain client for a user in groups.
func (s *Server) HTTPClient(t testing.TB, name string, groups ...string) *http.Client {
	t.Helper()
	client, err := restclient.HTTPClientFor(s.Config(name, groups...))
	require.NoError(t, err)
	return client
}

// URL returns the address of a path on the server.
func (s *Server) URL(format string, args ...any) string {
	return s.config.Host + fmt.Sprintf(format, args...)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
