package race

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	restclient "k8s.io/client-go/rest"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/test/race/check"
	"macrack.io/macrack/test/registrytest"
)

type userKey struct{}

// as returns a context for requests of a user.
func as(ctx context.Context, name string, groups ...string) context.Context {
	return context.WithValue(ctx, userKey{}, append([]string{name}, groups...))
}

func asAdmin(ctx context.Context) context.Context { return as(ctx, "admin", "system:masters") }
func asTenant(ctx context.Context, n string) context.Context {
	return as(ctx, n, "system:authenticated")
}
func asControllers(ctx context.Context) context.Context {
	return as(ctx, "system:serviceaccount:macrack-system:macrack-controllers", "system:serviceaccounts")
}
func asAgent(ctx context.Context, node string) context.Context {
	return as(ctx, "system:node:"+node, "system:nodes", "system:authenticated")
}

// newClient returns a client of a server, with its own connections.
func newClient(address string) (versioned.Interface, error) {
	config := &restclient.Config{
		Host:            "https://" + address,
		TLSClientConfig: restclient.TLSClientConfig{Insecure: true}, // self-signed, on loopback
		QPS:             -1,
		WarningHandler:  restclient.NoWarnings{},
		Dial:            (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		ContentConfig:   restclient.ContentConfig{ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf + ",application/json"},
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			req = req.Clone(req.Context())
			if user, ok := req.Context().Value(userKey{}).([]string); ok {
				req.Header.Set(registrytest.UserHeader, user[0])
				req.Header[registrytest.GroupHeader] = user[1:]
			}
			resp, err := next.RoundTrip(req)
			if err == nil {
				resp.Header.Del("Retry-After") // an attempt is one request
			}
			return resp, err
		})
	})
	return versioned.NewForConfig(config)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// An outcome is the result of an attempt.
type outcome int

const (
	success  outcome = iota
	refusal          // the server refused it
	conflict         // another client was faster
	unknown          // it may have happened: it was cancelled, or a process died
	unsent           // it reached no server
)

func outcomeOf(err error) outcome {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return success
	case errors.Is(err, syscall.ECONNREFUSED):
		return unsent
	case !errors.As(err, &status):
		return unknown
	case apierrors.IsTooManyRequests(err):
		return conflict
	case apierrors.IsConflict(err) && strings.Contains(err.Error(), "the object has been modified"):
		return conflict
	case status.Status().Code >= 500 || status.Status().Code < 400:
		return unknown
	}
	return refusal
}

// A worker is one client.
type worker struct {
	*race
	id      int
	clients []versioned.Interface // of each server
	acks    []check.Ack
}

// client returns a client of some server, preferably a live one.
func (w *worker) client() versioned.Interface {
	n := rand.IntN(len(w.clients))
	if w.down[n].Load() {
		n = (n + 1) % len(w.clients)
	}
	return w.clients[n]
}

// request returns the context of a request. Some are cancelled.
func (w *worker) request(ctx context.Context) (context.Context, context.CancelFunc) {
	if rand.IntN(100) < w.Cancel {
		return context.WithTimeout(ctx, time.Duration(rand.Int64N(int64(10*time.Millisecond))))
	}
	return context.WithTimeout(ctx, time.Minute)
}

// counts are the outcomes of a kind of attempts.
type counts struct {
	attempts, successes, refusals, conflicts, unknown atomic.Int64
}

// tried counts an attempt.
func (w *worker) tried(kind string, err error) outcome {
	o := outcomeOf(err)
	v, ok := w.kinds.Load(kind)
	if !ok {
		v, _ = w.kinds.LoadOrStore(kind, &counts{})
	}
	for _, c := range []*counts{&w.total, v.(*counts)} {
		switch o {
		case unsent:
			continue
		case success:
			c.successes.Add(1)
		case refusal:
			c.refusals.Add(1)
		case conflict:
			c.conflicts.Add(1)
		case unknown:
			c.unknown.Add(1)
		}
		c.attempts.Add(1)
	}
	if o == refusal {
		w.sample(kind, err)
	}
	return o
}

