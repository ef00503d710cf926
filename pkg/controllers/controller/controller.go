// Package controller drives the controllers: a queue of keys, workers that reconcile them, and
// retries with backoff after an error. A timer per key covers work that becomes due although
// nothing changes.
package controller

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// retryBase and retryMax bound the wait before a failed key is retried. It doubles each time.
	retryBase = 20 * time.Millisecond
	retryMax  = 30 * time.Second

	// maxTimer bounds the duration of one timer. A timer measures elapsed time, a deadline is a
	// time of day: when the clock is set forward, a deadline is noticed at most this much late.
	maxTimer = time.Minute
)

// ReconcileFunc brings the object of key a step nearer to its desired state. If the next step is
// due at a known time, it returns that time; else the zero time. A key that failed is retried with
// backoff.
type ReconcileFunc func(ctx context.Context, key string) (due time.Time, err error)

// Controller calls a ReconcileFunc for keys, never twice at once for one key.
type Controller struct {
	*Queue
	clock     clock.WithDelayedExecution
	reconcile ReconcileFunc

	mu     sync.Mutex
	timers map[string]*timer
	closed bool
}

type timer struct {
	due  time.Time
	stop func() bool
}

// New returns a controller with a queue of its own. Due times follow clock; the backoff after
// errors is real time, so that it continues while clock stands still.
func New(name string, clock clock.WithDelayedExecution, reconcile ReconcileFunc) *Controller {
	return NewQueue(name).Controller(clock, reconcile)
}

// Queue has the keys that a controller is about to reconcile.
type Queue struct {
	name  string
	queue workqueue.TypedRateLimitingInterface[string]
}

// NewQueue returns the queue of a controller whose reconciler itself enqueues keys.
func NewQueue(name string) *Queue {
	return &Queue{name: name, queue: workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryBase, retryMax),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: name},
	)}
}

// Controller returns the controller that reconciles the keys of the queue.
func (q *Queue) Controller(clock clock.WithDelayedExecution, reconcile ReconcileFunc) *Controller {
	return &Controller{Queue: q, clock: clock, reconcile: reconcile, timers: map[string]*timer{}}
}

// Enqueue requests the reconciliation of key. An empty key is ignored.
func (q *Queue) Enqueue(key string) {
	if key != "" {
		q.queue.Add(key)
	}
}

// Run reconciles with the given number of workers until ctx is done and their current keys are
// finished.
func (c *Controller) Run(ctx context.Context, workers int) {
	defer utilruntime.HandleCrashWithContext(ctx)
	logger := klog.FromContext(ctx).WithValues("controller", c.name)
	ctx = klog.NewContext(ctx, logger)
	logger.V(2).Info("Starting controller")
	defer logger.V(2).Info("Stopped controller")

	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for c.processNext(ctx) {
			}
		})
	}
	<-ctx.Done()
	c.stopTimers()
	c.queue.ShutDown()
	wg.Wait()
}

func (c *Controller) processNext(ctx context.Context) bool {
	key, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(key)
	if ctx.Err() != nil {
		return true
	}
	due, err := c.reconcileSafely(ctx, key)
	if err != nil {
		logger := klog.FromContext(ctx)
		if apierrors.IsConflict(err) {
			logger.V(4).Info("Conflict, retrying", "key", key, "reason", err)
		} else if ctx.Err() == nil {
			logger.Error(err, "Reconciliation failed, retrying", "key", key, "failures", c.queue.NumRequeues(key)+1)
		}
		c.queue.AddRateLimited(key)
		return true
	}
	c.queue.Forget(key)
	c.setTimer(key, due)
	return true
}

// reconcileSafely turns a panic into an error, so that one bad object does not stop the others.
func (c *Controller) reconcileSafely(ctx context.Context, key string) (due time.Time, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = panicError{value: r}
			utilruntime.HandleErrorWithContext(ctx, err, "Panic in reconcile", "controller", c.name, "key", key)
		}
	}()
	return c.reconcile(ctx, key)
}

// setTimer replaces the timer of key. The zero time removes it.
func (c *Controller) setTimer(key string, due time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.timers[key]; old != nil {
		old.stop()
		delete(c.timers, key)
	}
	if due.IsZero() || c.closed {
		return
	}
	t := &timer{due: due}
	c.timers[key] = t
	c.arm(key, t)
}

// arm starts t, repeatedly if its time is further away than maxTimer. c.mu is held.
func (c *Controller) arm(key string, t *timer) {
	wait := t.due.Sub(c.clock.Now())
	if wait > 0 {
		// A fake clock calls the function with its own lock held, so the function must not use the
		// clock itself.
		t.stop = c.clock.AfterFunc(min(wait, maxTimer), func() { go c.fire(key, t) }).Stop
		if c.clock.Now().Before(t.due) {
			return
		}
		// The clock was set forward before the timer began to count.
		t.stop()
	}
	delete(c.timers, key)
	c.queue.Add(key)
}

func (c *Controller) fire(key string, t *timer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timers[key] == t && !c.closed {
		c.arm(key, t)
	}
}

func (c *Controller) stopTimers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for key, t := range c.timers {
		t.stop()
		delete(c.timers, key)
	}
}
