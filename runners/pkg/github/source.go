package github

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/actions/scaleset"
	"github.com/actions/scaleset/listener"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"

	"macrack.io/macrack/runners/pkg/config"
	"macrack.io/macrack/runners/pkg/guest"
	"macrack.io/macrack/runners/pkg/observe"
	"macrack.io/macrack/runners/pkg/sets"
)

// registerTimeout is the time in which a runner that has its configuration must get a job.
const registerTimeout = 5 * time.Minute

// Source is a runner scale set of GitHub Actions. GitHub gives a job to any runner of the set, so
// the number of jobs counts, and a job gets its name when it starts.
type Source struct {
	sets.Environment
	set     string
	github  *config.GitHub
	secrets corev1client.SecretInterface
	guests  guest.Executor
	owner   string
	version string

	mu         sync.Mutex
	client     *scaleset.Client // nil while there is no session
	scaleSetID int
	listener   *listener.Listener
	known      bool // jobs is what GitHub has reported
	slots      int
	jobs       int                    // jobs that were assigned to the scale set or could be, running ones included
	busy       int                    // machines with a job that GitHub counts, as far as is known
	results    map[string]sets.Result // by the names of runners
	changed    func()
}

// New returns the source of a set. The owner is the name of this process at GitHub.
func New(environment sets.Environment, set *config.Set, secrets corev1client.SecretInterface, guests guest.Executor, owner, version string) *Source {
	return &Source{
		Environment: environment, set: set.Name, github: set.GitHub, secrets: secrets, guests: guests, owner: owner, version: version,
		results: map[string]sets.Result{}, changed: func() {}, slots: set.Leases.Max * set.Instances.PerLease,
	}
}

// Run keeps a session with GitHub until ctx ends. After a failure, it waits up to a minute.
func (s *Source) Run(ctx context.Context, changed func()) {
	s.mu.Lock()
	s.changed = changed
	s.mu.Unlock()
	const least, most = time.Second, time.Minute
	backoff := least
	for ctx.Err() == nil {
		began := s.Clock.Now()
		err := s.listen(ctx)
		s.mu.Lock()
		s.client, s.listener = nil, nil
		s.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		if s.Clock.Since(began) > most {
			backoff = least
		}
		reason := reasonOf(err)
		s.Metrics.Source(s.set, reason)
		s.Metrics.Errors.WithLabelValues(s.set, "listen to GitHub").Inc()
		s.Events.Event(s.Self, "Warning", reason, fmt.Sprintf("set %q: %v", s.set, err))
		klog.ErrorS(err, "Session with GitHub ended", "set", s.set, "reason", reason, "retryIn", backoff)
		select {
		case <-ctx.Done():
		case <-s.Clock.After(wait.Jitter(backoff, 0.2)):
		}
		backoff = min(2*backoff, most)
	}
}

// listen registers the scale set, opens a session, and handles its messages.
func (s *Source) listen(ctx context.Context) error {
	client, err := s.connect(ctx)
	if err != nil {
		return err
	}
	scaleSetID, err := s.register(ctx, client)
	if err != nil {
		return err
	}
	session, err := client.MessageSessionClient(ctx, scaleSetID, s.owner)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if err := session.Close(ctx); err != nil {
			klog.ErrorS(err, "Failed to close session with GitHub", "set", s.set)
		}
	}()
	s.mu.Lock()
	slots := s.slots
	s.mu.Unlock()
	l, err := listener.New(session, listener.Config{ScaleSetID: scaleSetID, MaxRunners: slots, Logger: slog.New(slog.DiscardHandler)}, listener.WithMetricsRecorder(recorder{s}))
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.client, s.scaleSetID, s.listener = client, scaleSetID, l
	s.mu.Unlock()
	s.Metrics.Source(s.set, "")
	klog.InfoS("Session with GitHub opened", "set", s.set, "scaleSet", scaleSetID)
	return l.Run(ctx, s)
}

// reasonOf returns the reason of a failure as a single word.
func reasonOf(err error) string {
	text := err.Error()
	var connection *net.OpError
	switch {
	case errors.As(err, &connection) || strings.Contains(text, "x509: "):
		return "Unreachable"
	case strings.Contains(text, "rate limit"): // GitHub refuses with 403, too
		return "RateLimitedOrDown"
	case apierrors.IsNotFound(err):
		return "NotFound"
	case errors.Is(err, errCredentials) || apierrors.IsForbidden(err) || strings.Contains(text, "401 ") || strings.Contains(text, "403 ") || strings.Contains(text, "private key"):
		return "Unauthorized"
	case strings.Contains(text, "429 ") || strings.Contains(text, "giving up after"):
		return "RateLimitedOrDown"
	case strings.Contains(text, "409 ") || strings.Contains(text, "SessionConflict"):
		return "SessionConflict"
	case strings.Contains(text, "runner group"):
		return "NoRunnerGroup"
	case strings.Contains(text, http.StatusText(http.StatusNotFound)):
		return "NotFound"
	}
	return "Unreachable"
}

func (s *Source) connection() (*scaleset.Client, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client, s.scaleSetID
}

// Waiting returns a name for each job that has no runner yet. It tells GitHub the capacity.
func (s *Source) Waiting(c sets.Capacity) ([]string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slots, s.busy = max(c.Slots, 0), len(c.Busy)+c.Unreported
	if s.listener != nil {
		s.listener.SetMaxRunners(s.slots)
	}
	var waiting []string
	for n := range s.jobs - s.busy {
		waiting = append(waiting, fmt.Sprintf("job %d of GitHub", n+1))
	}
	return waiting, s.known
}

// Prepare adds the startup script.
func (s *Source) Prepare(instance *instancev1alpha1.MacOSInstance) {
	instance.Spec.StartupScript = s.startupScript()
}

// Stale returns NotNeeded if there are fewer jobs than runners, and NotStarted if there are enough,
// for a runner that got no job in time.
func (s *Source) Stale(instance *instancev1alpha1.MacOSInstance) sets.Result {
	deliveredAt := observe.Time(instance, observe.AnnotationJobDeliveredAt)
	if !observe.Time(instance, observe.AnnotationJobStartedAt).IsZero() || s.Clock.Since(deliveredAt) < registerTimeout {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jobs < s.busy {
		return sets.NotNeeded
	}
	return sets.NotStarted
}

// Result returns what GitHub reported, which can be later than the end of the runner. A runner that
// failed before its job started has not started it.
func (s *Source) Result(instance *instancev1alpha1.MacOSInstance) sets.Result {
	s.mu.Lock()
	result := s.results[instance.Name]
	s.mu.Unlock()
	startup := instance.Status.Startup
	switch {
	case result != "":
		return result
	case observe.Time(instance, observe.AnnotationJobStartedAt).IsZero() && (startup == nil || startup.ExitCode != 0):
		return sets.NotStarted
	}
	return ""
}

// Forget removes the runner of an instance from GitHub.
func (s *Source) Forget(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	s.mu.Lock()
	client := s.client
	s.mu.Unlock()
	if client == nil {
		return errors.New("no connection to GitHub")
	}
	if err := s.remove(ctx, client, instance.Name); err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.results, instance.Name)
	s.mu.Unlock()
	return nil
}

// instance returns the instance of a runner, or nil if it belongs to no instance of the set.
func (s *Source) instance(runner string) *instancev1alpha1.MacOSInstance {
	instances, err := s.Reader.Instances(s.set)
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(instances, func(i *instancev1alpha1.MacOSInstance) bool { return i.Name == runner })
	if i < 0 {
		return nil
	}
	return instances[i]
}