// sample keeps examples of refusals, to check that they are the expected ones.
func (w *worker) sample(kind string, err error) {
	w.samplesMu.Lock()
	defer w.samplesMu.Unlock()
	if s := w.samples[kind]; len(s) < 400 {
		w.samples[kind] = append(s, err.Error())
	}
}

// keyOf returns the etcd key of an object.
func keyOf(obj any) string {
	switch o := obj.(type) {
	case *rackv1alpha1.MacNode:
		return check.NodeKey(o.Name)
	case *rackv1alpha1.MacNodeLease:
		return check.LeaseKey(o.Namespace, o.Name)
	case *instancev1alpha1.MacOSInstance:
		return check.InstanceKey(o.Namespace, o.Name)
	case *imagev1alpha1.MacOSImage:
		return check.ImageKey(o.Name)
	}
	return ""
}

type object interface {
	metav1.Object
	runtime.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// wrote records an object that a server has returned as stored.
func (w *worker) wrote(obj object) {
	if gone(obj) {
		w.acks = append(w.acks, check.Ack{Kind: check.Gone, Key: keyOf(obj), UID: obj.GetUID()})
		return
	}
	revision, _ := strconv.ParseInt(obj.GetResourceVersion(), 10, 64)
	w.acks = append(w.acks, check.Ack{Kind: check.Written, Key: keyOf(obj), UID: obj.GetUID(), Revision: revision, Sum: check.Sum(obj)})
}

func (w *worker) ack(kind check.AckKind, key, node string) {
	w.acks = append(w.acks, check.Ack{Kind: kind, Key: key, Node: node})
}

// gone reports whether the object returned by a server was its last version.
func gone(obj metav1.Object) bool {
	return obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0
}

// remove deletes an object. It returns the remaining object, or nil.
func remove[T object](ctx context.Context, client restclient.Interface, resource, namespace, name string, key string, w *worker) (T, error) {
	var none T
	result, err := client.Delete().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Name(name).Body(&metav1.DeleteOptions{}).Do(ctx).Get()
	if err != nil {
		return none, err
	}
	switch obj := result.(type) {
	case T:
		w.wrote(obj)
		return obj, nil
	case *metav1.Status:
		if obj.Details != nil && obj.Details.UID != "" {
			w.acks = append(w.acks, check.Ack{Kind: check.Gone, Key: key, UID: obj.Details.UID})
		}
	}
	return none, nil
}

// history records an operation on a table with the outcome of err.
func (w *worker) history(key string, since time.Time, kind check.OpKind, err error, items ...string) {
	op := check.Op{Kind: kind, Items: items, Client: w.id, Call: since.Sub(w.began), Return: time.Since(w.began)}
	switch outcomeOf(err) {
	case success:
	case unknown:
		if kind == check.Read {
			return
		}
		op.Unknown = true
	default:
		return
	}
	w.histories.Add(key, op)
}

// sampled reports whether the history of an object is checked, which is the case for every nth.
func sampled(name string, n int) bool {
	sum := 0
	for _, c := range []byte(name) {
		sum = sum*31 + int(c)
	}
	return sum&0xffff%n == 0
}

var particular = regexp.MustCompile(`"[^"]*"|\b(?:i|l|mac-|tenant-|macos-)[0-9]+(?:-[0-9])?\b|C07A[A-Z0-9]+|[0-9a-f]{8}-[0-9a-f-]{27}|[0-9]{4}-[0-9-]+T[0-9:]+Z|\b[0-9]+[hms][0-9hms]*\b|02:00[0-9a-f:]+|bWFj[A-Za-z0-9=+/]+`)

// Generalize returns a message without its specific parts.
func Generalize(message string) string { return particular.ReplaceAllString(message, "*") }
