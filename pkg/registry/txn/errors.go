package txn

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
)

// A conflictError is the error of a transaction that did not commit because keys that its planner
// relied on had changed. Another plan may succeed.
type conflictError struct {
	keys []string
}

func (e *conflictError) Error() string {
	return fmt.Sprintf("txn: changed since they were read: %q", e.keys)
}

// ReasonInsufficientStorage is the reason of the error, with status 507, of writes after etcd has
// reached its quota.
const ReasonInsufficientStorage metav1.StatusReason = "InsufficientStorage"

var errTooFast = apierrors.NewTooManyRequests("write rate limit of this object exceeded; nothing was changed; try again later", 1)

var errQueueFull = apierrors.NewTooManyRequests("too many requests are waiting to change the same object; nothing was changed; try again later", 1)

func errTooManyConflicts(gr schema.GroupResource, operation string) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf("cannot %s %s: too many conflicting writes; nothing was changed; try again", operation, gr), 1)
}

var (
	errUnreachable = apierrors.NewServiceUnavailable("etcd is not reachable, nothing was changed; try again later")
	errUnknown     = apierrors.NewServiceUnavailable("etcd did not answer; the change may have been made; read the object before you retry")
)

// explain converts the errors of an etcd that does not answer, or cannot write, into API errors.
// ctx is the context of the request: after its end, no client waits for the error.
func explain(ctx context.Context, err error, write bool) error {
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, rpctypes.ErrNoSpace):
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure,
			Code:   http.StatusInsufficientStorage,
			Reason: ReasonInsufficientStorage,
			// etcd commits the write that exceeds the quota, and returns the same error as for
			// refused writes (quotaApplierV3.Txn in etcd/server/etcdserver).
			Message: "the database is full (NOSPACE); the change may have been made; read the object before you retry; " +
				"an administrator must compact, defragment and disarm the alarm of etcd",
		}}
	case errors.Is(err, rpctypes.ErrTooManyRequests):
		return apierrors.NewTooManyRequests("etcd is overloaded: nothing was changed; try again", 1)
	case !unavailable(err):
		return err
	}
	klog.FromContext(ctx).Error(err, "No answer from etcd", "write", write)
	if write {
		return errUnknown
	}
	return errUnreachable
}

// unavailable reports whether etcd did not answer or cannot answer.
func unavailable(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	code := status.Code(err)
	if e := (rpctypes.EtcdError{}); errors.As(err, &e) {
		code = e.Code()
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Canceled
}
